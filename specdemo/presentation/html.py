"""Rounds, Markdown and tables as HTML. Text from models and users is escaped here, by `markupsafe`.

Each round and each token is an element with a `data-tip`: the lines shown on hover or focus. Classes set the colours;
underlines and strike-throughs repeat their meaning.

Markdown is formatted token by token as text arrives, so that each token keeps its colour. The parser covers what chat
models write: headings, bold text, inline code, code blocks and table rows. No text is dropped: marks such as `**` are
spans of their own, which the style sheet hides or shows. No output is revised: unclosed bold text and code end with
their paragraph, and table columns align only if the model aligned them. Earlier turns, which need no colours, are
rendered as a whole.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token as MarkdownToken
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from specdemo.metrics import FORMULAS, verify_cost
from specdemo.records import Comparison, Costs, DraftToken, Outcome, Round, Side, Token, TraceSource, Turn
from specdemo.strategies import SOURCES
from specdemo.summary import Figure, Summary, number

Style = Literal["text", "mark", "heading", "strong", "code", "block", "row", "rule"]

_PARTS = re.compile(r"(```|\*\*|`|\||\n|(?<![^\n])#{1,6}(?=\s|$))")
_ITEM = re.compile(r"\s*([-+*]|\d+[.)])(\s|$)")
_DASHES = re.compile(r"[-:\s]+")


class Span(NamedTuple):
    """Part of a token's text. `block`: number of the code block that it opens or belongs to, from 1; else 0."""

    text: str
    style: Style
    block: int = 0
    opens: bool = False


class Markdown:
    """Incremental Markdown parser for one text."""

    def __init__(self) -> None:
        self._blocks = 0
        self._fenced = self._info = self._code = self._strong = self._heading = self._row = self._closed = False
        self._at_start = True  # at the start of a line

    def spans(self, text: str) -> Iterator[Span]:
        """Yield the spans of the next token."""
        for part in filter(None, _PARTS.split(text)):
            yield self._span(part)
            self._at_start = part == "\n" or (self._at_start and part.isspace())

    def _span(self, part: str) -> Span:
        if part == "```" and (self._at_start or not self._code):
            return self._fence()
        if part == "\n":
            return self._line_end()
        self._closed = False
        if self._fenced:
            return Span(part, "mark" if self._info else "block", self._blocks)
        if self._at_start:
            self._begin_line(part)
        if part == "`":
            self._code = not self._code
            return Span(part, "mark")
        if self._code:
            return Span(part, "code")
        if part == "**":
            self._strong = not self._strong
            return Span(part, "mark")
        if self._row and (part == "|" or _DASHES.fullmatch(part)):
            return Span(part, "rule")
        if self._heading and not part.strip("#"):
            return Span(part, "mark")
        style: Style = "row" if self._row else "text"
        return Span(part, "heading" if self._heading else "strong" if self._strong else style)

    def _begin_line(self, part: str) -> None:
        heading = part.startswith("#") and not part.strip("#")
        if heading or part == "|" or _ITEM.match(part):  # these end a paragraph without a blank line
            self._strong = self._code = False
        self._heading, self._row = heading, part == "|"

    def _fence(self) -> Span:
        self._fenced = self._info = not self._fenced
        self._strong = self._code = False
        self._closed = not self._fenced
        self._blocks += self._fenced
        return Span("```", "mark", self._blocks, opens=self._fenced)

    def _line_end(self) -> Span:
        inside = self._fenced and not self._info
        if self._at_start:  # a blank line
            self._strong = self._code = False
        closed = self._closed  # only a mark, so no line is left when marks are hidden
        self._info = self._heading = self._row = self._closed = False
        if closed:
            return Span("\n", "mark")
        return Span("\n", "block" if inside else "text", self._blocks if inside else 0)


def render(text: str) -> str:
    """Render a complete Markdown text as HTML, with its markup escaped, and without links or external resources."""
    html: str = _RENDERER.render(text)
    return html


def _fence(self: RendererHTML, tokens: list[MarkdownToken], at: int, options: OptionsDict, env: EnvType) -> str:
    return f'<div class="block">{_COPY.format("")}{self.fence(tokens, at, options, env)}</div>'


_RENDERER = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "link", "autolink"])
_RENDERER.add_render_rule("fence", _fence)


_TURN = Markup(
    '<li><p class="said">{prompt}</p><div class="answer">{answer}</div><p class="written">{written}</p></li>'
)


def conversation_html(history: Sequence[Turn]) -> str:
    """Return the earlier turns of a chat, with the target's answers both rendered and as written."""
    turns = (
        _TURN.format(prompt=turn.prompt, answer=Markup(render(turn.answer)), written=turn.answer) for turn in history
    )
    return f'<ol class="turns">{Markup("").join(turns)}</ol>' if history else ""


_TABLE = Markup("<table><thead>{head}</thead><tbody>{rows}</tbody></table>")
_ROW = Markup("<tr>{}</tr>")
_HEAD = Markup("<th>{}</th>")
_CELL = Markup("<td>{}</td>")


def table_html(head: Sequence[str], rows: Iterable[Sequence[str]], *, titled: bool = False) -> Markup:
    """Return a table. `titled`: the first cell of each row is its title."""

    def row(cells: Sequence[str], titles: int) -> Markup:
        return _ROW.format(Markup("").join((_HEAD if at < titles else _CELL).format(c) for at, c in enumerate(cells)))

    body = Markup("").join(row(cells, int(titled)) for cells in rows)
    return _TABLE.format(head=row(head, len(head)), rows=body)


_ROUND = Markup('<span class="round" data-tip="{tip}">{tokens}</span>')
_TOKEN = Markup('<span class="{classes}" data-tip="{tip}"{attributes}>{text}</span>')
_INDEX = Markup(' data-index="{}"')
_SPAN = Markup('{button}<span class="md-{style}"{number}>{text}</span>')
_BLOCK = Markup(' data-block="{}"')
_COPY = Markup('<button type="button" class="copy" aria-label="Copy this code"{}></button>')
_UNKNOWN = "?"  # a proposal whose token is unknown


def round_html(
    step: Round, *, side: Side, number: int, first: int, source: TraceSource, markdown: Markdown | None = None
) -> str:
    """Return a round as HTML.

    Args:
        step: the round.
        side: plain rounds commit one token each, which needs no colour.
        number: the round's number; 0 is the prefill.
        first: index of its first committed token in the run.
        source: the source of its proposals.
        markdown: the text's parser, if it is Markdown.
    """
    tokens = Markup("").join(_tokens(step, side, first, source, markdown))
    return str(_ROUND.format(tip=_round_tip(step, side, number), tokens=tokens))


def _tokens(step: Round, side: Side, first: int, source: TraceSource, markdown: Markdown | None) -> Iterator[Markup]:
    accepted = step.accepted
    drafts = step.proposed or ()
    padded: list[DraftToken | None] = [*drafts[:accepted], *[None] * (accepted - len(drafts[:accepted]))]
    for offset, (token, draft) in enumerate(zip(step.committed[:accepted], padded, strict=False)):
        yield _committed(token, "accepted", first + offset, _tip("accepted proposal", draft, token, source), markdown)
    for draft in drafts[accepted:]:
        yield _refused(draft, source)
    for offset, token in enumerate(step.committed[accepted:], accepted):
        kind = "plain" if side == "plain" else "own"
        name = target_token_name(step) if side == "speculative" else "target's token"
        yield _committed(token, kind, first + offset, _tip(name, None, token, source), markdown)


def target_token_name(step: Round) -> str:
    """Name the token that the target adds to a round: correction, bonus, or the round's only token."""
    if not step.proposed:
        return "target's token"
    corrected = any(draft.verdict is Outcome.REJECTED for draft in step.proposed)
    return "correction token" if corrected else "bonus token"


def _committed(token: Token, kind: str, index: int, tip: str, markdown: Markdown | None) -> Markup:
    classes = f"token {kind}"
    if "\n" in token.text:
        classes += " break"
    if not token.text:
        classes += " empty"
    text = token.text if markdown is None else Markup("").join(map(_span, markdown.spans(token.text)))
    return _TOKEN.format(classes=classes, tip=tip, attributes=_INDEX.format(index), text=text)


def _span(span: Span) -> Markup:
    if span.style == "text":
        return escape(span.text)
    number = _BLOCK.format(span.block) if span.block else ""
    button = _COPY.format(number) if span.opens else ""
    return _SPAN.format(button=button, style=span.style, number=number, text=span.text)


def _refused(draft: DraftToken, source: TraceSource) -> Markup:
    text = _UNKNOWN if draft.id is None else draft.text.replace("\n", "↵")
    names = {
        Outcome.REJECTED: "rejected proposal",
        Outcome.DISCARDED: "discarded proposal: it followed a rejected one and was never judged",
    }
    tip = _tip(names[draft.verdict], draft, None, source)
    return _TOKEN.format(classes=f"token {draft.verdict}", tip=tip, attributes="", text=text)


def _tip(name: str, draft: DraftToken | None, token: Token | None, source: TraceSource) -> str:
    lines = [name]
    if draft is not None and draft.id is None:
        lines.append("the engine does not report its token")
    if draft is not None and draft.draft_probability is not None:
        lines.append(f"draft's probability {draft.draft_probability:.3f} ({source})")
    probability = token.probability if token else draft and draft.target_probability
    if probability is not None:
        lines.append(f"target's probability {probability:.3f}")
    if token is not None and token.entropy is not None:
        lines.append(f"the target's entropy here {token.entropy:.2f} bits")
    if token is not None and token.alternatives:
        likeliest = (f"{choice.text!r} {choice.probability:.3f}" for choice in token.alternatives)
        lines.append(f"its likeliest tokens: {', '.join(likeliest)}")
    if token is not None and not token.text:
        lines.append("no text of its own: part of a character, or a special token")
    return "\n".join(lines)


def _round_tip(step: Round, side: Side, number: int) -> str:
    if number == 0:
        return f"prefill, {step.seconds * 1000:.2f} ms"
    if side == "plain":
        return f"step {number}, {step.seconds * 1000:.2f} ms"
    proposed = "number of proposals unknown" if step.proposed is None else f"{len(step.proposed)} proposed"
    proposed += f" by {SOURCES[step.source]}" if step.source is not None else ""
    return (
        f"round {number}, {step.seconds * 1000:.2f} ms: "
        f"{proposed}, {step.accepted} accepted, {len(step.committed)} committed"
    )


_TERMS = (
    ("τ", "mean_accepted_length", "mean acceptance length, the tokens that a round commits on average"),
    ("α", "acceptance_rate", "acceptance rate, the share of proposals that the target accepts"),
    ("speedup", "speedup", "how many times as fast the speculative side decodes"),
)
_FIGURE = Markup("<div{wide}><dt>{name}</dt><dd><b>{value}</b>{plain}<small>{formula}</small></dd></div>")
_WIDE = 12  # characters that fit one column
_PLAIN = Markup("<span>plain {}</span>")
_COSTS = Markup("<details><summary>v(n) for n = 1 … {last}</summary><p>{values}</p><p>{formula}</p></details>")


def figures_html(comparison: Comparison, found: Summary) -> str:
    """Return a definition list of all figures, the source of the proposals, and the measured step costs."""
    tiles = Markup("").join(_tile(figure) for figure in found.figures)
    remarks = Markup("").join(Markup("<p>{}</p>").format(note) for note in found.notes)
    costs = Markup("") if comparison.costs is None else _costs(comparison.costs)
    return str(Markup("<dl>{}</dl>{}{}").format(tiles, remarks, costs))


def grounds_html(paragraphs: Iterable[str]) -> str:
    """Return the evidence for a conclusion: paragraphs, then each term once, with its formula on hover."""
    text = Markup("").join(map(_paragraph, filter(None, paragraphs)))
    terms = Markup(" · ").join(
        Markup('<dfn title="{}">{}</dfn>: {}').format(FORMULAS[name], term, words) for term, name, words in _TERMS
    )
    return str(text + Markup('<p class="terms">{}</p>').format(terms))


def _paragraph(text: str) -> Markup:
    """Return sentences, followed by commands on lines of their own."""
    sentences, *lines = text.splitlines()
    commands = Markup("").join(Markup("<br><code>{}</code>").format(line) for line in lines)
    return Markup("<p>{}{}</p>").format(sentences, commands)


def _tile(figure: Figure) -> Markup:
    plain = _PLAIN.format(figure.plain) if figure.plain else ""
    wide = Markup(' class="wide"') if len(figure.speculative) > _WIDE else ""
    return _FIGURE.format(wide=wide, name=figure.name, value=figure.speculative, plain=plain, formula=figure.formula)


def _costs(costs: Costs) -> Markup:
    tokens = range(1, len(costs.verify) + 1)
    values = " · ".join(number(verify_cost(costs, n)) for n in tokens)
    return _COSTS.format(
        last=len(tokens), values=values, formula=f"v(n) = {FORMULAS['verify_cost']}, measured apart from this run"
    )
