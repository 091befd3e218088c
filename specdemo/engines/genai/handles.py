"""What GenAI hands back of a request, as plain values. Its handles have a type that the module does not export."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import openvino
import openvino_genai

from specdemo.errors import CacheError
from specdemo.records import FinishReason

_REASONS: dict[openvino_genai.GenerationFinishReason, FinishReason] = {
    openvino_genai.GenerationFinishReason.STOP: "stop",
    openvino_genai.GenerationFinishReason.LENGTH: "length",
}


class Output(NamedTuple):
    """New tokens, their log-probabilities, and why the request ended, once it has."""

    ids: tuple[int, ...]
    logarithms: tuple[float, ...]
    finish_reason: FinishReason | None


def read(handle: "openvino_genai.GenerationHandle") -> Output:
    """What a request has committed since this was last called."""
    ids: list[int] = []
    logarithms: list[float] = []
    finish_reason = None
    while handle.can_read():
        for output in handle.read().values():
            ids += output.generated_ids
            logarithms += output.generated_log_probs
            finish_reason = _REASONS.get(output.finish_reason, finish_reason)
    return Output(tuple(ids), tuple(logarithms), finish_reason)


def check_fits(handle: "openvino_genai.GenerationHandle", cache_size: int) -> None:
    """Check that a request fits into the KV cache, of which GenAI says nothing but a status.

    Raises:
        CacheError: it does not.
    """
    if handle.get_status() == openvino_genai.GenerationStatus.IGNORED:
        raise CacheError(
            f"The KV cache of {cache_size} GB is too small for this run; "
            "shorten the prompt, ask for fewer tokens, or start with a larger cache size."
        )


def as_tensor(ids: Sequence[int]) -> openvino.Tensor:
    """Token ids as GenAI takes them, shape (1, tokens)."""
    return openvino.Tensor(np.array([ids], np.int64))
