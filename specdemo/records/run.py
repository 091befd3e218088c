"""What is measured: runs, each a prefill and rounds of proposed and committed tokens; trials; and what steps cost.

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

    `id` is None where a server does not report it.
    `entropy` is that of the target's distribution here, in bits; `alternatives` are its likeliest tokens,
    likeliest first, if requested.
    """

    id: Count | None
    text: str
    probability: Probability | None = None
    entropy: float | None = Field(None, ge=-0.01, le=64)  # rounded, like a probability
    alternatives: tuple[Alternative, ...] = Field((), max_length=5)


class DraftToken(Record):
    """A proposed token. `id` is None where only the number of proposals was reported."""

    id: Count | None
    text: str
    verdict: Verdict
    draft_probability: Probability | None = None
    target_probability: Probability | None = None


class Round(Record):
    """One cycle: the draft proposes, the target verifies in one pass, tokens are committed.

    `proposed` is None where not even the number of proposals was reported. Seconds are of the side's own clock.
    `source`: what proposed, where the decoding strategy has two sources.
    """

    committed: tuple[Token, ...] = Field(max_length=MOST)
    seconds: Seconds
    proposed: tuple[DraftToken, ...] | None = Field((), max_length=MOST)
    draft_seconds: Share | None = None
    verify_seconds: Share | None = None
    source: Source | None = None

    @property
    def ids(self) -> list[int]:
        """Ids of the committed tokens, without those that were not reported."""
        return [token.id for token in self.committed if token.id is not None]

    @property
    def accepted(self) -> int:
        """Drafts that were accepted. Without a trace: all committed tokens but the correction or bonus token."""
        if self.proposed is None:
            return max(len(self.committed) - 1, 0)
        return sum(token.verdict is Verdict.ACCEPTED for token in self.proposed)


class Run(Record):
    """One side of a comparison. `prefill` commits the first token; its seconds are the time to first token.

    Not `passes_known`: a server did not report which tokens came from one pass, so a round is what arrived together.
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
        """Ids of the committed tokens: of every one, unless a server did not report them all."""
        return (*self.prefill.ids, *(id_ for step in self.rounds for id_ in step.ids))

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(token.text for token in self.tokens)


TIMED_LOOKAHEAD = 4
"""Proposals per round in the rounds whose mean draft step counts as the draft's step cost."""


class Spread(Record):
    """Lower quartile, median and upper quartile of something measured several times."""

    low: Share
    middle: Seconds
    high: Seconds


class DraftRound(Record):
    """What the draft did in a round: its seconds and, where the engine reports it, how confident it was.

    `probabilities` are the draft's, of every proposal, or empty; `accepted` is how many proposals were.
    """

    seconds: Share
    probabilities: tuple[Probability, ...] = Field((), max_length=MOST)
    accepted: Count = 0


class StepCosts(Record):
    """Seconds of steps after a text of `context` tokens.

    `passes[i]` is of a target pass over `i + 1` tokens; `draft` of one draft step, the mean of a round with four, and
    `first_draft` of a round with a single one. Both are None where the pair has no draft. `rounds` are
    those with four. `length_change`: how much longer a pass takes if the one before had a different length; None
    where the engine does not report it.
    """

    context: Count
    passes: tuple[Spread, ...] = Field(min_length=1, max_length=MOST)
    draft: Spread | None
    first_draft: Spread | None = None
    rounds: tuple[DraftRound, ...] = Field((), max_length=MOST)
    length_change: float | None = Field(None, ge=-1e6, le=1e6)


class Costs(Record):
    """Step costs of a pair, measured apart from any run.

    `plain_step` and `draft_step` are median seconds; `verify[i]` is the median of a target pass over
    `i + 1` tokens, so `verify[0]` equals `plain_step`. None where the pair has no draft. A round's first draft step
    takes longer than the others, since the target's pass has just evicted the draft from the processor's caches: that
    is `first_draft_step`, where it was measured. All are those of the first of `contexts`, which holds what was
    measured after texts of several lengths, with the spread of each figure.
    """

    plain_step: Seconds
    draft_step: Seconds | None
    verify: tuple[Seconds, ...] = Field(min_length=1, max_length=MOST)
    first_draft_step: Seconds | None = None
    contexts: tuple[StepCosts, ...] = Field((), max_length=16)

    @property
    def later_draft_step(self) -> float | None:
        """Seconds of a round's draft steps after the first; None where the pair has no draft."""
        if self.draft_step is None or self.first_draft_step is None:
            return self.draft_step
        later = (TIMED_LOOKAHEAD * self.draft_step - self.first_draft_step) / (TIMED_LOOKAHEAD - 1)
        return max(later, 0.1 * self.draft_step)  # the difference of two medians, so noise can make it too small

    @property
    def length_change(self) -> float | None:
        """Extra seconds of a target pass if the one before had a different length; None if unknown."""
        return self.contexts[0].length_change if self.contexts else None

    @property
    def drafted(self) -> tuple[DraftRound, ...]:
        """Rounds with verdicts."""
        return tuple(step for context in self.contexts[:1] for step in context.rounds if step.probabilities)

    @classmethod
    def of(cls, contexts: Sequence[StepCosts]) -> Self:
        """The costs that were measured after texts of these lengths, at least one."""
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
    excluded. `draft_seconds` and `verify_seconds` are None where the engine does not report them; `accepted`
    and `proposed` where it does not report proposals; `rounds` where it reports none. `other_load` is the share
    of the machine's processor time that other processes took meanwhile, None if unknown. `plain_steps` are
    the seconds of every plain step, of the run before and of the one after; `round_steps` tokens committed, tokens
    proposed (-1 if unknown) and seconds of every speculative round. Both are empty in older files. `thinking` are the
    speculative run's tokens up to the end of what the model thinks, the prefill's included.
    """

    tokens: Count
    seconds: Seconds
    plain_seconds: Seconds
    identical: bool
    rounds: Count | None
    run_tokens: Count
    run_seconds: Seconds
    draft_seconds: Share | None = None
    verify_seconds: Share | None = None
    proposed: Count | None = None
    accepted: Count | None = None
    judged: Count | None = None
    other_load: Probability | None = None
    thinking: Count | None = None
    plain_steps: tuple[tuple[Seconds, ...], ...] = Field((), max_length=2)
    round_steps: tuple[tuple[Count, int, Seconds], ...] = Field((), max_length=MOST)

    @property
    def speedup(self) -> float:
        """Plain seconds / speculative seconds for the same number of new tokens."""
        return self.plain_seconds / self.seconds


MOST_IN_FLIGHT = 256
"""GenAI's own limit of sequences in a batch."""


class ServedRequest(Record):
    """A request that was served: which prompt, how many tokens, and when, in seconds since it was submitted.

    `output` is a digest of its tokens' ids, or of its text where ids are not reported.
    """

    prompt: str
    tokens: Count
    first: Seconds
    last: Seconds
    output: str

    @property
    def tokens_per_second(self) -> float | None:
        """What its user sees after the first token; None if that was the only one, or all came at once."""
        return (self.tokens - 1) / (self.last - self.first) if self.last > self.first else None


class Block(Record):
    """One side with so many requests in flight, from the first submission until the last of `served` ended.

    Whenever one ends, another begins, so that as many are in flight at the end as at the beginning; what has not
    ended by then counts for `tokens` but is not `served`. `accepted[k]` is how many rounds accepted exactly k
    proposals, None where rounds cannot be seen; `judged`: accepted and proposed tokens, over the rounds whose
    proposals were counted. `batch` is the mean number of requests that a target pass advanced, `cache_bytes` the most
    that the target's KV cache held; None where the engine does not report it. `other_load` is the share of the
    machine's processor time that other processes took.
    """

    level: int = Field(ge=1, le=MOST_IN_FLIGHT)
    seconds: Seconds
    tokens: Count
    served: tuple[ServedRequest, ...]
    accepted: tuple[Count, ...] | None = Field(None, max_length=MOST)
    judged: tuple[Count, Count] | None = None
    batch: Share | None = None
    cache_bytes: Count | None = None
    other_load: Probability | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all requests per second."""
        return self.tokens / self.seconds
