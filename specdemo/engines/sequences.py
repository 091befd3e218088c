"""Texts in a compiled model's KV cache: reuse the cached prefix, feed the rest, and roll back.

Attention over one token rounds differently from attention over several, by 3e-8, and quantized activations amplify
the difference to whole logits. To give the same bits in passes of any length, every token is a sequence of its own on
the same blocks. On some processors and with some weights, a lone token still uses other kernels unless an empty
sequence or, at a higher cost, a second token follows it. `LanguageModel` tries which one helps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import openvino

from specdemo.decoding.sampling import Logits

CHUNK = 256  # tokens fed per pass, which bounds the memory of a long prompt's logits
_MAX_REUSED = 65  # tokens of the longest verification; requests up to this length are reused
LONGEST_FIXED = 17  # tokens of a pass at the greatest constant lookahead
_BLOCK = 32  # positions per block of OpenVINO's paged attention on CPU


Layout = Literal["joined", "empty_sequence", "second_token"]
"""How a pass is split into sequences: all tokens in one, or one per token. In the latter layouts an empty sequence
follows or, after a lone token, a second token.
"""

States = npt.NDArray[np.float32]  # hidden states, shape (tokens, hidden)


class CachedSequence(ABC):
    """Finds the cached prefix of a text; subclasses feed the rest. Without `kv_cache`, `logits` starts anew.

    `input_states(first, last)` returns the hidden states that a head reads with these tokens.
    """

    kv_cache = True
    input_states: Callable[[int, int], States]

    def __init__(self, compiled: openvino.CompiledModel) -> None:
        self._cached_ids: list[int] = []
        self._names = {name for port in compiled.inputs for name in port.get_names()}
        self._has_states = len(compiled.outputs) > 1
        self._states: States = np.zeros((0, 0), np.float32)

    def states(self, first: int, last: int) -> States:
        return self._states[first:last]

    def _store_states(self, request: openvino.InferRequest, past: int, count: int) -> None:
        if not self._has_states:
            return
        states = request.get_output_tensor(1).data
        states = states.reshape(-1, states.shape[-1])[:count]
        if past + count > len(self._states):
            larger = np.zeros((2 * (past + count), states.shape[1]), np.float32)
            if past:
                larger[:past] = self._states[:past]
            self._states = larger
        self._states[past : past + count] = states

    def logits(self, ids: Sequence[int], last: int = 1) -> Logits:
        if not self.kv_cache:
            self.truncate(0)
        for _ in self._feed_chunks(ids, last):
            pass
        length = len(self._cached_ids)
        result = self._feed(ids[length:], length, last)
        self._cached_ids = list(ids)
        return result[-last:]

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        return self._feed_chunks(ids, 1) if self.kv_cache else iter(())

    def _feed_chunks(self, ids: Sequence[int], last: int) -> Iterator[int]:
        """Roll back to the common prefix, then feed the text until the rest fits one pass."""
        length = min(self.common_prefix(ids), len(ids) - last)
        self._rollback(length)
        self._cached_ids = list(ids[:length])
        while len(ids) - length > CHUNK:
            end = min(length - length % CHUNK + CHUNK, len(ids) - last)  # the same chunks wherever reading begins
            self._feed(ids[length:end], length, 1)
            length = end
            self._cached_ids = list(ids[:length])
            yield length

    def common_prefix(self, ids: Sequence[int]) -> int:
        length = min(len(self._cached_ids), len(ids))
        while self._cached_ids[:length] != ids[:length]:
            length -= 1
        return length

    def truncate(self, tokens: int) -> None:
        del self._cached_ids[tokens:]
        self._rollback(len(self._cached_ids))

    @abstractmethod
    def _rollback(self, length: int) -> None:
        """Discard all but the first `length` tokens."""

    @abstractmethod
    def _feed(self, ids: Sequence[int], past: int, last: int) -> Logits:
        """Append to the past tokens; return logits after at least the last ones, shape (tokens, vocabulary)."""


class StatefulSequence(CachedSequence):
    def __init__(self, compiled: openvino.CompiledModel) -> None:
        super().__init__(compiled)
        self._request = compiled.create_infer_request()
        self._mask = np.zeros(0, np.int64)
        self._live = np.zeros(0, np.int64)  # cache positions of the valid tokens

    def _rollback(self, length: int) -> None:
        if length:
            self._mask[self._live[length:]] = 0
        else:
            self._request.reset_state()
            self._mask = self._mask[:0]
        self._live = self._live[:length]

    def _feed(self, ids: Sequence[int], past: int, last: int) -> Logits:
        positions = np.arange(past, past + len(ids), dtype=np.int64)
        self._live = np.append(self._live, len(self._mask) + np.arange(len(ids)))
        self._mask = np.append(self._mask, np.ones(len(ids), np.int64))
        values = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": self._mask[None],
            "position_ids": positions[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        if "hidden_states" in self._names:
            values["hidden_states"] = self.input_states(past, past + len(ids))[None]
        self._request.infer({name: values[name] for name in values.keys() & self._names}, share_outputs=True)
        self._store_states(self._request, past, len(ids))
        logits: Logits = self._request.get_tensor("logits").data[0]
        return logits


class PagedSequence(CachedSequence):
    """A sequence that owns its cache blocks, which passes of all lengths share.

    Inputs are set once and share memory with arrays: writing a number is quicker than setting a tensor. OpenVINO does
    not own that memory, so each of these arrays is an attribute. Whole chunks of a long prompt are always one
    sequence, which takes a sixth less time.
    """

    def __init__(
        self,
        compiled: openvino.CompiledModel,
        capacity: int,
        fixed: Mapping[int, openvino.CompiledModel],
        layout: Layout = "joined",
    ) -> None:
        """Create a sequence with room for `capacity` tokens; `fixed` are passes compiled for one length."""
        super().__init__(compiled)
        self._compiled, self._fixed, self._layout = compiled, fixed, layout
        self._caches = dict[str, openvino.Tensor]()
        self._passes = dict[tuple[int, int], _Pass]()
        self._padded_states: States = np.zeros((0, 0, 0), np.float32)
        self._capacity = 0
        self._reserve(capacity)

    def _rollback(self, length: int) -> None:
        """Nothing to do: later passes overwrite the positions."""

    def _reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens, keeping the cache, plus one block for a second token; it is never read."""
        cached, blocks = self._capacity // _BLOCK, -(-capacity // _BLOCK)
        self._capacity = blocks * _BLOCK
        for port in self._compiled.inputs:
            name = port.get_any_name()
            if "_cache." in name:
                shape = port.get_partial_shape()
                shape[0] = blocks + 1
                cache = openvino.Tensor(port.get_element_type(), shape.to_shape())
                if cached:
                    begin, end = [0] * len(shape), [cached, *cache.shape[1:]]
                    old = openvino.Tensor(self._caches[name], begin, end)
                    old.copy_to(openvino.Tensor(cache, begin, end))
                self._caches[name] = cache
        self._passes.clear()
        for count in self._fixed:  # off the clock: a small draft's request takes longer to create than to run
            self._pass(count, count)

    def _feed(self, ids: Sequence[int], past: int, last: int) -> Logits:
        count = len(ids)
        # Passes of changing lengths take a quarter longer than compiled ones, so a pass is padded to a compiled
        # length. The padding keeps ids of earlier passes, and later passes overwrite what is cached for it.
        length = min((length for length in self._fixed if count <= length <= 2 * count), default=count)
        if past + length > self._capacity:
            self._reserve(2 * (past + length))
        step = self._pass(length, last)
        step.tokens.array[:count] = ids
        step.positions.array[:length] = np.arange(past, past + length)
        step.past.array[: step.sequences] = np.arange(past, past + step.sequences)
        step.context.array[...] = past + length
        if "hidden_states" in self._names:
            states = self.input_states(past, past + count)
            self._padded_states = np.zeros((step.query_length, 1, states.shape[1]), np.float32)
            self._padded_states[:count, 0] = states
            step.request.set_tensor("hidden_states", openvino.Tensor(self._padded_states, shared_memory=True))
        step.request.infer(share_outputs=True)
        self._store_states(step.request, past, count)
        logits: Logits = step.request.get_output_tensor(0).data
        return logits.reshape(-1, logits.shape[-1])[:count]

    def _pass(self, count: int, last: int) -> "_Pass":
        rows = last if count > LONGEST_FIXED else 0  # short passes return all, so that few requests are created
        step = self._passes.get((count, rows))
        if step is None:
            layout: Layout = self._layout if count < CHUNK else "joined"
            compiled = self._fixed.get(count, self._compiled)
            step = _Pass(compiled, self._caches, count, rows, self._capacity // _BLOCK, layout)
            if count <= _MAX_REUSED:
                self._passes[count, rows] = step
        return step


class _SharedInput:
    def __init__(self, values: Any, kind: Any = np.int32) -> None:
        self.array: npt.NDArray[Any] = np.array(values, kind)
        self.tensor = openvino.Tensor(self.array, shared_memory=True)


def pass_shape(count: int, layout: Layout) -> tuple[int, int, int]:
    """Return the query length of a pass over `count` tokens, its sequences of text, and all its sequences."""
    if layout == "joined":
        return count, 1, 1
    if layout == "empty_sequence":
        return count, count, count + 1
    return max(count, 2), count, max(count, 2)


class _Pass:
    def __init__(
        self,
        compiled: openvino.CompiledModel,
        caches: Mapping[str, openvino.Tensor],
        count: int,
        rows: int,
        blocks: int,
        layout: Layout,
    ) -> None:
        """Prepare a pass over `count` tokens that returns the logits of the last `rows`, or of all if 0."""
        self.query_length, self.sequences, total = pass_shape(count, layout)
        self.tokens, self.positions = (_SharedInput(np.zeros(self.query_length), np.int64) for _ in range(2))
        self.past, self.context = _SharedInput(np.zeros(total)), _SharedInput(0)
        # of an added empty sequence: no blocks; of an added token: the block that is never read
        added = [[] if layout == "empty_sequence" else [blocks]] * (total - self.sequences)
        indices = [[*range(blocks)]] * self.sequences + added
        ends = [0, count] if layout == "joined" else [min(index, self.query_length) for index in range(total + 1)]
        self._inputs = {
            "input_ids": self.tokens,
            "position_ids": self.positions,
            "rows": _SharedInput(np.arange(count - rows if rows else 0, self.query_length)),
            "past_lens": self.past,
            "max_context_len": self.context,
            "subsequence_begins": _SharedInput(ends),
            "block_indices": _SharedInput([block for row in indices for block in row]),
            "block_indices_begins": _SharedInput(np.cumsum([0, *map(len, indices)])),
        }
        self.request = compiled.create_infer_request()
        for name, shared in self._inputs.items():
            self.request.set_tensor(name, shared.tensor)
        for name, cache in caches.items():
            self.request.set_tensor(name, cache)
