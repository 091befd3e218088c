"""A decoder-only model, and an EAGLE-3 head, run directly on `openvino`, with or without a KV cache.

One compiled model serves any number of sequences, each with its own cache, and rolling back copies nothing. With
paged attention on CPU, as in GenAI, we own the cache's blocks and pass how many positions are valid, so rejected ones
are overwritten. OpenVINO's transformation for this is not public. Where it fails, rejected positions stay in the
stateful model's cache, masked out of attention.

An EAGLE-3 head proposes a token from the last token and the target's residual stream after three layers, combined by
the product `fc`. Where the target has not read a token yet, the head's own residual stream replaces them. Heads are
therefore cut in two at the output of `fc`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
from openvino import _offline_transformations
from openvino import opset13 as ops

from specdemo.decoding.round import ModelSequence
from specdemo.decoding.sampling import Logits
from specdemo.engines.sequences import (
    LONGEST_FIXED,
    CachedSequence,
    Layout,
    PagedSequence,
    StatefulSequence,
    States,
    pass_shape,
)
from specdemo.errors import OPENVINO_FAILURES, LoadError, PairError
from specdemo.models.devices import FIXED_BYTES, release_mapped_weights
from specdemo.models.folder import ROUGH_HEAD

COMPILE_POOL = ThreadPoolExecutor(2)  # to load parts of a model at the same time; OpenVINO compiles on one core
# Tokens whose logits are computed in full: 64 take 0.05 ms longer than 16 in a pass over five tokens, and halve the
# divergence from the model's distribution.
_LIKELIEST = 64
_TRIAL_TOKENS = 40  # tokens of context in the trial of a layout: more than a block of the cache


Transformation = Callable[[openvino.Model], None]  # modifies a model before it is compiled
Tokens = npt.NDArray[np.int64]  # the token of each column of a draft's logits


class LanguageModel:
    def __init__(
        self,
        folder: Path,
        device: str,
        properties: dict[str, str],
        *,
        paged: bool = True,
        layouts: Sequence[Layout] = (),
        adapt: Transformation = lambda model: None,
        lengths: Iterable[int] = (),
    ) -> None:
        """Load a model. If activations are quantized, choose the first of `layouts` that repeats bits here, or None.

        A single layout is taken without a trial. Passes of these `lengths` are compiled beside the model, since
        OpenVINO compiles each on one core.
        """
        self.paged = paged and device.startswith("CPU")  # other devices have other block sizes and layouts
        self._fixed = dict[int, Future[openvino.CompiledModel]]()
        weights = folder / "openvino_model.bin"
        self._small = weights.is_file() and weights.stat().st_size <= FIXED_BYTES
        self._device, self._properties = device, properties
        quantized = properties.get("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0") != "0"
        self.layout: Layout | None = layouts[0] if layouts and quantized else "joined"
        self._model: openvino.Model | None = None  # kept to compile passes of fixed length
        try:
            self._compiled = self._compile(folder, adapt, lengths)
        except OPENVINO_FAILURES as error:
            message = f"OpenVINO cannot load {folder.name!r} on {device}"
            raise LoadError.of(error, message, "export it again") from error
        if not (layouts and self.paged and self._quantizes):
            self.use_layout("joined")
        elif len(layouts) > 1:
            self.use_layout(next((layout for layout in layouts if self.repeats_bits(layout)), None))
            release_mapped_weights()  # the trial has packed them

    def use_layout(self, layout: Layout | None) -> None:
        if layout != self.layout:
            self.layout = layout
            self._fixed.clear()

    @property
    def _quantizes(self) -> bool:
        """Whether activations are quantized, but not the KV cache: its scales may depend on all tokens of a block."""
        floats = (openvino.Type.f32, openvino.Type.f16, openvino.Type.bf16)
        group, cache = map(self._compiled.get_property, ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "KV_CACHE_PRECISION"))
        return group > 0 and cache in floats

    def repeats_bits(self, layout: Layout) -> bool:
        """Whether a pass over three tokens has the same logits, to the bit, as three passes over one.

        False also if passes fail: OpenVINO may compile quantized activations for which oneDNN has no kernel.
        """
        text = [index % self.vocabulary for index in range(1, _TRIAL_TOKENS + 4)]
        sequence = PagedSequence(self._compiled, len(text), {}, layout)
        try:
            sequence.logits(text[:_TRIAL_TOKENS])
            singly = [sequence.logits(text[:end])[0].copy() for end in range(_TRIAL_TOKENS + 1, _TRIAL_TOKENS + 4)]
        except RuntimeError:
            return False
        sequence.truncate(_TRIAL_TOKENS)
        return np.array_equal(np.array(singly), sequence.logits(text, 3))

    def _compile(self, folder: Path, adapt: Transformation, lengths: Iterable[int]) -> openvino.CompiledModel:
        core, file = openvino.Core(), folder / "openvino_model.xml"
        model = core.read_model(file)
        adapt(model)
        if self.paged:
            try:
                _offline_transformations.paged_attention_transformation(model)
                _select_rows(model)
                if (folder / ROUGH_HEAD).is_file():
                    _add_rough_head(model, core.read_model(folder / ROUGH_HEAD))
                self._model = model if self._small else None
                self._start(lengths)
                return core.compile_model(model, self._device, self._properties)
            except RuntimeError:
                self.paged, self._model = False, None
                model = core.read_model(file)
                adapt(model)
        return core.compile_model(model, self._device, self._properties)

    @property
    def compiles_lengths(self) -> bool:
        return self._model is not None

    def compile_lengths(self, lengths: Iterable[int]) -> None:
        """Compile passes of these lengths with fixed shapes, if the model is small: same bits, a tenth less time."""
        self._start(lengths)
        wait(self._fixed.values())

    def _start(self, lengths: Iterable[int]) -> None:
        for count in set(lengths) - self._fixed.keys():
            if self._model is not None and count <= LONGEST_FIXED:
                length, _, sequences = pass_shape(count, self.layout or "joined")
                self._fixed[count] = COMPILE_POOL.submit(self._compile_fixed, self._model.clone(), length, sequences)

    def _compile_fixed(self, model: openvino.Model, length: int, sequences: int) -> openvino.CompiledModel:
        inputs = {port.get_any_name(): port.get_partial_shape() for port in model.inputs}
        shapes: dict[str, list[Any]] = {
            "input_ids": [length],
            "position_ids": [length],
            "rows": [length],
            "hidden_states": [length, 1, *list(inputs.get("hidden_states", []))[2:]],
            "past_lens": [sequences],
            "subsequence_begins": [sequences + 1],
            "block_indices_begins": [sequences + 1],
        }
        model.reshape({name: openvino.PartialShape(shapes[name]) for name in shapes.keys() & inputs.keys()})
        return openvino.Core().compile_model(model, self._device, self._properties)

    def sequence(self, capacity: int, *, kv_cache: bool = True) -> CachedSequence:
        sequence: CachedSequence
        if self.paged:
            # where compiling failed, for example because positions have another form, passes stay dynamic
            fixed = {count: future.result() for count, future in self._fixed.items() if future.exception() is None}
            sequence = PagedSequence(self._compiled, capacity, fixed, self.layout or "joined")
        else:
            sequence = StatefulSequence(self._compiled)
        sequence.kv_cache = kv_cache
        return sequence

    @property
    def vocabulary(self) -> int:
        return int(self._compiled.outputs[0].get_partial_shape()[-1].get_length())


def _select_rows(model: openvino.Model) -> None:
    """Compute logits only for the rows that are asked for: all of them take a seventh of a prompt's time, or more."""
    port = model.output("logits").get_node().input(0)
    if (product := port.get_source_output().get_node()).get_type_name() == "MatMul":
        port = product.input(0)
    rows = ops.parameter([-1], np.int32)
    rows.output(0).set_names({"rows"})
    port.replace_source_output(ops.gather(port.get_source_output(), rows, np.int64(0)).output(0))
    model.add_parameters([rows])


def _add_rough_head(model: openvino.Model, head: openvino.Model) -> None:
    """Compute all logits with the head in 4 bits, and those of the likeliest tokens again with the model's own.

    A step reads the output head whole, a seventh of the weights of 1.5 billion, and few of its rows decide.
    """
    result = model.output("logits").get_node()
    product = result.input_value(0).get_node()
    states, weights = product.input_value(0), product.input_value(1)
    head.get_parameters()[0].output(0).replace(states)
    rough = head.get_results()[0].input_value(0)
    likeliest = ops.topk(rough, np.int64(_LIKELIEST), -1, "max", "none").output(1)
    rows = ops.gather(weights, likeliest, np.int64(0))
    exact = ops.squeeze(ops.matmul(ops.unsqueeze(states, np.int64(-2)), rows, False, True), np.int64(-2))
    logits = ops.scatter_elements_update(rough, likeliest, exact, np.int64(-1)).output(0)
    product.output(0).set_names(set())
    logits.set_names({"logits"})
    result.input(0).replace_source_output(logits)


class ReducedVocabulary:
    """Removes the gather that spreads a draft's logits over all the target's tokens, a copy in every step."""

    def __init__(self) -> None:
        self.tokens: Tokens | None = None  # None if column i is token i

    def __call__(self, model: openvino.Model) -> None:
        result = model.output("logits").get_node()
        gather = result.input_value(0).get_node()
        if gather.get_type_name() != "Gather" or gather.input_value(1).get_node().get_type_name() != "Constant":
            return
        logits, indices = gather.input_value(0), np.array(gather.input_value(1).get_node().data)
        if indices.ndim != 1 or logits.get_partial_shape()[-1].is_dynamic:
            return
        # the first token of each column; the column for tokens that the draft lacks is never likely
        columns, first_tokens = np.unique(indices, return_index=True)
        self.tokens = np.zeros(logits.get_partial_shape()[-1].get_length(), np.int64)
        self.tokens[columns] = first_tokens
        gather.output(0).set_names(set())
        logits.set_names({"logits"})
        result.input(0).replace_source_output(logits)


_MIN_LAYERS = 10  # of a target; GenAI refuses fewer


def add_states_output(model: openvino.Model) -> None:
    """Add a second output to a target: the hidden states that a head reads, shape [..., 3 * hidden]."""
    ends = layer_ends(model)
    if len(ends) < _MIN_LAYERS:
        raise PairError(
            "An EAGLE-3 head needs a target of at least ten layers; choose the target it was trained for."
        )
    layers = 2, len(ends) // 2, len(ends) - 3  # as GenAI chooses them
    model.add_results([ops.result(ops.concat([ends[layer] for layer in layers], -1))])


class HeadModel:
    """`tokens` holds the target's id of each of the head's tokens."""

    def __init__(
        self, folder: Path, device: str, properties: dict[str, str], layouts: Sequence[Layout], lengths: Iterable[int]
    ) -> None:
        self.model = LanguageModel(folder, device, properties, layouts=layouts, adapt=self._cut, lengths=lengths)
        self._compiled_fc = openvino.Core().compile_model(self._fc, device, properties)

    def sequence(self, target: ModelSequence, capacity: int, *, kv_cache: bool = True) -> "HeadSequence":
        assert isinstance(target, CachedSequence), "only these keep states"
        return HeadSequence(self.model.sequence(capacity), self._compiled_fc, target, kv_cache=kv_cache)

    def _cut(self, model: openvino.Model) -> None:
        states = [node for node in model.get_parameters() if node.output(0).get_names() == {"hidden_states"}]
        ends = layer_ends(model)
        if not (states and ends):
            raise PairError("The draft is not a supported EAGLE-3 head; choose another.")
        (port,) = states[0].output(0).get_target_inputs()
        product = port.get_node()
        state = ops.parameter(product.get_output_partial_shape(0), openvino.Type.f32)
        state.set_friendly_name("hidden_states")
        for reader in product.output(0).get_target_inputs():
            reader.replace_source_output(state.output(0))
        model.remove_parameter(states[0])
        state.output(0).set_names({"hidden_states"})
        model.add_parameters([state])
        self._fc = openvino.Model([ops.result(product)], states, "fc")
        # `d2t` holds the target's id of each of the head's tokens, less its own id
        result = model.output("d2t").get_node()
        differences = np.array(result.input_value(0).get_node().data, np.int64)
        model.remove_result(result)
        self.tokens: Tokens = np.arange(len(differences)) + differences
        reduced = ReducedVocabulary()
        reduced(model)
        if reduced.tokens is not None:
            self.tokens = self.tokens[reduced.tokens]
        model.add_results([ops.result(ends[-1])])


class HeadSequence:
    """A text as the head reads it, and the head's cache.

    Entry i is token i + 1, read with the state of token i: `fc` of the target's hidden states or, until the target
    has read token i, the head's residual stream after the previous entry. The latter entries are read again later.
    """

    def __init__(
        self, head: CachedSequence, fc: openvino.CompiledModel, target: CachedSequence, *, kv_cache: bool
    ) -> None:
        self._head, self._target, self._kv_cache = head, target, kv_cache
        self._fc = fc.create_infer_request()
        self._final = 0  # cached entries read with the target's states
        head.input_states = self._states

    def logits(self, ids: Sequence[int], last: int = 1) -> Logits:
        """Return logits after each of the last tokens; more than one only if the target has read them."""
        entries, read = list(ids[1:]), min(self._target.common_prefix(ids), len(ids) - 1)
        reused = max(0, min(self._head.common_prefix(entries), len(entries) - last)) if self._kv_cache else 0
        self._final = min(self._final, reused)
        if read > self._final:
            reused = self._final
        self._head.truncate(reused)
        logits: Logits = np.zeros((0, 0), np.float32)  # of a one-token text, which has no entry
        if read > reused:
            self._final = read
            logits = self._head.logits(entries[:read], min(last, read))
        for end in range(max(read, reused) + 1, len(entries) + 1):
            logits = self._head.logits(entries[:end])
        return logits

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        """Yield nothing: a head is fast enough to read everything when asked for logits."""
        return iter(())

    def _states(self, first: int, last: int) -> States:
        if last > self._final:
            return self._head.states(first - 1, last - 1)
        # an attribute, since the tensor shares its memory: passing an array takes twice as long
        self._input = np.ascontiguousarray(self._target.states(first, last)[None])
        self._fc.set_input_tensor(openvino.Tensor(self._input, shared_memory=True))
        self._fc.infer(share_outputs=True)
        states: States = self._fc.get_output_tensor(0).data[0]
        return states


def layer_ends(model: openvino.Model) -> list[openvino.Node]:
    """Return the additions that end each layer's residual stream, found by structure, as GenAI does: names differ.

    The MLP's addition is a matrix product whose input is an elementwise one (gate times up).
    """
    ends = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Add":
            continue
        addend = node.input_value(1).get_node()
        if addend.get_type_name() != "MatMul":
            continue
        source = addend.input_value(0).get_node()
        if source.get_type_name() == "Concat":  # with sums of its groups, for 4-bit weights (gguf_weights.py)
            source = source.input_value(0).get_node()
        if source.get_type_name() == "Multiply":
            ends.append(node)
    return ends
