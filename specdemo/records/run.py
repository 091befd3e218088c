"""Measurements: runs (a prefill, then rounds of proposed and committed tokens), trials, load, and step costs.

A trial is one speculative run between two plain ones; a block is a part of a load run. Percentiles, rates and
speedups are not stored: `analysis` and `experiments` derive them.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, Self

from pydantic import Field

from specdemo.records.base import MOST, TICK, Count, Probability, Record, Seconds, Share
from specdemo.strategies import Source

FinishReason = Literal["stop", "length", "cancelled", "failed", "absent"]
"""End-of-text token, token limit, the user's Stop, an error, or a side without a server."""

Side = Literal["plain", "speculative"]
SIDES: tuple[Side, Side] = ("plain", "speculative")


class Outcome(StrEnum):
    """Outcome of a proposed token."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DISCARDED = "discarded"


class Alternative(Record):
    """A token that the target might have chosen, with the target's probability."""

    id: Count
    text: str
    probability: Probability


class Token(Record):
    """A committed token. `probability` is the target's, if the engine reports it.

    `id` is None if a server does not report it. `entropy` is that of the target's distribution here, in bits;
    `alternatives` are its likeliest tokens, in order, if requested.
    """

    id: Count | None
    text: str
    probability: Probability | None = None
    entropy: float | None = Field(None, ge=-0.01, le=64)  # rounded, like a probability
    alternatives: tuple[Alternative, ...] = Field((), max_length=5)


class DraftToken(Record):
    """A proposed token. `id` is None if only the number of proposals was reported."""

    id: Count | None
    text: str
    verdict: Outcome
    draft_probability: Probability | None = None
    target_probability: Probability | None = None


class Round(Record):
    """One cycle: the draft proposes, the target verifies in one pass, tokens are committed.

    `proposed` is None if not even the number of proposals was reported. Seconds are on the side's own clock. `source`
    is the proposals' source, if the strategy has several.
    """

    committed: tuple[Token, ...] = Field(max_length=MOST)
    seconds: Seconds
    proposed: tuple[DraftToken, ...] | None = Field((), max_length=MOST)
    draft_seconds: Share | None = None
    verify_seconds: Share | None = None
    source: Source | None = None

    @property
    def ids(self) -> list[int]:
        """Ids of the committed tokens, without unreported ones."""
        return [token.id for token in self.committed if token.id is not None]

    @property
    def accepted(self) -> int:
        """Number of accepted proposals; if unreported, all committed tokens but the correction or bonus token."""
        if self.proposed is None:
            return max(len(self.committed) - 1, 0)
        return sum(token.verdict is Outcome.ACCEPTED for token in self.proposed)

    @property
    def contradicts_itself(self) -> bool:
        """Whether outcomes are in an order that no verification gives, or more are accepted than committed."""
        outcomes = [token.verdict for token in self.proposed or ()]
        possible = outcomes_from_counts(len(outcomes), self.accepted)
        # a text that ends within the proposals leaves those behind it unjudged
        ended = [Outcome.ACCEPTED] * self.accepted + [Outcome.DISCARDED] * (len(outcomes) - self.accepted)
        return bool(outcomes) and (outcomes not in (possible, ended) or self.accepted > len(self.committed))


def outcomes_from_counts(proposed: int, accepted: int) -> list[Outcome]:
    """Return outcomes from counts: accepted ones, one rejected, the rest discarded."""
    left = proposed - accepted
    return [Outcome.ACCEPTED] * accepted + [Outcome.REJECTED] * min(left, 1) + [Outcome.DISCARDED] * max(left - 1, 0)


class Run(Record):
    """One side of a comparison. `prefill` commits the first token; its seconds are the time to first token.

    `prompt_tokens` are those of its prompt, chat and template included; None if a server did not report them.
    Not `passes_known`: a server did not report which tokens came from one pass, so a round is what arrived together.
    A side without tokens has no such seconds: see `Run.without`.
    """

    prefill: Round
    rounds: tuple[Round, ...] = Field((), max_length=MOST)
    finish_reason: FinishReason
    passes_known: bool = True
    prompt_tokens: Count | None = None

    @classmethod
    def without(cls, reason: Literal["failed", "absent", "cancelled"]) -> Self:
        """Return the run of a side without tokens, for this reason."""
        return cls(prefill=Round(committed=(), seconds=TICK), finish_reason=reason)

    @property
    def tokens(self) -> tuple[Token, ...]:
        return tuple(token for step in (self.prefill, *self.rounds) for token in step.committed)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the committed tokens, without unreported ones."""
        return (*self.prefill.ids, *(id_ for step in self.rounds for id_ in step.ids))

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)


TIMED_LOOKAHEAD = 4
"""Proposals per round when timing the draft step."""


class Spread(Record):
    """Lower quartile, median and upper quartile of repeated measurements."""

    low: Share
    middle: Seconds
    high: Seconds


class DraftRound(Record):
    """The draft's seconds in a round and, if reported, its confidence.

    `probabilities` are the draft's, one per proposal, or empty; `accepted` is the number of accepted proposals.
    """

    seconds: Share
    probabilities: tuple[Probability, ...] = Field((), max_length=MOST)
    accepted: Count = 0


class StepCosts(Record):
    """Step costs in seconds, after a text of `context` tokens.

    `passes[i]` is a target pass over `i + 1` tokens; `draft` is a draft step, the mean of a round with four, and
    `first_draft` that of a round with one. Both are None without a draft. `rounds` are those with four.
    """

    context: Count
    passes: tuple[Spread, ...] = Field(min_length=1, max_length=MOST)
    draft: Spread | None
    first_draft: Spread | None = None
    rounds: tuple[DraftRound, ...] = Field((), max_length=MOST)


class Costs(Record):
    """Step costs of a pair, measured apart from any run.

    `plain_step` and `draft_step` (None without a draft) are median seconds; `verify[i]` is the median of a target
    pass over `i + 1` tokens, so `verify[0]` equals `plain_step`. `first_draft_step`, if measured, is a round's first
    draft step, which takes longer since the target's pass has just evicted the draft from the processor's caches. All
    are those of the first of `contexts`, which holds the measurements after texts of several lengths, with spreads.
    `other_load` is the share of the machine's processor time that other processes took meanwhile, None if unknown.
    """

    plain_step: Seconds
    draft_step: Seconds | None
    verify: tuple[Seconds, ...] = Field(min_length=1, max_length=MOST)
    first_draft_step: Seconds | None = None
    contexts: tuple[StepCosts, ...] = Field((), max_length=16)
    other_load: Probability | None = None

    @property
    def later_draft_step(self) -> float | None:
        """Seconds of a round's draft steps after the first; None without a draft."""
        if self.draft_step is None or self.first_draft_step is None:
            return self.draft_step
        later = (TIMED_LOOKAHEAD * self.draft_step - self.first_draft_step) / (TIMED_LOOKAHEAD - 1)
        return max(later, 0.1 * self.draft_step)  # noise can make the difference of two medians too small

    def drafting(self, lookahead: int) -> float | None:
        """Return the seconds of the draft steps of a round with so many proposals; None without a draft."""
        later = self.later_draft_step
        if later is None:
            return None
        return (self.first_draft_step or later) + (lookahead - 1) * later if lookahead else 0.0

    @property
    def drafted(self) -> tuple[DraftRound, ...]:
        return tuple(step for context in self.contexts[:1] for step in context.rounds if step.probabilities)

    @classmethod
    def of(cls, contexts: Sequence[StepCosts]) -> Self:
        """Create from the costs after one or more texts."""
        passes, draft, first = contexts[0].passes, contexts[0].draft, contexts[0].first_draft
        return cls(
            plain_step=passes[0].middle,
            draft_step=draft and draft.middle,
            verify=tuple(spread.middle for spread in passes),
            first_draft_step=first and first.middle,
            contexts=tuple(contexts),
        )


class Trial(Record):
    """One speculative run and its plain neighbours.

    `seconds` and `plain_seconds`, the mean of both neighbours, are for the same number of new `tokens`, prefill
    excluded. Values that the engine does not report are None. `other_load` is the share of the machine's processor
    time that other processes took. `plain_steps` are the seconds of every plain step of the run before and the run
    after; `round_steps` are tokens committed, tokens proposed (-1 if unknown) and seconds of every speculative round.
    Both are empty in older files.
    """

    tokens: Count
    seconds: Seconds
    plain_seconds: Seconds
    identical: bool
    rounds: Count | None
    run_tokens: Count
    run_seconds: Seconds
    proposed: Count | None = None
    accepted: Count | None = None
    judged: Count | None = None
    other_load: Probability | None = None
    plain_steps: tuple[tuple[Seconds, ...], ...] = Field((), max_length=2)
    round_steps: tuple[tuple[Count, int, Seconds], ...] = Field((), max_length=MOST)

    @property
    def speedup(self) -> float:
        """Plain seconds / speculative seconds for the same number of new tokens."""
        return self.plain_seconds / self.seconds


MOST_IN_FLIGHT = 256
"""GenAI's own limit of sequences in a batch."""
