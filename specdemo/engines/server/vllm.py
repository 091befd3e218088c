"""vLLM's own counts of speculation: of a request, in its last chunk, and of the whole server, as counters.

A streamed chunk with token ids is one engine step, unless chunks were joined on the way or because their sender fell
behind. A request's report has only steps with proposals, so it must be aligned with the chunks. Other servers send
the same fields.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from specdemo.records import MAX_TOKENS, Count, DraftCounts, Record

_Drafted = Annotated[int, Field(ge=0, le=256)]  # of a round; more is nonsense, and would fill the memory
_COUNTER = re.compile(r'^\w+:(?:spec_decode_num_)?(\w+)_total(?:{(?:.*\bposition="(\d+)")?.*})? (\S+)$', re.MULTILINE)


class Report(Record):
    """A chunk's `metrics.speculative_decoding`, with counts by step if the server was started to report in detail."""

    num_spec_steps: Count
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    acceptance_histogram: tuple[Count, ...] = Field(max_length=MAX_TOKENS)
    per_step_drafted: tuple[_Drafted, ...] = Field((), max_length=MAX_TOKENS)
    per_step_accepted: tuple[Count, ...] = Field((), max_length=MAX_TOKENS)

    @classmethod
    def of(cls, chunk: dict[str, Any]) -> Self | None:
        try:
            return cls.model_validate(chunk["metrics"]["speculative_decoding"])
        except (LookupError, TypeError, ValidationError):
            return None

    @property
    def counts(self) -> DraftCounts:
        return DraftCounts(
            rounds=self.num_spec_steps,
            proposed=self.num_draft_tokens,
            accepted=self.num_accepted_draft_tokens,
            by_position=tuple(sum(self.acceptance_histogram[i:]) for i in range(1, len(self.acceptance_histogram))),
        )

    def proposed(self, accepted: Sequence[int]) -> list[int | None] | None:
        """Return how many tokens each round proposed, given how many it accepted; None for rounds where that is
        unknown, and None instead of a list if these are not the rounds of the report.

        If several rounds in a row accepted nothing, it may be unknown which of them had proposals. A round is known
        if it gets the same step whether steps are placed as early or as late as possible.
        """
        drafted, steps = self.per_step_drafted, self.per_step_accepted
        if Counter(filter(None, accepted)) != Counter(dict(enumerate((0, *self.acceptance_histogram[1:])))):
            return None
        if not len(steps) == len(drafted) == self.num_spec_steps:  # only sums are reported
            return [None] * len(accepted)
        early = _steps_before(steps, accepted)
        late = [len(steps) - after for after in reversed(_steps_before(steps[::-1], accepted[::-1]))]
        if early[-1] < len(steps):
            return None
        placements = zip(pairwise(early), pairwise(late), strict=True)
        return [sum(drafted[slice(*first)]) if first == last else None for first, last in placements]


def _steps_before(steps: Sequence[int], accepted: Sequence[int]) -> list[int]:
    """Return the number of steps before each round and at the end, if each step is in the first round that fits."""
    before = [0]
    for count in accepted:
        before.append(before[-1] + (steps[before[-1] : before[-1] + 1] == (count,)))
    return before


def counters(text: str) -> Counter[str]:
    """Read the counters, by name and position, from Prometheus' format; sums over engines and models."""
    totals = Counter[str]()
    for name, position, value in _COUNTER.findall(text):
        totals[name + position] += int(float(value))
    return totals


def counted_between(before: str, after: str, tokens: int) -> DraftCounts | None:
    """Return the counts from `/metrics` during a request with this many tokens; None if another one ended, too."""
    change = counters(after)
    change.subtract(counters(before))
    if change["request_success"] != 1 or change["generation_tokens"] != tokens:
        return None
    return DraftCounts(
        rounds=change["drafts"],
        proposed=change["draft_tokens"],
        accepted=change["accepted_tokens"],
        by_position=tuple(sorted((change[name] for name in change if "per_pos" in name), reverse=True)),
        of_server=True,
    )
