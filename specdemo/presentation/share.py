"""A finished run as files to share: a page that replays it offline, and pictures in the page's colours.

The HTML file contains the page's own player, panes and style. Its charts are drawn by `sketch.js`, which supports the
few kinds of traces that a race needs; with Plotly the file would take 5 MB. Browsers do not load modules from local
files, so all modules are bundled into one script: each becomes a block, after the modules that it imports, and puts
its exports into a table. This relies on the modules' form: named imports and exports, each on lines of their own. The
events are compressed, and the content security policy forbids all requests.
"""

import gzip
import re
import zlib
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from itertools import accumulate
from textwrap import wrap
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from specdemo.errors import FileError
from specdemo.files import ASSETS, colours
from specdemo.presentation import schema
from specdemo.presentation.charts import race_figures
from specdemo.presentation.feed import feed_of
from specdemo.presentation.html import table_html
from specdemo.records import SIDES, Comparison, Side
from specdemo.summary import made_by, pieces, prompt_of, summarise


def replay(comparison: Comparison) -> bytes:
    """Return the HTML file that replays a comparison."""
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(text_of("replay.html"))
    return page.render(
        title=f"{summarise(comparison).headline}: {comparison.pair.name}",
        made_by=made_by(comparison),
        styles=Markup("\n".join(map(text_of, STYLES))),
        race=Markup(text_of("race.html")),
        script=Markup(bundle("replay.js")),
        figures=Markup(race_figures().replace("<", "\\u003c")),
        environment=table_html(("", ""), _environment(comparison), titled=True),
        events=b64encode(gzip.compress(feed_of(comparison).everything.encode(), mtime=0)).decode(),
    ).encode()


def _environment(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield the environment and the models of a comparison as rows of text."""
    for name, value in comparison.environment:
        yield name.replace("_", " "), "unknown" if value is None else str(value)
    for role, model in (("target", comparison.pair.target), ("draft", comparison.pair.draft)):
        if model is not None:
            yield role, f"{model.name}, {model.parameters:,} parameters, {model.weights}"


WIDTH, HEIGHT = 880, 500
_EDGE, _GAP, _LINE = 22, 16, 27
_TOP = 118  # y of the panes
_PANE = (WIDTH - 2 * _EDGE - _GAP) // 2, HEIGHT - _TOP - 46
_INNER = _PANE[0] - 28  # width of a pane's text
_BESIDE = 230  # width to the right of the bars
_HANGING = 2  # characters that may extend beyond the text's width
_WATCH_SECONDS = 5.0  # length of the animation
_STILL_SECONDS = 4.0  # length of the final frame
_FRAMES = 10  # per second
_COLOURS = 64
_FONTS = ("DejaVuSans.ttf", "Arial.ttf", "Helvetica.ttc", "LiberationSans-Regular.ttf", "NotoSans-Regular.ttf")
_BACKGROUNDS = {"accepted": "accepted-soft", "own": "own-soft", "rejected": "rejected-soft"}
_INKS = {"accepted": "ink", "own": "ink", "rejected": "rejected", "plain": "ink", "prompt": "mute"}
_TONES = {"faster": "accepted", "slower": "rejected", "same": "ink"}


def verdict_picture(comparison: Comparison) -> bytes:
    """Return the end of the race and its conclusion as a PNG."""
    return _encoded(_Canvas(comparison).frame(None), "PNG")


def moving_picture(comparison: Comparison) -> bytes:
    """Return the race from start to conclusion as a looping GIF."""
    canvas = _Canvas(comparison)
    moving = round(_WATCH_SECONDS * _FRAMES)
    frames = [canvas.frame(canvas.seconds * number / moving) for number in range(moving)]
    last = canvas.frame(None)
    palette = last.quantize(_COLOURS, dither=Image.Dither.NONE)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in (*frames, last))
    durations = [round(1000 / _FRAMES)] * moving + [round(_STILL_SECONDS * 1000)]
    out = BytesIO()
    first.save(out, "GIF", save_all=True, append_images=others, duration=durations, loop=0, optimize=True)
    return out.getvalue()


class _Placed(NamedTuple):
    """A word of the prompt or of a piece, and its position in the pane's text, in pixels."""

    text: str
    kind: str
    x: int
    y: int


class _Text:
    """A side's whole text, laid out once, and the end of each round on the side's own clock."""

    def __init__(self, comparison: Comparison, side: Side) -> None:
        run = comparison.side(side)
        steps = [run.prefill, *run.rounds]
        self.done = list(accumulate((step.seconds for step in run.rounds), initial=0.0))
        self.tokens = list(accumulate(len(step.committed) for step in steps))
        self.placed: list[list[_Placed]] = []
        self._x = self._y = 0
        prompt = list(self._place(prompt_of(comparison), "prompt"))
        self.placed = [[placed for piece in pieces(step, side) for placed in self._place(*piece)] for step in steps]
        self.placed[0][:0] = prompt

    def _place(self, text: str, kind: str) -> Iterator["_Placed"]:
        """Lay out the words of a piece after the text so far."""
        for word in re.findall(r"\n|[^\S\n]*[^\s]+|[^\S\n]+", text):
            width = round(_font(15).getlength(word))
            hangs = len(word) <= _HANGING and not word.strip().isalnum()  # punctuation stays with its word
            if word == "\n" or (self._x + width > _INNER and not hangs):
                self._x, self._y, word = 0, self._y + _LINE, word.lstrip()
                width = round(_font(15).getlength(word))
            if word:
                yield _Placed(word, kind, self._x, self._y)
                self._x += width

    def rounds_at(self, seconds: float | None) -> int:
        """Return the number of rounds done by then; None: at the end."""
        return len(self.done) if seconds is None else bisect_right(self.done, seconds)


class _Canvas:
    """Renderer of a race at any moment."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._conclusion = summarise(comparison)
        self._texts = {side: _Text(comparison, side) for side in SIDES}
        self.seconds = max(text.done[-1] for text in self._texts.values())
        self._goal = max(text.tokens[-1] for text in self._texts.values())

    def frame(self, seconds: float | None) -> Image.Image:
        """Draw the race at this time on both clocks; None: its end, with the conclusion."""
        image = Image.new("RGB", (WIDTH, HEIGHT), _colour("bg"))
        pen = ImageDraw.Draw(image)
        for number, side in enumerate(SIDES):
            shown = self._texts[side].rounds_at(seconds)
            self._bar(pen, side, number, shown, seconds)
            image.paste(self._pane(side, shown), (_EDGE + number * (_PANE[0] + _GAP), _TOP))
        if seconds is None:
            self._conclude(pen)
        else:
            pen.text((_EDGE, 12), "Plain against speculative decoding", _colour("ink"), _font(20))
            pen.text((_EDGE, 40), self._pace(), _colour("mute"), _font(13))
        made = _cut(made_by(self._comparison), WIDTH - 2 * _EDGE, 12)
        pen.text((_EDGE, HEIGHT - 32), made, _colour("mute"), _font(12))
        return image

    def _pace(self) -> str:
        factor = _WATCH_SECONDS / self.seconds if self.seconds else 1.0
        words = f"{factor:.1f}× slower" if factor >= 1 else f"{1 / factor:.1f}× faster"
        return f"Played back {words} than it ran, each side on its own clock."

    def _conclude(self, pen: ImageDraw.ImageDraw) -> None:
        conclusion = self._conclusion
        pen.text((_EDGE, 8), conclusion.headline, _colour(_TONES[conclusion.direction]), _font(28))
        words = f"{conclusion.sentence} {conclusion.agreement.capitalize()}."
        for number, line in enumerate(wrap(words, 110)[:2]):
            pen.text((_EDGE, 44 + 16 * number), line, _colour("mute"), _font(13))

    def _bar(self, pen: ImageDraw.ImageDraw, side: Side, number: int, shown: int, seconds: float | None) -> None:
        """Draw a side's bar: tokens on its clock while it runs, seconds at the end, as on the page."""
        ends = tuple(self._conclusion.seconds.values()) if seconds is None else ()
        share, words = self._progress(side, shown, seconds) if not ends else self._finish(ends, number)
        top, left, right = 82 + 18 * number, _EDGE + 90, WIDTH - _EDGE - _BESIDE
        pen.text((_EDGE, top - 6), side, _colour("mute"), _font(13))
        pen.rounded_rectangle((left, top - 2, right, top + 8), 5, _colour("line"))
        reached = left + round((right - left) * share)
        if reached > left + 10:
            colour = _colour("plain" if side == "plain" else "accepted")
            pen.rounded_rectangle((left, top - 2, reached, top + 8), 5, colour)
        pen.text((right + 12, top - 6), words, _colour("ink"), _font(13))

    def _progress(self, side: Side, shown: int, seconds: float | None) -> tuple[float, str]:
        """Return a side's share of all tokens after `shown` rounds, and its tokens and clock in words."""
        text = self._texts[side]
        tokens = text.tokens[shown - 1]
        clock = text.done[-1] if seconds is None or shown == len(text.done) else seconds
        return tokens / self._goal, f"{tokens} tokens · {_duration(clock)}"

    def _finish(self, ends: tuple[float, ...], number: int) -> tuple[float, str]:
        """Return a side's time as a share of the longer one, and in words."""
        difference = self._conclusion.difference if SIDES[number] == "speculative" else None
        return ends[number] / (max(ends) or 1.0), " · ".join(filter(None, (_duration(ends[number]), difference)))

    def _pane(self, side: Side, shown: int) -> Image.Image:
        """Draw the pane of a side, scrolled to the end of its text."""
        image = Image.new("RGB", _PANE, _colour("card"))
        pen = ImageDraw.Draw(image)
        rows = self._texts[side].placed[:shown]
        bottom = max((placed.y for row in rows for placed in row), default=0) + _LINE
        up = max(bottom - _PANE[1] + 24, 0)
        for row in rows:
            for placed in row:
                _draw(pen, placed, 14, 12 - up)
        pen.rectangle((0, 0, _PANE[0] - 1, _PANE[1] - 1), outline=_colour("line"))
        return image


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _draw(pen: ImageDraw.ImageDraw, placed: _Placed, left: int, top: int) -> None:
    text, kind, x, y = placed.text, placed.kind, placed.x + left, placed.y + top
    if y < -_LINE:
        return
    right = x + round(_font(15).getlength(text))
    if kind in _BACKGROUNDS:
        pen.rectangle((x, y - 1, right - 1, y + 20), _colour(_BACKGROUNDS[kind]))
    pen.text((x, y), text, _colour(_INKS[kind]), _font(15))
    if kind in ("accepted", "own"):
        pen.line((x, y + 20, right - 1, y + 20), _colour(kind), 2 if kind == "accepted" else 1)
    if kind == "rejected":
        pen.line((x, y + 10, right - 1, y + 10), _colour("rejected"), 1)


def _cut(text: str, width: int, size: int) -> str:
    """Shorten a text to fit."""
    while _font(size).getlength(text) > width:
        text = text[:-2].rstrip() + "…"
    return text


def _encoded(image: Image.Image, kind: str) -> bytes:
    out = BytesIO()
    image.save(out, kind, optimize=True)
    return out.getvalue()


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return an installed font with many scripts; otherwise Pillow's own, which has only Latin."""
    for name in _FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def _colour(name: str) -> str:
    return colours()[name]


PAGE = ASSETS / "page"
STYLES = ("tokens.css", "race.css", "boards.css")
"""The page's style sheets, in order; `gradio.css` arranges Gradio's components and is not needed in replays."""
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:class|function|const) (\w+))", re.MULTILINE)
_NEEDED = re.compile(r'^import [^"]* from "\./([\w.]+)";\n', re.MULTILINE)
_ANY = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


@cache
def bundle(entry: str) -> str:
    """Return a module and all its imports as one script."""
    blocks = "".join(map(_block, modules(entry)))
    return f"const modules = {{}};\n{blocks}"


def modules(entry: str) -> list[str]:
    """Return a module and all its imports, each after its own imports."""
    return list(dict.fromkeys(_order(entry)))


def _order(name: str) -> Iterator[str]:
    for needed in _NEEDED.findall(text_of(name)):
        yield from _order(needed)
    yield name


def _block(name: str) -> str:
    text = _IMPORT.sub(lambda found: f'const {{{found[1]}}} = modules["{found[2]}"];\n', text_of(name))
    exports = ", ".join(found[2] for found in _EXPORT.finditer(text))
    text = _EXPORT.sub(r"\1", text)
    left = _ANY.search(text)
    assert left is None, f"{name} has an import or export of another form: {left and left[0]}"
    return f'{{\n{text}\nmodules["{name}"] = {{ {exports} }};\n}}\n'


def text_of(name: str) -> str:
    """Read one of the page's files."""
    return (PAGE / name).read_text(encoding="utf-8")


class FileKind(NamedTuple):
    """A kind of file: its description, its media type, and the function that makes it."""

    what: str
    media_type: str
    make: Callable[[Comparison], bytes]


FILE_KINDS = {
    "html": FileKind("one HTML file that replays the race offline", "text/html", replay),
    "gif": FileKind("the race as an animation", "image/gif", moving_picture),
    "png": FileKind("a picture of the conclusion", "image/png", verdict_picture),
}


def unpack(packed: str, most: int) -> Comparison:
    """Read a comparison from base64 of gzipped JSON, as sent by the page; the JSON may have at most `most` bytes.

    Raises:
        FileError: it is not a comparison, or too large.
    """
    advice = "run again and share that"
    try:
        with gzip.open(BytesIO(b64decode(packed, validate=True))) as file:
            text = file.read(most + 1)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise FileError(f"This run arrived damaged; {advice}.") from error
    if len(text) > most:
        raise FileError(f"This run has more than {most:,} bytes; run with fewer tokens.")
    return schema.from_text(text, advice)
