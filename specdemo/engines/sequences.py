"""Texts and their caches on one compiled model: finding what a cache holds, feeding the rest, rolling back."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from collections.abc import Sequence as Ids
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino

from specdemo.decoding.sampling import Logits

_CHUNK = 256  # tokens fed in one pass, which bounds the memory of a long prompt's logits
_BLOCK = 32  # positions in a block of OpenVINO's paged attention on CPU


class Cached(ABC):
    """Finds how much of a text is in the cache already. Subclasses feed the rest."""

    def __init__(self) -> None:
        self._fed: list[int] = []

    def logits(self, ids: Ids[int], last: int = 1, width: int = 0) -> Logits:
        """Logits after each of the last tokens of a text."""
        for _ in self.read(ids, last):
            pass
        kept = len(self._fed)
        result = self._feed(ids[kept:], kept, width)
        self._fed = list(ids)
        return result[-last:]

    def read(self, ids: Ids[int], last: int = 1) -> Iterator[int]:
        """Roll back what the text does not contain, then feed it until the rest fits one pass."""
        kept = min(self.shared(ids), len(ids) - last)
        self._rollback(kept)
        self._fed = list(ids[:kept])
        while len(ids) - kept > _CHUNK:
            end = min(kept + _CHUNK, len(ids) - last)
            self._feed(ids[kept:end], kept)
            kept = end
            self._fed = list(ids[:kept])
            yield kept

    def shared(self, ids: Ids[int]) -> int:
        """How many of a text's first tokens are in the cache."""
        kept = min(len(self._fed), len(ids))
        while self._fed[:kept] != ids[:kept]:
            kept -= 1
        return kept

    def forget(self) -> None:
        """Empty the cache."""
        self._fed.clear()
        self._rollback(0)

    @abstractmethod
    def _rollback(self, kept: int) -> None:
        """Keep only the first `kept` tokens."""

    @abstractmethod
    def _feed(self, ids: Ids[int], past: int, width: int = 0) -> Logits:
        """Append to the past tokens; logits after each, shape (len(ids), vocabulary)."""


class Uncached:
    """Feeds the whole text every time."""

    def __init__(self, sequence: Cached) -> None:
        self._sequence = sequence

    def logits(self, ids: Ids[int], last: int = 1, width: int = 0) -> Logits:
        """Logits after each of the last tokens of a text."""
        self._sequence.forget()
        return self._sequence.logits(ids, last)

    def read(self, ids: Ids[int]) -> Iterator[int]:
        """Nothing is kept."""
        return iter(())

    def shared(self, ids: Ids[int]) -> int:
        """Nothing is."""
        return 0


class Stateful(Cached):
    """The cache is the model's state."""

    def __init__(self, compiled: openvino.CompiledModel) -> None:
        super().__init__()
        self._names = {name for port in compiled.inputs for name in port.get_names()}
        self._request = compiled.create_infer_request()
        self._mask = np.zeros(0, np.int64)
        self._live = np.zeros(0, np.int64)  # the cache position of each token that counts

    def _rollback(self, kept: int) -> None:
        if kept:
            self._mask[self._live[kept:]] = 0
        else:
            self._request.reset_state()
            self._mask = self._mask[:0]
        self._live = self._live[:kept]

    def _feed(self, ids: Ids[int], past: int, width: int = 0) -> Logits:
        positions = np.arange(past, past + len(ids), dtype=np.int64)
        self._live = np.append(self._live, len(self._mask) + np.arange(len(ids)))
        self._mask = np.append(self._mask, np.ones(len(ids), np.int64))
        values = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": self._mask[None],
            "position_ids": positions[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.infer({name: values[name] for name in values.keys() & self._names}, share_outputs=True)
        logits: Logits = self._request.get_tensor("logits").data[0]
        return logits


class Paged(Cached):
    """The cache is in blocks that belong to this sequence.

    Inputs are set once and share memory with arrays that are written before each pass: setting a tensor takes
    longer than writing a number, and a draft step is short. OpenVINO does not own that memory, so every such array
    is an attribute.
    """

    def __init__(self, compiled: openvino.CompiledModel, capacity: int) -> None:
        super().__init__()
        self._request = compiled.create_infer_request()
        self._ports = [port for port in compiled.inputs if "_cache." in port.get_any_name()]
        self._past = self._share("past_lens", [0], np.int32)
        self._end = self._share("subsequence_begins", [0, 0], np.int32)
        self._context = self._share("max_context_len", 0, np.int32)
        self._inputs: dict[int, tuple[_Shared, _Shared]] = {}  # by number of tokens: ids and positions
        self._length = self._capacity = 0
        self._reserve(capacity)

    def _rollback(self, kept: int) -> None:
        """Nothing to do: everything past the kept positions is overwritten."""

    def _reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens, keeping what is cached."""
        cached, blocks = self._capacity // _BLOCK, -(-capacity // _BLOCK)
        self._capacity = blocks * _BLOCK
        for port in self._ports:
            shape = port.get_partial_shape()
            shape[0] = blocks
            grown = openvino.Tensor(port.get_element_type(), shape.to_shape())
            if cached:
                begin, end = [0] * len(shape), [cached, *grown.shape[1:]]
                self._request.get_tensor(port).copy_to(openvino.Tensor(grown, begin, end))
            self._request.set_tensor(port, grown)
        self._blocks = self._share("block_indices", range(blocks), np.int32)
        self._block_ends = self._share("block_indices_begins", [0, blocks], np.int32)

    def _feed(self, ids: Ids[int], past: int, width: int = 0) -> Logits:
        """Padding fed beyond the text is overwritten by what comes next."""
        count = max(len(ids), width)
        if past + count > self._capacity:
            self._reserve(2 * (past + count))
        if count not in self._inputs:
            self._inputs[count] = _Shared(count), _Shared(count)
        tokens, positions = self._inputs[count]
        if count != self._length:
            self._request.set_tensor("input_ids", tokens.tensor)
            self._request.set_tensor("position_ids", positions.tensor)
            self._length = count
        tokens.array[: len(ids)] = ids
        # not beyond the text's last position, which may be the model's last
        positions.array[:] = np.minimum(np.arange(past, past + count), past + len(ids) - 1)
        self._past[0], self._end[1], self._context[...] = past, count, past + count
        self._request.infer(share_outputs=True)
        logits: Logits = self._request.get_output_tensor(0).data.reshape(count, -1)
        return logits[: len(ids)]

    def _share(self, name: str, values: Any, kind: Any) -> npt.NDArray[Any]:
        array = np.array(values, kind)
        self._request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        return array


class _Shared:
    """An array of token ids or positions, and a tensor on the same memory."""

    def __init__(self, count: int) -> None:
        self.array = np.zeros(count, np.int64)
        self.tensor = openvino.Tensor(self.array, shared_memory=True)
