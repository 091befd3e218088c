"""A decoder-only model run directly on `openvino`: token ids in, logits out, with or without a KV cache.

One compiled model serves any number of sequences, each with its own cache. A sequence is asked for the
logits of a whole text; it feeds only what its cache lacks, after rolling back what the text no longer contains.
Rolling back copies nothing:

- paged attention on CPU, as in GenAI: the cache is in blocks that we own, and the model is told how many of their
  positions count. Rejected ones are simply overwritten. The transformation that gives a model these inputs is
  OpenVINO's own but not public, so a model for which it fails runs the other way:
- stateful, the public way: the cache is inside the model. Rejected positions stay in it, their entries in the
  attention mask become 0, and position ids continue from the accepted length.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Protocol

import openvino
from openvino import _offline_transformations

from specdemo.decoding.verification import Logits, distribution, greedy_choice, resized
from specdemo.errors import LoadError
from specdemo.runtime.sequences import Cached, Paged, Stateful, Uncached
from specdemo.settings import Sampling

_READ, _FED, _CYCLES = 16, 5, 8  # of the trial that decides how to feed: context tokens, tokens fed, repetitions


class ModelSequence(Protocol):
    """One text and its cache."""

    def logits(self, ids: Sequence[int], last: int = 1, width: int = 0) -> Logits:
        """Logits after each of the last tokens of a text, shape (last, vocabulary); valid until the next call.

        A pass may be padded to `width` tokens, the length of the one before, where a change of length costs time.
        """

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        """Prefill most of a long text, yielding how many of its tokens have been read."""

    def shared(self, ids: Sequence[int]) -> int:
        """How many of a text's first tokens are in the cache."""


Adapt = Callable[[openvino.Model], None]
"""Changes a model before it is compiled."""


class LanguageModel:
    """A compiled model."""

    def __init__(
        self,
        folder: Path,
        device: str,
        properties: dict[str, str],
        *,
        paged: bool = True,
        adapt: Adapt = lambda model: None,
    ) -> None:
        """Read and compile the folder's model.

        Raises:
            LoadError: OpenVINO cannot load the model on this device.
        """
        self.paged = paged and device.startswith("CPU")  # other devices have other block sizes and layouts
        try:
            self._compiled = self._compile(folder, device, properties, adapt)
        except RuntimeError as error:
            raise LoadError(f"OpenVINO cannot load {folder.name!r} on {device}; export it again.") from error

    def _compile(self, folder: Path, device: str, properties: dict[str, str], adapt: Adapt) -> openvino.CompiledModel:
        core, file = openvino.Core(), folder / "openvino_model.xml"
        model = core.read_model(file)
        adapt(model)
        if self.paged:
            try:
                _offline_transformations.paged_attention_transformation(model)
                return core.compile_model(model, device, properties)
            except RuntimeError:
                self.paged = False
                model = core.read_model(file)
                adapt(model)
        return core.compile_model(model, device, properties)

    def sequence(self, capacity: int, *, kv_cache: bool = True) -> ModelSequence:
        """A new, empty sequence with room for `capacity` tokens; it grows if that is not enough."""
        return self.cached(capacity) if kv_cache else Uncached(self.cached(capacity))

    def cached(self, capacity: int) -> Cached:
        """Such a sequence with a cache."""
        return Paged(self._compiled, capacity) if self.paged else Stateful(self._compiled)

    @cached_property
    def feeds_singly(self) -> bool:
        """Whether two tokens amid single ones take longer in one pass than in two; measured at first use.

        They can, since every operation is prepared anew when the length changes.
        """
        if not self.paged:
            return False
        sequence, text = self.sequence(_READ + _FED), [0] * (_READ + _FED)
        singly, together = list[float](), list[float]()
        for _ in range(_CYCLES):
            for first, seconds in ((1, singly), (2, together)):
                sequence.logits(text[:_READ])
                began = perf_counter()
                for end in range(_READ + first, _READ + _FED + 1):
                    sequence.logits(text[:end])
                seconds.append(perf_counter() - began)
        return median(singly[1:]) < median(together[1:])

    @property
    def vocabulary(self) -> int:
        """Number of logits at each position."""
        return int(self._compiled.outputs[0].get_partial_shape()[-1].get_length())


_CHUNK = 256  # tokens whose logits are computed together, which bounds their memory


def draft_agreement(
    draft: ModelSequence, text: Sequence[int], first: int, sampling: Sampling, vocabulary: int | None = None
) -> tuple[bool, ...]:
    """For each token of a text from index `first` on, whether the draft's greedy choice is the same.

    `vocabulary` is the number of tokens to choose among, if it is not the draft's own number of logits.
    """
    agreement: list[bool] = []
    for start in range(first, len(text), _CHUNK):
        end = min(start + _CHUNK, len(text))
        logits = draft.logits(text[: end - 1], end - start)
        for index, row in enumerate(logits, start):
            seen = set(text[:index]) if sampling.repetition_penalty != 1 else ()
            choices = row if vocabulary is None else resized(row, vocabulary)
            agreement.append(greedy_choice(choices, sampling, seen) == text[index])
    return tuple(agreement)


_LEAST = 1e-12  # probability, whose logarithm is still finite


def log_probabilities(
    target: ModelSequence, start: Sequence[int], tokens: Sequence[int], sampling: Sampling, *, apart: bool
) -> list[float]:
    """Of each of these tokens after `start`: from one pass over all, or `apart`, from a pass over one each."""
    text = [*start, *tokens]
    ends = range(len(start), len(text))
    rows = (target.logits(text[:end])[0] for end in ends) if apart else target.logits(text[:-1], len(tokens))
    return [
        math.log(max(float(distribution(row, sampling, set(text[:end]))[text[end]]), _LEAST))
        for row, end in zip(rows, ends, strict=True)
    ]
