"""Markdown as a text arrives, token by token, so that each token keeps its colour while its text is set as Markdown.

What is told apart are headings, bold text, code, in lines and in blocks, and rows of tables, as chat models write
them. Nothing is left out: marks such as `**` are pieces of their own, which the style sheet hides or shows. Earlier
turns, which need no colours, are rendered as a whole.

Nothing that was sent is taken back: bold text and code that are never closed end with their paragraph, and rows of a
table do not line up unless the model lined them up.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

from specdemo.records import Turn

Style = Literal["text", "mark", "heading", "strong", "code", "block", "row", "rule"]

_PARTS = re.compile(r"(```|\*\*|`|\||\n|(?<![^\n])#{1,6}(?=\s|$))")
_ITEM = re.compile(r"\s*([-+*]|\d+[.)])(\s|$)")
_DASHES = re.compile(r"[-:\s]+")
_COPY = '<button type="button" class="copy" aria-label="Copy this code"></button>'


class Piece(NamedTuple):
    """Part of a token's text. `block` numbers the code block that it opens or belongs to, from 1."""

    text: str
    style: Style
    block: int = 0
    opens: bool = False


class Markdown:
    """Follows one text."""

    def __init__(self) -> None:
        self._blocks = 0
        self._fenced = self._info = self._code = self._strong = self._heading = self._row = self._closed = False
        self._at_start = True  # of a line

    def pieces(self, text: str) -> Iterator[Piece]:
        """What a token adds."""
        for part in filter(None, _PARTS.split(text)):
            yield self._piece(part)
            self._at_start = part == "\n" or (self._at_start and part.isspace())

    def _piece(self, part: str) -> Piece:
        if part == "```" and (self._at_start or not self._code):
            return self._fence()
        if part == "\n":
            return self._line_end()
        self._closed = False
        if self._fenced:
            return Piece(part, "mark" if self._info else "block", self._blocks)
        if self._at_start:
            self._begin_line(part)
        if part == "`":
            self._code = not self._code
            return Piece(part, "mark")
        if self._code:
            return Piece(part, "code")
        if part == "**":
            self._strong = not self._strong
            return Piece(part, "mark")
        if self._row and (part == "|" or _DASHES.fullmatch(part)):
            return Piece(part, "rule")
        if self._heading and not part.strip("#"):
            return Piece(part, "mark")
        style: Style = "row" if self._row else "text"
        return Piece(part, "heading" if self._heading else "strong" if self._strong else style)

    def _begin_line(self, part: str) -> None:
        heading = part.startswith("#") and not part.strip("#")
        if heading or part == "|" or _ITEM.match(part):  # what ends a paragraph without a blank line
            self._strong = self._code = False
        self._heading, self._row = heading, part == "|"

    def _fence(self) -> Piece:
        self._fenced = self._info = not self._fenced
        self._strong = self._code = False
        self._closed = not self._fenced
        self._blocks += self._fenced
        return Piece("```", "mark", self._blocks, opens=self._fenced)

    def _line_end(self) -> Piece:
        inside = self._fenced and not self._info
        if self._at_start:  # a blank line
            self._strong = self._code = False
        closed = self._closed  # the line is only a mark, and leaves no line where marks are hidden
        self._info = self._heading = self._row = self._closed = False
        if closed:
            return Piece("\n", "mark")
        return Piece("\n", "block" if inside else "text", self._blocks if inside else 0)


def rendered(text: str) -> str:
    """A whole text as HTML: markup in it is escaped, and it neither links nor loads anything."""
    html: str = _RENDERER.render(text)
    return html


def _fence(self: RendererHTML, tokens: list[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    return f'<div class="block">{_COPY}{self.fence(tokens, at, options, env)}</div>'


_RENDERER = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "link", "autolink"])
_RENDERER.add_render_rule("fence", _fence)


_TURN = Markup(
    '<li><p class="said">{prompt}</p><div class="answer">{answer}</div><p class="written">{written}</p></li>'
)


def conversation_html(history: Sequence[Turn]) -> str:
    """What was said so far; both sides read the target's own answers, shown rendered or as written."""
    turns = (
        _TURN.format(prompt=turn.prompt, answer=Markup(rendered(turn.answer)), written=turn.answer)
        for turn in history
    )
    return f'<ol class="turns">{Markup("").join(turns)}</ol>' if history else ""
