"""Rounds as HTML. Everything a model or a user wrote is escaped here, by `markupsafe`.

Each round and each token is an element with a `data-tip`: the lines shown on hover or focus.
Colours come from the style sheet by class; underlines and strike-throughs repeat their meaning.
"""

from collections.abc import Iterator

from markupsafe import Markup, escape

from specdemo.records import DraftToken, Round, Side, Token, TraceSource, Verdict
from specdemo.strategies import SOURCES
from specdemo.ui.html.markdown import Markdown, Piece

_ROUND = Markup('<span class="round" data-tip="{tip}">{tokens}</span>')
_TOKEN = Markup('<span class="{classes}" data-tip="{tip}"{attributes}>{text}</span>')
_INDEX = Markup(' data-index="{}"')
_PIECE = Markup('{button}<span class="md-{style}"{number}>{text}</span>')
_BLOCK = Markup(' data-block="{}"')
_COPY = Markup('<button type="button" class="copy" aria-label="Copy this code"{}></button>')
_UNKNOWN = "?"  # a proposal of which only the number is known


def round_html(
    step: Round, *, side: Side, number: int, first: int, source: TraceSource, markdown: Markdown | None = None
) -> str:
    """One round.

    Args:
        step: the round.
        side: plain rounds commit one token each, which needs no colour.
        number: of the round; 0 is the prefill.
        first: index of its first committed token in the run.
        source: how its proposals are known.
        markdown: what follows the text, if it is Markdown.
    """
    tokens = Markup("").join(_tokens(step, side, first, source, markdown))
    return str(_ROUND.format(tip=_round_tip(step, side, number), tokens=tokens))


def _tokens(step: Round, side: Side, first: int, source: TraceSource, markdown: Markdown | None) -> Iterator[Markup]:
    accepted = step.accepted
    drafts = step.proposed or ()
    known: list[DraftToken | None] = [*drafts[:accepted], *[None] * (accepted - len(drafts[:accepted]))]
    for offset, (token, draft) in enumerate(zip(step.committed[:accepted], known, strict=False)):
        yield _committed(token, "accepted", first + offset, _tip("accepted draft", draft, token, source), markdown)
    for draft in drafts[accepted:]:
        yield _refused(draft, source)
    for offset, token in enumerate(step.committed[accepted:], accepted):
        kind = "plain" if side == "plain" else "own"
        name = _own_name(step) if side == "speculative" else "target's choice"
        yield _committed(token, kind, first + offset, _tip(name, None, token, source), markdown)


def _own_name(step: Round) -> str:
    if not step.proposed:
        return "token of the target"
    corrected = any(draft.verdict is Verdict.REJECTED for draft in step.proposed)
    return "correction token of the target" if corrected else "bonus token of the target"


def _committed(token: Token, kind: str, index: int, tip: str, markdown: Markdown | None) -> Markup:
    classes = f"token {kind}"
    if "\n" in token.text:
        classes += " break"
    if not token.text:
        classes += " empty"
    text = token.text if markdown is None else Markup("").join(map(_piece, markdown.pieces(token.text)))
    return _TOKEN.format(classes=classes, tip=tip, attributes=_INDEX.format(index), text=text)


def _piece(piece: Piece) -> Markup:
    if piece.style == "text":
        return escape(piece.text)
    number = _BLOCK.format(piece.block) if piece.block else ""
    button = _COPY.format(number) if piece.opens else ""
    return _PIECE.format(button=button, style=piece.style, number=number, text=piece.text)


def _refused(draft: DraftToken, source: TraceSource) -> Markup:
    text = _UNKNOWN if draft.id is None else draft.text.replace("\n", "↵")
    names = {
        Verdict.REJECTED: "rejected draft",
        Verdict.DISCARDED: "discarded draft: it followed a rejected one and was never judged",
    }
    tip = _tip(names[draft.verdict], draft, None, source)
    return _TOKEN.format(classes=f"token {draft.verdict}", tip=tip, attributes="", text=text)


def _tip(name: str, draft: DraftToken | None, token: Token | None, source: TraceSource) -> str:
    lines = [name]
    if draft is not None and draft.id is None:
        lines.append("this engine does not report which token it was")
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
