"""A race as a looping GIF in the page's colours: both texts with their outcomes, and the conclusion at the end."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from itertools import accumulate
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

from specdemo.errors import capitalised
from specdemo.files import colours
from specdemo.records import SIDES, Comparison, Side
from specdemo.results.summary import Summary, summarise
from specdemo.results.words import pieces, prompt_of
from specdemo.text import counted

SIZE = WIDTH, HEIGHT = 880, 520
_EDGE, _GAP, _LINE, _TOP = 22, 16, 27, 120
_PANE = (WIDTH - 2 * _EDGE - _GAP) // 2, HEIGHT - _TOP - 74
_PLAY_SECONDS, _END_SECONDS, _FRAMES = 5.0, 4.0, 10  # of the race, of the conclusion; frames per second
_COLOURS = 64  # of the palette: enough for sharp text, in a file below a megabyte
_FONTS = ("DejaVuSans.ttf", "Arial.ttf", "Helvetica.ttc", "LiberationSans-Regular.ttf", "NotoSans-Regular.ttf")
_TEXT_COLOURS = {"rejected": "rejected", "prompt": "mute"}
_TONES = {"faster": "accepted", "slower": "rejected"}
_LEGEND = (("accepted", "accepted"), ("rejected", "rejected"), ("target", "correction or bonus"))

PlacedWord = tuple[str, str, int, int]  # a word, its kind, and its position in its pane, in pixels


class _Text:
    """A side's whole text, laid out once, and the end of each round on the side's own clock."""

    def __init__(self, comparison: Comparison, side: Side) -> None:
        run = comparison.side(side)
        steps = [run.prefill, *run.rounds]
        self.round_ends = list(accumulate((step.seconds for step in run.rounds), initial=0.0))
        self.tokens = list(accumulate(len(step.committed) for step in steps))
        self._x = self._y = 0
        prompt = list(self._lay_out(prompt_of(comparison), "prompt"))
        self.rows = [[word for piece in pieces(step, side) for word in self._lay_out(*piece)] for step in steps]
        self.rows[0][:0] = prompt

    def _lay_out(self, text: str, kind: str) -> Iterator[PlacedWord]:
        for word in re.findall(r"\n|[^\S\n]*[^\s]+|[^\S\n]+", text):
            punctuation = len(word) <= 2 and not word.strip().isalnum()  # stays with its word
            if word == "\n" or (self._x + _width(word, 15) > _PANE[0] - 28 and not punctuation):
                self._x, self._y, word = 0, self._y + _LINE, word.lstrip()
            if word:
                yield word, kind, self._x, self._y
                self._x += _width(word, 15)


def animation(comparison: Comparison) -> bytes:
    texts, summary = {side: _Text(comparison, side) for side in SIDES}, summarise(comparison)
    seconds = max(text.round_ends[-1] for text in texts.values())
    count = round(_PLAY_SECONDS * _FRAMES)
    times = [*(seconds * number / count for number in range(count)), None]
    frames = [_frame(texts, summary, seconds, at) for at in times]
    palette = frames[-1].quantize(_COLOURS, dither=Image.Dither.NONE)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    durations, out = [round(1000 / _FRAMES)] * count + [round(_END_SECONDS * 1000)], BytesIO()
    first.save(out, "GIF", save_all=True, append_images=others, duration=durations, loop=0, optimize=True)
    return out.getvalue()


def _frame(texts: dict[Side, _Text], summary: Summary, seconds: float, at: float | None) -> Image.Image:
    """Draw both sides `at` a time on their clocks, or if None at the end, with the conclusion."""
    image = Image.new("RGB", SIZE, colours()["bg"])
    draw = ImageDraw.Draw(image)
    goal = max(text.tokens[-1] for text in texts.values())
    for number, (side, text) in enumerate(texts.items()):
        shown = len(text.round_ends) if at is None else bisect_right(text.round_ends, at)
        clock = text.round_ends[-1] if at is None else min(at, text.round_ends[-1])
        tokens = text.tokens[shown - 1]
        share, label = tokens / goal, f"{counted(tokens, 'token')} · {_duration(clock)}"
        if at is None and summary.seconds:
            total = summary.seconds[side]
            average = " on average" if summary.runs > 1 else ""
            share, label = total / (max(summary.seconds.values()) or 1), _duration(total) + average
        y, left, right = _TOP - 36 + 18 * number, _EDGE + 90, WIDTH - _EDGE - 230
        draw.rectangle((left, y, right, y + 9), colours()["line"])
        colour = colours()["plain" if side == "plain" else "accepted"]
        draw.rectangle((left, y, left + (right - left) * share, y + 9), colour)
        _write(draw, side, _EDGE, y - 4, 13, "mute")
        _write(draw, label, right + 12, y - 4, 13, "ink")
        image.paste(_pane(text.rows[:shown]), (_EDGE + number * (_PANE[0] + _GAP), _TOP))
    if at is None:
        _write(draw, summary.headline, _EDGE, 10, 24, _TONES.get(summary.direction, "ink"))
        _write(draw, summary.pooled, _EDGE + _width(summary.headline, 24) + 12, 18, 13, "mute")
        said = summary.expectation or summary.sentence
        _write(draw, f"{said} {capitalised(summary.agreement)}.", _EDGE, 42, 13, "mute")
    else:
        factor = _PLAY_SECONDS / seconds if seconds else 1
        pace = f"{factor:.1f}× slower" if factor >= 1 else f"{1 / factor:.1f}× faster"
        _write(draw, "Plain against speculative decoding", _EDGE, 10, 24, "ink")
        _write(draw, f"Played {pace} than it ran, each side on its own clock.", _EDGE, 42, 13, "mute")
    x = _EDGE
    for kind, name in _LEGEND:
        _word(draw, (name, kind, x, HEIGHT - 66), 13)
        x += _width(name, 13) + 20
    _write(draw, summary.made_by, _EDGE, HEIGHT - 40, 12, "mute")
    return image


def _write(draw: ImageDraw.ImageDraw, text: str, x: int, y: int, size: int, colour: str) -> None:
    lines = wrap(text, round((WIDTH - x - _EDGE) / _font(size).getlength("n")))[:2]
    draw.multiline_text((x, y), "\n".join(lines), colours()[colour], _font(size), spacing=4)


def _pane(rows: list[list[PlacedWord]]) -> Image.Image:
    image = Image.new("RGB", _PANE, colours()["card"])
    draw = ImageDraw.Draw(image)
    words = [word for row in rows for word in row]
    scroll = max(max((y for *_, y in words), default=0) + _LINE - _PANE[1] + 24, 0)
    for text, kind, x, y in words:
        if y >= scroll - _LINE:
            _word(draw, (text, kind, x + 14, y + 12 - scroll), 15)
    draw.rectangle((0, 0, _PANE[0] - 1, _PANE[1] - 1), outline=colours()["line"])
    return image


def _word(draw: ImageDraw.ImageDraw, placed: PlacedWord, size: int) -> None:
    text, kind, x, y = placed
    right = x + _width(text, size)
    if kind in ("accepted", "target", "rejected"):
        draw.rectangle((x, y - 1, right - 1, y + size + 5), colours()[f"{kind}-soft"])
        line = y + (10 if kind == "rejected" else size + 5)
        draw.line((x, line, right - 1, line), colours()[kind], 2 if kind == "accepted" else 1)
    draw.text((x, y), text, colours()[_TEXT_COLOURS.get(kind, "ink")], _font(size))


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _width(text: str, size: int) -> int:
    return round(_font(size).getlength(text))


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return an installed font with many scripts, or else Pillow's own, which has only Latin."""
    for name in _FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)
