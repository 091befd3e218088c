"""What steps cost on a machine, measured apart from any run."""

from collections.abc import Sequence
from typing import Self

from pydantic import Field

from specdemo.records.base import MOST, Count, Probability, Record, Seconds, Share

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
    where the engine cannot tell.
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
        """Rounds whose verdicts are known."""
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
