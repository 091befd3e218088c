"""What servers report of a request's speculation, in the forms of several servers.

A streamed chunk with token ids is one engine step, unless chunks were joined on the way or because their sender fell
behind, or the server sends each token in a chunk of its own. A report that is malformed or contradicts itself counts
as none.
"""

from contextlib import suppress
from functools import reduce
from operator import getitem
from typing import Any, Self

from pydantic import AliasChoices, Field, ValidationError

from specdemo.engines.server.protocol import AnswerTokens
from specdemo.records import MAX_TOKENS, DraftCounts, Record

_IN_VLLM, _IN_TENSORRT = ("metrics", "speculative_decoding"), ("choices", 0, "speculative_decoding")
_PLACES = _IN_VLLM, _IN_TENSORRT, ("sglext", "spec_tokens_details"), ("timings",)


def _named(*names: str, **limits: Any) -> Any:
    return Field(validation_alias=AliasChoices(*names), **limits)


class Report(Record):
    """A request's counts under the names of vLLM, TensorRT-LLM, SGLang, or mlx-vlm and llama.cpp.
    Only mlx-vlm, whose counts are those of all requests together, has `draft_rounds`.
    """

    steps: AnswerTokens | None = _named("num_spec_steps", "spec_verify_ct", "draft_rounds", default=None)
    proposed: AnswerTokens = _named("num_draft_tokens", "total_draft_tokens", "spec_num_proposed_drafts", "draft_n")
    accepted: AnswerTokens = _named(
        "num_accepted_draft_tokens", "total_accepted_draft_tokens", "spec_num_correct_drafts", "draft_n_accepted"
    )
    histogram: tuple[AnswerTokens, ...] = _named(
        "acceptance_histogram", "spec_correct_drafts_histogram", default=(), max_length=MAX_TOKENS
    )
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
        by_position = tuple(sum(self.histogram[i:]) for i in range(1, len(self.histogram)))
        steps = max(tokens - 1 - self.accepted, 1) if self.steps is None else self.steps
        return DraftCounts(
            rounds=steps if self.proposed else 0,
            proposed=self.proposed,
            accepted=self.accepted,
            by_position=by_position,
            of_server=self.draft_rounds is not None,
        )
