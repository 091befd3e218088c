"""A decoder-only model run directly on `openvino`, with or without a KV cache, and an EAGLE-3 head for one.

Token ids go in, logits come out. One compiled model serves any number of sequences, each with its own cache. A
sequence returns logits for a whole text, but feeds only what its cache lacks, after rolling back what the text no
longer contains. Rolling back copies nothing:

- Paged attention on CPU, as in GenAI: the cache is in blocks that we own, and the model is given how many positions
  are valid. Rejected ones are simply overwritten. OpenVINO's transformation that adds these inputs is not public; if
  it fails for a model, the model runs statefully:
- Stateful, through the public API: the cache is inside the model. Rejected positions stay in it, their entries in the
  attention mask become 0, and position ids continue from the accepted length.

An EAGLE-3 head proposes a token from the last token and the target's hidden states at the token before: its residual
stream after three layers, combined by the product `fc` into one state. For a token that the target has not read yet,
the head's own residual stream takes their place. So a head is cut in two, at the output of `fc`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np
import openvino
from openvino import _offline_transformations
from openvino import opset13 as ops

from specdemo.decoding.verification import Logits, distribution, greedy_choice, resized
from specdemo.engines.sequences import Cached, Paged, Stateful, States, Uncached
from specdemo.errors import OPENVINO_FAILURES, LoadError, PairError
from specdemo.settings import Sampling

_READ, _FED, _CYCLES = 16, 5, 8  # of the trial behind `feeds_singly`: context tokens, tokens fed, repetitions


class ModelSequence(Protocol):
    """A text and its cache."""

    def logits(self, ids: Sequence[int], last: int = 1, width: int = 0) -> Logits:
        """Return logits after each of the last tokens of a text, shape (last, vocabulary); valid until the next call.

        The pass may be padded to `width` tokens, the previous pass's length, where a shape change costs time.
        """

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        """Prefill most of a long text, yielding the number of tokens read so far."""

    def shared(self, ids: Sequence[int]) -> int:
        """Return how many leading tokens of a text are in the cache."""


Adapt = Callable[[openvino.Model], None]
"""Modifies a model before it is compiled."""


class LanguageModel:
    """A compiled model."""

    def __init__(
        self,
        folder: Path,
        device: str,
        properties: dict[str, str],
        *,
        paged: bool = True,
        per_token: bool = False,
        adapt: Adapt = lambda model: None,
    ) -> None:
        """Read and compile the folder's model.

        With `per_token`, passes are those of `Paged` where it quantizes activations.

        Raises:
            LoadError: OpenVINO cannot load the model on this device.
        """
        self.paged = paged and device.startswith("CPU")  # other devices have other block sizes and layouts
        try:
            self._compiled = self._compile(folder, device, properties, adapt)
        except OPENVINO_FAILURES as error:
            what = f"OpenVINO cannot load {folder.name!r} on {device}"
            raise LoadError.of(error, what, "export it again") from error
        self._per_token = per_token and self._quantizes

    @property
    def _quantizes(self) -> bool:
        """Whether activations are quantized, but not the KV cache: its scales may depend on all tokens of a block."""
        floats = (openvino.Type.f32, openvino.Type.f16, openvino.Type.bf16)
        group, cache = map(self._compiled.get_property, ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "KV_CACHE_PRECISION"))
        return group > 0 and cache in floats

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
        """Return a new, empty sequence with room for `capacity` tokens; it grows if needed."""
        return self.cached(capacity) if kv_cache else Uncached(self.cached(capacity))

    def cached(self, capacity: int) -> Cached:
        """Return a new sequence with a cache."""
        return Paged(self._compiled, capacity, per_token=self._per_token) if self.paged else Stateful(self._compiled)

    @cached_property
    def feeds_singly(self) -> bool:
        """Whether two tokens between single ones are faster in two passes than in one; measured at first use.

        One pass can be slower, since every operation is prepared anew when the length changes.
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


_CHUNK = 256  # tokens whose logits are computed together, which bounds memory


def draft_agreement(
    draft: ModelSequence, text: Sequence[int], first: int, sampling: Sampling, vocabulary: int | None = None
) -> tuple[bool, ...]:
    """Return, for each token of a text from index `first` on, whether the draft's greedy choice is the same.

    `vocabulary` is the number of tokens to choose among, if not the draft's own number of logits.
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


_LEAST = 1e-12  # least probability, to keep logarithms finite


def log_probabilities(
    target: ModelSequence, start: Sequence[int], tokens: Sequence[int], sampling: Sampling, *, apart: bool
) -> list[float]:
    """Return the log-probability of each token after `start`, from one pass or, if `apart`, one pass per token."""
    text = [*start, *tokens]
    ends = range(len(start), len(text))
    rows = (target.logits(text[:end])[0] for end in ends) if apart else target.logits(text[:-1], len(tokens))
    return [
        math.log(max(float(distribution(row, sampling, set(text[:end]))[text[end]]), _LEAST))
        for row, end in zip(rows, ends, strict=True)
    ]


_LEAST_LAYERS = 10  # of a target; GenAI refuses fewer
_NEVER = np.float32(-2e4)  # logit of tokens that a head lacks


def show_states(model: openvino.Model) -> None:
    """Add a second output to a target: the hidden states that a head reads, shape [..., 3 * hidden].

    Raises:
        PairError: the target has too few layers for a head.
    """
    ends = layer_ends(model)
    if len(ends) < _LEAST_LAYERS:
        raise PairError(
            "An EAGLE-3 head needs a target of at least ten layers; choose the target it was trained for."
        )
    _add_output(model, ops.concat([ends[layer] for layer in seen_layers(len(ends))], -1))


class HeadModel:
    """A compiled EAGLE-3 head, cut in two at the output of `fc`."""

    def __init__(self, folder: Path, device: str, properties: dict[str, str], vocabulary: int) -> None:
        """Load a head for a target with this vocabulary size.

        Raises:
            PairError: its structure is not recognised.
            LoadError: OpenVINO cannot load it on this device.
        """
        self._vocabulary = vocabulary
        self._model = LanguageModel(folder, device, properties, adapt=self._cut)
        self._joined = openvino.Core().compile_model(self._fc, device, properties)

    def sequence(self, target: ModelSequence, capacity: int, *, kv_cache: bool = True) -> "HeadSequence":
        """Return a new, empty sequence attached to the target's."""
        assert isinstance(target, Cached | Uncached), "only these keep states"
        return HeadSequence(self._model.cached(capacity), self._joined, target, kv_cache=kv_cache)

    def _cut(self, model: openvino.Model) -> None:
        """Cut off `fc`, map logits to the target's vocabulary, and add the residual stream as an output."""
        given = next((one for one in model.get_parameters() if one.output(0).get_names() == {"hidden_states"}), None)
        ends = layer_ends(model)
        if given is None or not ends:
            raise PairError("The draft is not a supported EAGLE-3 head; choose another.")
        (port,) = given.output(0).get_target_inputs()
        product = port.get_node()
        state = ops.parameter(product.get_output_partial_shape(0), openvino.Type.f32)
        state.set_friendly_name("hidden_states")
        for reader in product.output(0).get_target_inputs():
            reader.replace_source_output(state.output(0))
        model.remove_parameter(given)
        state.output(0).set_names({"hidden_states"})
        model.add_parameters([state])
        self._fc = openvino.Model([ops.result(product)], [given], "fc")
        self._translate(model)
        _add_output(model, ends[-1])

    def _translate(self, model: openvino.Model) -> None:
        """Map logits to the target's tokens; `d2t` holds each token's target id minus its own id."""
        logits, map_ = (model.output(name).get_node().input_value(0) for name in ("logits", "d2t"))
        differences = np.array(map_.get_node().data)
        model.remove_result(model.output("d2t").get_node())
        if len(differences) == self._vocabulary and not differences.any():
            return
        places = np.full(self._vocabulary, len(differences))
        own = np.arange(len(differences))
        places[(own + differences)[::-1]] = own[::-1]  # if several map to one token, the first counts
        padded = ops.pad(logits, [0, 0, 0], [0, 0, 1], "constant", ops.constant(_NEVER))
        whole = ops.gather(padded, ops.constant(places), ops.constant(-1))
        logits.set_names(set())
        whole.output(0).set_names({"logits"})
        model.output(0).get_node().input(0).replace_source_output(whole.output(0))


class HeadSequence:
    """A text as the head reads it, and the head's cache.

    Entry i is token i + 1, read with the state of token i: `fc` of the target's hidden states, if the target has read
    that token, else the head's residual stream after the previous entry. Entries of the latter kind are read again
    once the target's states exist.
    """

    def __init__(
        self, own: Cached, joined: openvino.CompiledModel, target: Cached | Uncached, *, kv_cache: bool
    ) -> None:
        self._own, self._target, self._kv_cache = own, target, kv_cache
        self._join = joined.create_infer_request()
        self._true = 0  # cached entries read with the target's states
        own.reads = self._states

    def logits(self, ids: Sequence[int], last: int = 1, width: int = 0) -> Logits:
        """Return logits after each of the last tokens; more than one only if the target has read them."""
        entries, known = list(ids[1:]), min(self._target.cached.shared(ids), len(ids) - 1)
        kept = max(0, min(self._own.shared(entries), len(entries) - last)) if self._kv_cache else 0
        self._true = min(self._true, kept)
        if known > self._true:
            kept = self._true
        self._own.keep(kept)
        found: Logits = np.zeros((0, 0), np.float32)  # for a one-token text, in which there is nothing to read yet
        if known > kept:
            self._true = known
            found = self._own.logits(entries[:known], min(last, known))
        for end in range(max(known, kept) + 1, len(entries) + 1):
            found = self._own.logits(entries[:end])
        return found

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        """Yield nothing: a head is fast enough to read everything when asked for logits."""
        return iter(())

    def shared(self, ids: Sequence[int]) -> int:
        """Return how many leading tokens of a text are in the cache."""
        return self._own.shared(ids[1:]) + 1

    def _states(self, first: int, last: int) -> States:
        if last > self._true:
            return self._own.states(first - 1, last - 1)
        self._join.infer([self._target.cached.states(first, last)[None]])
        joined: States = self._join.get_output_tensor(0).data[0]
        return joined


def _add_output(model: openvino.Model, node: openvino.Node) -> None:
    model.add_results([ops.result(node)])


def layer_ends(model: openvino.Model) -> list[openvino.Node]:
    """Return the additions that end each layer's residual stream, found by structure: names differ.

    The MLP's addition is a matrix product whose input is an elementwise one (gate times up); GenAI finds the layers
    that an EAGLE-3 head reads in that way.
    """
    ends = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Add":
            continue
        added = node.input_value(1).get_node()
        if added.get_type_name() == "MatMul" and added.input_value(0).get_node().get_type_name() == "Multiply":
            ends.append(node)
    return ends


def seen_layers(layers: int) -> tuple[int, int, int]:
    """Return the layers whose states an EAGLE-3 head reads, as GenAI chooses them."""
    return 2, layers // 2, layers - 3
