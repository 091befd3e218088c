"""What servers report of a request's speculation, in the forms of several servers, and vLLM's counters.

A streamed chunk with token ids is one engine step, unless chunks were joined on the way or because their sender fell
behind, or the server sends each token in a chunk of its own. A request's report has only steps with proposals, so it
must be aligned with the chunks. A report that is malformed or contradicts itself counts as none.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from itertools import pairwise
from operator import getitem
from typing import Annotated, Any, Self

from prometheus_client.parser import text_string_to_metric_families
from pydantic import AliasChoices, Field, ValidationError

from specdemo.engines.server.protocol import AnswerTokens
from specdemo.records import MAX_TOKENS, DraftCounts, Record

_Drafted = Annotated[int, Field(ge=0, le=256)]  # of a round; more is nonsense, and would fill the memory
_IN_VLLM, _IN_TENSORRT = ("metrics", "speculative_decoding"), ("choices", 0, "speculative_decoding")
_PLACES = _IN_VLLM, _IN_TENSORRT, ("sglext", "spec_tokens_details"), ("timings",)
_COUNTERS = "spec_decode_num_", "request_success_", "generation_tokens_"  # of vLLM


def _named(*names: str, **limits: Any) -> Any:
    return Field(validation_alias=AliasChoices(*names), **limits)


class Report(Record):
    """A request's counts under the names of vLLM, TensorRT-LLM, SGLang, or mlx-vlm and llama.cpp; by step if vLLM was
    started to report in detail. Only mlx-vlm, whose counts are those of all requests together, has `draft_rounds`.
    """

    steps: AnswerTokens | None = _named("num_spec_steps", "spec_verify_ct", "draft_rounds", default=None)
    proposed: AnswerTokens = _named("num_draft_tokens", "total_draft_tokens", "spec_num_proposed_drafts", "draft_n")
    accepted: AnswerTokens = _named(
        "num_accepted_draft_tokens", "total_accepted_draft_tokens", "spec_num_correct_drafts", "draft_n_accepted"
    )
    histogram: tuple[AnswerTokens, ...] = _named(
        "acceptance_histogram", "spec_correct_drafts_histogram", default=(), max_length=MAX_TOKENS
    )
    drafted_by_step: tuple[_Drafted, ...] = _named("per_step_drafted", default=(), max_length=MAX_TOKENS)
    accepted_by_step: tuple[_Drafted, ...] = _named("per_step_accepted", default=(), max_length=MAX_TOKENS)
    draft_rounds: AnswerTokens | None = None

    @classmethod
    def of(cls, chunk: Any) -> Self | None:
        for place in _PLACES:
            with suppress(LookupError, TypeError, ValidationError):
                report = cls.model_validate(reduce(getitem, place, chunk))
                if report.accepted <= report.proposed:
                    return report
        return None

    def counts(self, tokens: int) -> DraftCounts:
        """Return the totals for an answer with this many tokens."""
        by_position = tuple(sum(self.histogram[i:]) for i in range(1, len(self.histogram)))
        steps = max(tokens - 1 - self.accepted, 1) if self.steps is None else self.steps
        return DraftCounts(
            rounds=steps if self.proposed else 0,
            proposed=self.proposed,
            accepted=self.accepted,
            by_position=by_position,
            of_server=self.draft_rounds is not None,
        )

    def proposals(self, accepted: Sequence[int]) -> list[int | None] | None:
        """Return how many tokens each round proposed, given how many it accepted; None for rounds where that is
        unknown, and None instead of a list if these are not the rounds of the report.

        If several rounds in a row accepted nothing, it may be unknown which of them had proposals. A round is known
        if it gets the same step whether steps are placed as early or as late as possible.
        """
        drafted, steps = self.drafted_by_step, self.accepted_by_step
        if not len(steps) == len(drafted) == self.steps or sum(drafted) != self.proposed:  # only sums are reported
            return [None] * len(accepted)
        early = _steps_before(steps, accepted)
        late = [len(steps) - after for after in reversed(_steps_before(steps[::-1], accepted[::-1]))]
        if early[-1] < len(steps):
            return None
        placements = zip(pairwise(early), pairwise(late), strict=True)
        return [sum(drafted[slice(*first)]) if first == last else None for first, last in placements]


def counts_of_average(average: object, tokens: int) -> DraftCounts | None:
    """Return the counts behind TensorRT-LLM's `avg_decoded_tokens_per_iter`, which tells nothing of the proposals."""
    if not isinstance(average, float) or not 1 < average <= MAX_TOKENS:
        return None
    steps = max(round(tokens / average), 1)
    return DraftCounts(rounds=steps, proposed=0, accepted=tokens - steps)


def _steps_before(steps: Sequence[int], accepted: Sequence[int]) -> list[int]:
    """Return the number of steps before each round and at the end, if each step is in the first round that fits."""
    before = [0]
    for count in accepted:
        before.append(before[-1] + (steps[before[-1] : before[-1] + 1] == (count,)))
    return before


def counters(text: str) -> Counter[str]:
    """Read the counters, by name and position, from Prometheus' format; sums over engines and models. ValueError:
    this is another format.
    """
    totals = Counter[str]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.rpartition(":")[2]
            if name.startswith(_COUNTERS) and name.endswith("_total"):
                name = name.removesuffix("_total").removeprefix("spec_decode_num_")
                totals[name + sample.labels.get("position", "")] += int(sample.value)
    return totals


def counted_between(before: str, after: str, tokens: int) -> DraftCounts | None:
    """Return the counts from `/metrics` during a request with this many tokens; None if another one ended, too, or
    they are no counts.
    """
    try:
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
    except (ValueError, OverflowError):
        return None
