"""Sequences on a compiled model: find what the cache holds, feed the rest, roll back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ids
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino

from specdemo.decoding.verification import Logits

_CHUNK = 256  # tokens fed per pass, which bounds the memory of a long prompt's logits
_REPEATED = 65  # tokens of the longest verification, whose inputs are kept
_BLOCK = 32  # positions per block of OpenVINO's paged attention on CPU


States = npt.NDArray[np.float32]
"""Hidden states, shape (tokens, hidden)."""


class Cached(ABC):
    """Base of sequences with a cache; it finds what is cached, and subclasses feed the rest.

    A model may output hidden states besides logits, and read some as `hidden_states`: `reads(first, last)` then
    returns those of positions `first` to before `last`.
    """

    reads: Callable[[int, int], States]

    def __init__(self, compiled: openvino.CompiledModel) -> None:
        self._fed: list[int] = []
        self._request = compiled.create_infer_request()
        self._names = {name for port in compiled.inputs for name in port.get_names()}
        self._shows = len(compiled.outputs) > 1
        self._states: States = np.zeros((0, 0), np.float32)

    @property
    def cached(self) -> "Cached":
        """This sequence."""
        return self

    def states(self, first: int, last: int) -> States:
        """Return the model's hidden states at positions `first` to before `last`."""
        return self._states[first:last]

    def _note(self, past: int, count: int) -> None:
        """Keep the hidden states of the last pass."""
        if not self._shows:
            return
        found = self._request.get_output_tensor(1).data
        found = found.reshape(-1, found.shape[-1])[:count]
        if past + count > len(self._states):
            grown = np.zeros((2 * (past + count), found.shape[1]), np.float32)
            if past:
                grown[:past] = self._states[:past]
            self._states = grown
        self._states[past : past + count] = found

    def logits(self, ids: Ids[int], last: int = 1, width: int = 0) -> Logits:
        """Return logits after each of the last tokens of a text."""
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
            end = min(kept - kept % _CHUNK + _CHUNK, len(ids) - last)  # the same chunks wherever reading begins
            self._feed(ids[kept:end], kept)
            kept = end
            self._fed = list(ids[:kept])
            yield kept

    def shared(self, ids: Ids[int]) -> int:
        """Return how many leading tokens of a text are in the cache."""
        kept = min(len(self._fed), len(ids))
        while self._fed[:kept] != ids[:kept]:
            kept -= 1
        return kept

    def keep(self, tokens: int) -> None:
        """Drop all but the first tokens."""
        del self._fed[tokens:]
        self._rollback(len(self._fed))

    @abstractmethod
    def _rollback(self, kept: int) -> None:
        """Keep only the first `kept` tokens."""

    @abstractmethod
    def _feed(self, ids: Ids[int], past: int, width: int = 0) -> Logits:
        """Append to the past tokens; return logits after each, shape (len(ids), vocabulary)."""


class Uncached:
    """Feeds the whole text every time."""

    def __init__(self, sequence: Cached) -> None:
        self._sequence = sequence

    def logits(self, ids: Ids[int], last: int = 1, width: int = 0) -> Logits:
        self._sequence.keep(0)
        return self._sequence.logits(ids, last)

    @property
    def cached(self) -> Cached:
        """The cached sequence beneath, valid until the text is fed again."""
        return self._sequence

    def read(self, ids: Ids[int]) -> Iterator[int]:
        return iter(())

    def shared(self, ids: Ids[int]) -> int:
        return 0


class Stateful(Cached):
    """A sequence whose cache is the model's state."""

    def __init__(self, compiled: openvino.CompiledModel) -> None:
        super().__init__(compiled)
        self._mask = np.zeros(0, np.int64)
        self._live = np.zeros(0, np.int64)  # cache positions of the valid tokens

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
        if "hidden_states" in self._names:
            values["hidden_states"] = self.reads(past, past + len(ids))[None]
        self._request.infer({name: values[name] for name in values.keys() & self._names}, share_outputs=True)
        self._note(past, len(ids))
        logits: Logits = self._request.get_tensor("logits").data[0]
        return logits


class Paged(Cached):
    """A sequence that owns its cache blocks.

    Inputs are set once and share memory with arrays written before each pass: setting a tensor takes longer than
    writing a number, and draft steps are short. OpenVINO does not own that memory, so every such array is an
    attribute.

    Attention rounds differently over one token than over several, by 3e-8, and quantized activations turn that into
    whole logits. With `per_token`, every token is therefore a sequence of its own on the same blocks; keys and values
    of all are stored before any is read. So a pass over several tokens has exactly the logits of as many passes over
    one. Only whole chunks of a long prompt are one sequence: they take a sixth less time.
    """

    def __init__(self, compiled: openvino.CompiledModel, capacity: int, *, per_token: bool = False) -> None:
        super().__init__(compiled)
        self._ports = [port for port in compiled.inputs if "_cache." in port.get_any_name()]
        self._per_token = per_token
        self._context = _Shared(0)
        self._request.set_tensor("max_context_len", self._context.tensor)
        self._hidden = "hidden_states" in self._names
        self._layouts: dict[int, _Layout] = {}
        self._set = dict[str, _Shared]()  # by input
        self._capacity = 0
        self._reserve(capacity)

    def _rollback(self, kept: int) -> None:
        """Do nothing: positions beyond those kept are overwritten."""

    def _reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens, keeping the cache."""
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
        self._layouts.clear()
        self._whole = _Sequences(1, blocks)

    def _feed(self, ids: Ids[int], past: int, width: int = 0) -> Logits:
        """Feed tokens; any padding is overwritten by later ones."""
        count = max(len(ids), width)
        if past + count > self._capacity:
            self._reserve(2 * (past + count))
        layout = self._arrange(count, per_token=self._per_token and count < _CHUNK)
        layout.tokens.array[: len(ids)] = ids
        # not beyond the text's last position, which may be the model's last
        layout.positions.array[:] = np.minimum(np.arange(past, past + count), past + len(ids) - 1)
        sequences = layout.sequences
        sequences.past.array[: sequences.number] = np.arange(past, past + sequences.number)
        if sequences is self._whole:
            sequences.ends.array[1] = count
        self._context.array[...] = past + count
        if self._hidden:
            self._read = np.ascontiguousarray(self.reads(past, past + count)[:, None])
            self._request.set_tensor("hidden_states", openvino.Tensor(self._read, shared_memory=True))
        self._request.infer(share_outputs=True)
        self._note(past, len(ids))
        logits: Logits = self._request.get_output_tensor(0).data.reshape(count, -1)
        return logits[: len(ids)]

    def _arrange(self, count: int, *, per_token: bool) -> "_Layout":
        """Set the inputs for a pass over `count` tokens, of one sequence or of as many."""
        layout = self._layouts.get(count)
        if layout is None:
            sequences = _Sequences(count, self._capacity // _BLOCK, empty=1) if per_token else self._whole
            layout = _Layout(count, sequences)
            if count <= _REPEATED:
                self._layouts[count] = layout
        for name, shared in layout.inputs.items():
            if self._set.get(name) is not shared:
                self._request.set_tensor(name, shared.tensor)
                self._set[name] = shared
        return layout


class _Shared:
    """An array, and a tensor on the same memory."""

    def __init__(self, values: Any, kind: Any = np.int32) -> None:
        self.array: npt.NDArray[Any] = np.array(values, kind)
        self.tensor = openvino.Tensor(self.array, shared_memory=True)


class _Sequences:
    """A pass's sequences in paged attention, all on the same blocks: cached positions, and where each begins.

    Sequences of one token are followed by an empty one: with it, OpenVINO computes the attention of a single token as
    it does that of several.
    """

    def __init__(self, number: int, blocks: int, *, empty: int = 0) -> None:
        self.number = number
        order = [min(index, number) for index in range(number + empty + 1)]
        self.past, self.ends = _Shared(np.zeros(number + empty)), _Shared(order)
        self.inputs = {
            "past_lens": self.past,
            "subsequence_begins": self.ends,
            "block_indices": _Shared([*range(blocks)] * number),
            "block_indices_begins": _Shared([index * blocks for index in order]),
        }


class _Layout:
    """Inputs of a pass over this many tokens."""

    def __init__(self, tokens: int, sequences: _Sequences) -> None:
        self.sequences = sequences
        self.tokens, self.positions = _Shared(np.zeros(tokens), np.int64), _Shared(np.zeros(tokens), np.int64)
        self.inputs = {"input_ids": self.tokens, "position_ids": self.positions, **sequences.inputs}
