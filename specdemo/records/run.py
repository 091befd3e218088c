"""One side of a comparison: a prefill, and rounds of proposed and committed tokens."""

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field

from specdemo.records.base import MOST, TICK, Count, Probability, Record, Seconds, Share
from specdemo.strategies import Source

FinishReason = Literal["stop", "length", "cancelled", "failed", "absent"]
"""End-of-text token, token limit, the user's Stop, an error, or a side that has no server."""

Side = Literal["plain", "speculative"]
SIDES: tuple[Side, Side] = ("plain", "speculative")


class Verdict(StrEnum):
    """What became of a proposed token."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DISCARDED = "discarded"


class Alternative(Record):
    """A token that the target might have chosen, and the probability it gave that token."""

    id: Count
    text: str
    probability: Probability


class Token(Record):
    """A committed token. `probability` is the target's, if the engine reports it.

    `id` is None where a server does not tell it.
    `entropy` is that of the target's distribution here, in bits; `alternatives` are its likeliest tokens,
    likeliest first, if requested.
    """

    id: Count | None
    text: str
    probability: Probability | None = None
    entropy: float | None = Field(None, ge=-0.01, le=64)  # rounded, like a probability
    alternatives: tuple[Alternative, ...] = Field((), max_length=5)


class DraftToken(Record):
    """A proposed token. `id` is None where only the number of proposals is known."""

    id: Count | None
    text: str
    verdict: Verdict
    draft_probability: Probability | None = None
    target_probability: Probability | None = None


class Round(Record):
    """One cycle: the draft proposes, the target verifies in one pass, tokens are committed.

    `proposed` is None where not even the number of proposals is known. Seconds are of the side's own clock. `source`:
    what proposed, where the decoding strategy has two sources.
    """

    committed: tuple[Token, ...] = Field(max_length=MOST)
    seconds: Seconds
    proposed: tuple[DraftToken, ...] | None = Field((), max_length=MOST)
    draft_seconds: Share | None = None
    verify_seconds: Share | None = None
    source: Source | None = None

    @property
    def ids(self) -> list[int]:
        """Ids of the committed tokens, without those that are not known."""
        return [token.id for token in self.committed if token.id is not None]

    @property
    def accepted(self) -> int:
        """Drafts that were accepted. Without a trace: all committed tokens but the target's own."""
        if self.proposed is None:
            return max(len(self.committed) - 1, 0)
        return sum(token.verdict is Verdict.ACCEPTED for token in self.proposed)


class Run(Record):
    """One side of a comparison. `prefill` commits the first token; its seconds are the time to first token.

    Not `passes_known`: a server did not tell which tokens came from one pass, so rounds are what arrived together.
    A side without any token has no such seconds: see `Run.without`.
    """

    prefill: Round
    rounds: tuple[Round, ...] = Field((), max_length=MOST)
    finish_reason: FinishReason
    passes_known: bool = True

    @classmethod
    def without(cls, reason: Literal["failed", "absent"]) -> Self:
        """The run of a side that has no token, for this reason."""
        return cls(prefill=Round(committed=(), seconds=TICK), finish_reason=reason)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Every committed token, the prefill's first."""
        return tuple(token for step in (self.prefill, *self.rounds) for token in step.committed)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the committed tokens: of every one, unless a server did not tell them all."""
        return (*self.prefill.ids, *(id_ for step in self.rounds for id_ in step.ids))

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(token.text for token in self.tokens)
