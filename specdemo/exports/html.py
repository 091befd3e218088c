"""A finished run as one HTML file that replays it offline, with the page's own player, panes, charts and style.

Browsers load no modules from local files, so the file holds each of the page's modules as a `data:` URL in an import
map. The record and Plotly are compressed, and the content security policy forbids all requests.
"""

import gzip
import json
import shlex
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from specdemo.exports.schema import to_json, unpack
from specdemo.files import ASSETS, glossary, json_text
from specdemo.models.catalogue import pair_settings
from specdemo.records import Comparison
from specdemo.results import figures
from specdemo.results.summary import summarise
from specdemo.results.words import run_words
from specdemo.settings import option

PAGE = ASSETS / "page"
STYLES = ("tokens.css", "race.css")  # style sheets of page and replay, in order
_MODULES = ("files.js", "plot.js", "glossary.js", "pane.js", "player.js", "race.js", "rounds.js")


def page_file(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def render(template: str, **values: Any) -> str:
    from jinja2 import Environment, StrictUndefined  # imported late: it takes a tenth of a second

    return Environment(autoescape=True, undefined=StrictUndefined).from_string(template).render(**values)


def _animation(comparison: Comparison) -> bytes:
    from specdemo.exports.gif import animation  # PIL takes as long

    return animation(comparison)


def replay(comparison: Comparison) -> bytes:
    summary = summarise(comparison)
    environment = [(name.replace("_", " "), value) for name, value in comparison.environment if value is not None]
    models = [("target", comparison.pair.target), ("draft", comparison.pair.draft)]
    return render(
        page_file("replay.html"),
        title=f"{summary.headline}: {comparison.pair.name}",
        made_by=summary.made_by,
        styles=Markup("\n".join(map(page_file, STYLES))),
        race=Markup(page_file("race.html")),
        script=Markup(_bare(page_file("replay.js"))),
        **scripts(_MODULES),
        environment=[*environment, *((role, f"{model.name}, {model.weights}") for role, model in models if model)],
        record=b64encode(gzip.compress(json_text(to_json(comparison)).encode(), mtime=0)).decode(),
    ).encode()


def markdown(comparison: Comparison) -> bytes:
    summary, used, pair = summarise(comparison), comparison.environment, comparison.pair
    models = {role: model for role, model in (("target", pair.target), ("draft", pair.draft)) if model is not None}
    settings = [(name, value) for name, value in comparison.settings if value != getattr(pair_settings(pair), name)]
    flags = [option(role, model.name) for role, model in models.items()] + [option(*setting) for setting in settings]
    lines = [
        f"**{summary.headline}** {summary.pooled}: {summary.speedup or 'no speedup'}",
        summary.sentence,
        summary.agreement.capitalize(),
        f"Pair: {' + '.join(f'{model.name} ({model.weights})' for model in models.values())}",
        f"Machine: {used.device}, {used.threads or 'unknown'} threads, precision {used.inference_precision}",
        f"Software: specdemo {used.specdemo}, openvino {used.openvino}, openvino-genai {used.openvino_genai}",
        f"Settings: {run_words(comparison)}",
    ]
    command = " ".join(["specdemo compare", shlex.quote(comparison.prompt), *flags])
    return "\n".join([*(f"- {line}" for line in lines), "", "~~~~sh", command, "~~~~", ""]).encode()


def scripts(modules: Sequence[str]) -> dict[str, Markup]:
    """Return what a file needs without a server: these modules, Plotly, the empty charts, and the glossary."""
    codes = {name: b64encode(_bare(page_file(name)).encode()).decode() for name in modules}
    imports = {"imports": {name: f"data:text/javascript;base64,{code}" for name, code in codes.items()}}
    plotly, charts = Markup(b64encode(figures.plotly_js()).decode()), script_json(figures.page_charts())
    return {"imports": script_json(imports), "plotly": plotly, "charts": charts, "terms": terms()}


def terms() -> Markup:
    """Return the glossary's sentences by every name of a term, for `glossary.js`."""
    entries = [((term, *entry.get("also", ())), f"{term}: {entry['meaning']}.") for term, entry in glossary().items()]
    return script_json({name: sentence for names, sentence in entries for name in names})


def script_json(value: Any) -> Markup:
    """Write JSON that cannot end its script element."""
    return Markup(json.dumps(value).replace("<", "\\u003c"))


def _bare(script: str) -> str:
    """Make a module import others by bare names, which an import map resolves even from a `data:` URL."""
    return script.replace(' from "./', ' from "')


class FileKind(NamedTuple):
    what: str
    media_type: str
    make: Callable[[Comparison], bytes]


FILE_KINDS = {
    "html": FileKind("one HTML file that replays the race offline", "text/html", replay),
    "markdown": FileKind("the result in ten lines of text", "text/markdown", markdown),
    "gif": FileKind("the race as an animation", "image/gif", _animation),
}
FILE_BYTES = 10 * 2**20  # of a run as JSON; 2,048 tokens a side take about 5 MB


def make_file(kind: str, record: str) -> bytes:
    """Make a file from a run that the page sent. FileError: it is not a run, or too large."""
    return FILE_KINDS[kind].make(unpack(record, FILE_BYTES))
