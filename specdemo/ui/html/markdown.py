"""Markdown as a text arrives, token by token, so that each token keeps its colour while its text is set as Markdown.

What is told apart are headings, bold text and code, in lines and in blocks, as chat models write them. Nothing is
left out: marks such as `**` are pieces of their own, which the style sheet hides or shows. Earlier turns, which need
no colours, are rendered as a whole.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

Style = Literal["text", "mark", "heading", "strong", "code", "block"]

_PARTS = re.compile(r"(```|\*\*|`|\n|(?<![^\n])#{1,6}(?=\s|$))")
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
        self._fenced = self._info = self._code = self._strong = self._heading = False
        self._at_start = True  # of a line

    def pieces(self, text: str) -> Iterator[Piece]:
        """What a token adds."""
        for part in filter(None, _PARTS.split(text)):
            yield self._piece(part)
            self._at_start = part == "\n" or (self._at_start and part.isspace())

    def _piece(self, part: str) -> Piece:
        if part == "```" and not self._code:
            return self._fence()
        if part == "\n":
            return self._line_end()
        if self._fenced:
            return Piece(part, "mark" if self._info else "block", self._blocks)
        if part == "`":
            self._code = not self._code
            return Piece(part, "mark")
        if self._code:
            return Piece(part, "code")
        if part == "**":
            self._strong = not self._strong
            return Piece(part, "mark")
        if part.startswith("#") and not part.strip("#") and self._at_start:
            self._heading = True
            return Piece(part, "mark")
        return Piece(part, "heading" if self._heading else "strong" if self._strong else "text")

    def _fence(self) -> Piece:
        self._fenced = self._info = not self._fenced
        self._blocks += self._fenced
        return Piece("```", "mark", self._blocks, opens=self._fenced)

    def _line_end(self) -> Piece:
        inside = self._fenced and not self._info
        self._info = self._code = self._heading = self._strong = False
        return Piece("\n", "block" if inside else "text", self._blocks if inside else 0)


def rendered(text: str) -> str:
    """A whole text as HTML: markup in it is escaped, and it neither links nor loads anything."""
    html: str = _RENDERER.render(text)
    return html


def _fence(self: RendererHTML, tokens: list[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    return f'<div class="block">{_COPY}{self.fence(tokens, at, options, env)}</div>'


_RENDERER = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "link", "autolink"])
_RENDERER.add_render_rule("fence", _fence)
