"""The files that show a run to others, by kind, for the page and the terminal.

One of them is an HTML file that replays the run offline, with the page's own player, panes and style. Its charts are
those of `sketch.js`, which draws the few kinds of traces that a race has: with Plotly the file would take 5 MB.
All modules are bundled into one script, the events are compressed, and the content policy forbids every request.
"""

import gzip
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from specdemo.errors import FileError
from specdemo.presentation import schema
from specdemo.presentation.explain import made_by
from specdemo.presentation.scripts import STYLES, bundle, text_of
from specdemo.presentation.verdict import headline
from specdemo.records import Comparison
from specdemo.ui.feed import recorded
from specdemo.ui.html.figures import race_figures
from specdemo.ui.html.parts import table_html
from specdemo.ui.share.picture import moving_picture, verdict_picture


def replay(comparison: Comparison) -> bytes:
    """The file's content."""
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(text_of("replay.html"))
    return page.render(
        title=f"{headline(comparison)}: {comparison.pair.name}",
        made_by=made_by(comparison),
        styles=Markup("\n".join(map(text_of, STYLES))),
        race=Markup(text_of("race.html")),
        script=Markup(bundle("replay.js")),
        figures=Markup(race_figures().replace("<", "\\u003c")),
        environment=table_html(("", ""), _environment(comparison), titled=True),
        events=b64encode(gzip.compress(recorded(comparison).everything.encode(), mtime=0)).decode(),
    ).encode()


def _environment(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """What the figures were measured on, in words."""
    for name, value in comparison.environment:
        yield name.replace("_", " "), "unknown" if value is None else str(value)
    for role, model in (("target", comparison.pair.target), ("draft", comparison.pair.draft)):
        if model is not None:
            yield role, f"{model.name}, {model.parameters:,} parameters, {model.weights}"


class Kind(NamedTuple):
    """A kind of file: what it is, its type, and what makes it."""

    what: str
    media_type: str
    make: Callable[[Comparison], bytes]


KINDS = {
    "html": Kind("one HTML file that replays the race offline", "text/html", replay),
    "gif": Kind("the race as a moving picture", "image/gif", moving_picture),
    "png": Kind("a picture of the verdict", "image/png", verdict_picture),
}


def unpacked(packed: str, most: int) -> Comparison:
    """The comparison in base64 of compressed JSON of at most `most` bytes, as the page sends it.

    Raises:
        FileError: it holds none, or more.
    """
    advice = "run again and share that"
    try:
        with gzip.open(BytesIO(b64decode(packed, validate=True))) as file:
            text = file.read(most + 1)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise FileError(f"This run was not sent as it should be; {advice}.") from error
    if len(text) > most:
        raise FileError(f"This run has more than {most:,} bytes; run with fewer tokens.")
    return schema.from_text(text, advice)
