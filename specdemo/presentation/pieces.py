"""A round's text in pieces, each with what became of it, in the order in which they are read.

For whatever shows coloured text outside the page: the terminal, and pictures.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from specdemo.records import Round, Run, Side, Verdict

PieceKind = Literal["plain", "accepted", "own", "rejected"]


class Piece(NamedTuple):
    """Some text, and whether it was an accepted draft, the target's own, or a rejected draft in its place."""

    text: str
    kind: PieceKind


def pieces(step: Round, side: Side = "speculative") -> Iterator[Piece]:
    """The pieces of a round: accepted drafts, the rejected one if it is known, then the target's own tokens."""
    accepted = step.accepted
    for token in step.committed[:accepted]:
        yield Piece(token.text, "accepted")
    for draft in (step.proposed or ())[accepted:]:
        if draft.verdict is Verdict.REJECTED and draft.id is not None:
            yield Piece(draft.text.replace("\n", "↵"), "rejected")
    for token in step.committed[accepted:]:
        yield Piece(token.text, "plain" if side == "plain" else "own")


def pieces_of(run: Run, side: Side = "speculative") -> Iterator[Piece]:
    """The pieces of a whole run, its prefill first."""
    for step in (run.prefill, *run.rounds):
        yield from pieces(step, side)
