"""A run as one HTML file that replays it offline, with the page's own player, panes and style.

Its charts are drawn by `sketch.js`, which draws the few kinds of traces that a race has: with all of Plotly the file
would have 5 MB. All modules are bundled into one script, the events of the run are compressed, and its content policy
forbids every request.
"""

import base64
import gzip
from collections.abc import Iterator

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from specdemo.presentation.explain import made_by
from specdemo.presentation.scripts import STYLES, bundle
from specdemo.presentation.verdict import headline
from specdemo.records import Comparison
from specdemo.resources import ASSETS
from specdemo.ui.feed import recorded
from specdemo.ui.html.charts import race_figures
from specdemo.ui.html.tables import table_html

PAGE = ASSETS / "page"


def replay(comparison: Comparison) -> bytes:
    """The file's content."""
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(_text("replay.html"))
    return page.render(
        title=f"{headline(comparison)}: {comparison.pair.name}",
        made_by=made_by(comparison),
        styles=Markup("\n".join(map(_text, STYLES))),
        race=Markup(_text("race.html")),
        script=Markup(bundle("replay.js")),
        figures=Markup(race_figures().replace("<", "\\u003c")),
        environment=table_html(("", ""), _environment(comparison), titled=True),
        events=base64.b64encode(gzip.compress(recorded(comparison).everything.encode(), mtime=0)).decode(),
    ).encode()


def _environment(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """What the figures were measured on, in words."""
    for name, value in comparison.environment:
        yield name.replace("_", " "), "unknown" if value is None else str(value)
    for role, model in (("target", comparison.pair.target), ("draft", comparison.pair.draft)):
        if model is not None:
            yield role, f"{model.name}, {model.parameters:,} parameters, {model.weights}"


def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")
