"""vLLM's own counts of speculation: of a request, in its last chunk, and of the whole server, as counters.

A streamed chunk with token ids is one engine step, unless the process that sends them falls behind, or something in
between joins chunks. A request's report has only steps with proposals, so it must be aligned with the chunks. Other
servers send the same fields.
"""

import re
from collections import Counter, deque
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from specdemo.records import MOST, Count, DraftCounts, Record

_Drafted = Annotated[int, Field(ge=0, le=256)]  # of a round; more is nonsense, and would fill the memory
_PREFIX = "spec_decode_num_"
_COUNTER = re.compile(
    rf"^\w+:({_PREFIX}(?:drafts|draft_tokens|accepted_tokens(?:_per_pos)?)|generation_tokens|request_success)"
    r"_total(?:{(.*)})? (\d+)(?:\.0)?$",
    re.MULTILINE,
)


class Report(Record):
    """A chunk's `metrics.speculative_decoding`; by step if the server was started to report in detail."""

    num_spec_tokens: _Drafted
    num_spec_steps: Count
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    acceptance_histogram: tuple[Count, ...] = Field(max_length=MOST)
    per_step_drafted: tuple[_Drafted, ...] = Field((), max_length=MOST)
    per_step_accepted: tuple[Count, ...] = Field((), max_length=MOST)

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
        """Return how many tokens were proposed in each round, given how many it accepted; None where unknown.

        If several rounds in a row accepted nothing, it is unknown which of them had proposals. Instead of a list,
        None says that these are not the rounds of the report.
        """
        steps = deque(zip(self.per_step_drafted, self.per_step_accepted, strict=False))
        if len(steps) < self.num_spec_steps:  # only sums are reported
            histogram = {count: rounds for count, rounds in enumerate(self.acceptance_histogram) if count and rounds}
            if Counter(filter(None, accepted)) != histogram:
                return None
            all_alike = self.num_draft_tokens == len(accepted) * self.num_spec_tokens
            return [self.num_spec_tokens if all_alike else None] * len(accepted)
        found: list[int | None] = []
        for some, run in groupby(accepted, key=bool):
            counts, vain = [*run], list[int]()
            while not some and steps and not steps[0][1]:
                vain.append(steps.popleft()[0])
            if not some and len(vain) <= len(counts):
                found += vain if len(vain) == len(counts) else [None if vain else 0] * len(counts)
            elif some and [accepted for _, accepted in [*steps][: len(counts)]] == counts:
                found += [steps.popleft()[0] for _ in counts]
            else:
                return None
        return None if steps else found


def counters(text: str) -> Counter[str]:
    """Read the counters, by name and position, from Prometheus' format; sums over engines and models."""
    found = Counter[str]()
    for name, labels, value in _COUNTER.findall(text):
        position = re.search(r'\bposition="(\d+)"', labels)
        found[name + (position[1] if position else "")] += int(value)
    return found


def counted_between(before: Counter[str], after: Counter[str], tokens: int) -> DraftCounts | None:
    """Return what the counters counted during a request of so many tokens; None if it was not the only one."""
    change = {name: after[name] - before[name] for name in after}
    if change.get("request_success") != 1 or change.get("generation_tokens") != tokens:
        return None
    drafts, proposed, accepted = (
        change.get(_PREFIX + name, 0) for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    per_position = f"{_PREFIX}accepted_tokens_per_pos"
    positions = sorted(int(name.removeprefix(per_position)) for name in change if name.startswith(per_position))
    return DraftCounts(
        rounds=drafts,
        proposed=proposed,
        accepted=accepted,
        by_position=tuple(change[f"{per_position}{position}"] for position in positions),
        of_server=True,
    )
