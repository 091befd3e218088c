"""The network of a GGUF file in OpenVINO's operations: decoders of the architectures llama, qwen2 and qwen3.

They differ only in which tensors a file holds: biases (qwen2), norms of queries and keys (qwen3), an output layer
apart from the embedding. The KV cache is the network's state, as in exports of optimum-intel, so that OpenVINO GenAI
and our traced engine replace it by paged attention. OpenVINO's CPU plugin fuses the norms, positions and attention
only as they are written here (tests/models/test_gguf.py).
"""

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from specdemo.models.gguf_header import Header
from specdemo.models.gguf_keys import head_size, position_scale
from specdemo.models.gguf_weights import Weights

Output = Any  # of a node of OpenVINO, which has no type hints


def build(header: Header, weights: Weights) -> openvino.Model:
    """Return the network; its constants share the memory of `weights`, which must outlive it."""
    return _Decoder(header, weights).model()


def build_rough_head(header: Header, weights: Weights) -> openvino.Model | None:
    """Return the output head in 4 bits, where it pays (`engines/language_model.py`)."""
    states = ops.parameter([-1, -1, header.integer(f"{header.family}.embedding_length") or -1], np.float32)
    logits = weights.rough_logits(states.output(0))
    return None if logits is None else openvino.Model([ops.result(logits)], [states], "rough head")


class _Decoder:
    def __init__(self, header: Header, weights: Weights) -> None:
        number, family = header.integer, header.family
        self.header, self.weights = header, weights
        self.layers = number(f"{family}.block_count") or 0
        self.heads = number(f"{family}.attention.head_count") or 1
        self.kv_heads = number(f"{family}.attention.head_count_kv") or self.heads
        self.size = head_size(header)
        self.epsilon = header.number(f"{family}.attention.layer_norm_rms_epsilon") or 1e-5

    def model(self) -> openvino.Model:
        def integers(name: str, shape: list[int], kind: type) -> Output:
            parameter = ops.parameter(shape, kind, name=name)
            parameter.output(0).set_names({name})
            return parameter.output(0)

        self.ids, self.mask, self.positions = (
            integers(name, [-1, -1], np.int64) for name in ("input_ids", "attention_mask", "position_ids")
        )
        self.beams = integers("beam_idx", [-1], np.int32)
        self.assigns = list[openvino.Node]()
        self.batch = ops.gather(ops.shape_of(self.ids), _ints([0]), _ints(0)).output(0)
        hidden = ops.gather(self.weights.embedding(), ops.convert(self.ids, "i32"), _ints(0)).output(0)
        self.cos, self.sin = self._rotation()
        self.visible = self._visible_keys()
        for layer in range(self.layers):
            hidden = self._layer(hidden, layer)
        hidden = self._norm(hidden, "output_norm")
        logits = self.weights.products(hidden, [self.weights.head])[0]
        result = ops.result(logits, name="logits")
        result.output(0).set_names({"logits"})
        inputs = [port.get_node() for port in (self.ids, self.mask, self.positions, self.beams)]
        model = openvino.Model([result], self.assigns, inputs, self.header.file)
        model.set_rt_info("8.0", ["runtime_options", "ACTIVATIONS_SCALE_FACTOR"])  # or f16 overflows on a GPU
        return model

    def _layer(self, hidden: Output, layer: int) -> Output:
        name = f"blk.{layer}."
        product = self.weights.products
        inputs = self._norm(hidden, f"{name}attn_norm")
        queries, keys, values = product(inputs, [f"{name}attn_{part}" for part in "qkv"])
        queries = self._rotated(self._by_head(queries, self.heads, f"{name}attn_q_norm"))
        keys = self._rotated(self._by_head(keys, self.kv_heads, f"{name}attn_k_norm"))
        values = self._by_head(values, self.kv_heads)
        keys, values = self._cached(keys, f"{layer}.key"), self._cached(values, f"{layer}.value")
        attention = ops.scaled_dot_product_attention(queries, keys, values, self.visible)
        joined = ops.reshape(ops.transpose(attention, _ints([0, 2, 1, 3])), _ints([0, 0, -1]), special_zero=True)
        hidden = ops.add(hidden, product(joined.output(0), [f"{name}attn_output"])[0]).output(0)
        gate, up = product(self._norm(hidden, f"{name}ffn_norm"), [f"{name}ffn_gate", f"{name}ffn_up"])
        activated = ops.multiply(ops.swish(gate), up).output(0)
        hidden = ops.add(hidden, product(activated, [f"{name}ffn_down"])[0]).output(0)
        hidden.get_node().set_friendly_name(f"model.layers.{layer}/residual")  # by which GenAI finds a head's inputs
        return hidden

    def _norm(self, values: Output, name: str) -> Output:
        weight = self.weights.vector(f"{name}.weight")
        square = ops.reduce_mean(ops.power(values, _float(2)), _ints([-1]), keep_dims=True)
        root = ops.sqrt(ops.add(square, _float(self.epsilon)))
        return ops.multiply(ops.multiply(ops.divide(_float(1), root), values), ops.constant(weight)).output(0)

    def _by_head(self, values: Output, heads: int, norm: str = "") -> Output:
        """Return values as (batch, heads, tokens, size of a head)."""
        split = ops.reshape(values, _ints([0, 0, heads, self.size]), special_zero=True).output(0)
        if norm and self.weights.holds(f"{norm}.weight"):
            split = self._norm(split, norm)
        return ops.transpose(split, _ints([0, 2, 1, 3])).output(0)

    def _rotation(self) -> tuple[Output, Output]:
        """Return cosines and sines of positions, shape (batch, 1, tokens, size of a head)."""
        count = self.size // 2
        base = self.header.number(f"{self.header.family}.rope.freq_base") or 10_000.0
        # Llama 3 stores divisors of its own
        divisors = self.weights.vector("rope_freqs.weight") if self.weights.holds("rope_freqs.weight") else 1
        frequencies = base ** (-np.arange(count) / count) * position_scale(self.header) / divisors
        stored = ops.constant(frequencies.astype(np.float32).reshape(1, count, 1))
        spread = ops.broadcast(
            stored, ops.concat([self.batch, _ints([1]), _ints([1])], 0), broadcast_spec="BIDIRECTIONAL"
        )
        positions = ops.convert(ops.unsqueeze(self.positions, _ints(1)), "f32")
        angles = ops.transpose(ops.matmul(spread, positions, False, False), _ints([0, 2, 1]))
        both = ops.concat([angles, angles], -1)
        cos, sin = (ops.unsqueeze(wave, _ints(1)).output(0) for wave in (ops.cos(both), ops.sin(both)))
        return cos, sin

    def _rotated(self, values: Output) -> Output:
        half = self.size // 2
        first = ops.slice(values, _ints([0]), _ints([half]), _ints([1]), _ints([3]))
        second = ops.slice(values, _ints([half]), _ints([2**63 - 1]), _ints([1]), _ints([3]))
        turned = ops.concat([ops.multiply(second, _float(-1)), first], -1)
        return ops.add(ops.multiply(values, self.cos), ops.multiply(turned, self.sin)).output(0)

    def _cached(self, values: Output, name: str) -> Output:
        """Append to the state; return the whole, repeated for the query heads that share it."""
        shape = ops.concat([self.batch, _ints([self.kv_heads]), _ints([0]), _ints([self.size])], 0)
        empty = ops.broadcast(_float(0, []), shape)
        info = openvino.op.util.VariableInfo()
        info.data_shape = openvino.PartialShape([-1, self.kv_heads, -1, self.size])
        info.data_type, info.variable_id = openvino.Type.f32, f"past_key_values.{name}"
        variable = openvino.op.util.Variable(info)
        past = ops.gather(ops.read_value(empty, variable), self.beams, _ints(0))
        whole = ops.concat([past, values], 2)
        self.assigns.append(ops.assign(whole, variable))
        groups = self.heads // self.kv_heads
        if groups == 1:
            return whole.output(0)
        target = ops.concat([self.batch, *(_ints([size]) for size in (self.kv_heads, groups, 1, self.size))], 0)
        repeated = ops.broadcast(ops.unsqueeze(whole, _ints(2)), target, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(repeated, _ints([0, self.heads, -1, self.size]), special_zero=True).output(0)

    def _visible_keys(self) -> Output:
        """Return which keys each token attends to, shape (batch, 1, tokens, keys): unmasked ones up to its own."""
        count, total = (
            ops.squeeze(ops.gather(ops.shape_of(values), _ints([1]), _ints(0)), _ints(0))
            for values in (self.ids, self.mask)
        )
        keys = ops.range(_ints(0), total, _ints(1), "i64")
        own = ops.range(ops.subtract(total, count), total, _ints(1), "i64")
        causal = ops.less_equal(ops.unsqueeze(keys, _ints(0)), ops.unsqueeze(own, _ints(1)))
        unmasked = ops.unsqueeze(ops.convert(self.mask, "boolean"), _ints([1, 2]))
        return ops.logical_and(ops.unsqueeze(causal, _ints([0, 1])), unmasked).output(0)


def _ints(values: int | list[int]) -> openvino.Node:
    return ops.constant(np.array(values, np.int64))


def _float(value: float, shape: list[int] | None = None) -> openvino.Node:
    return ops.constant(np.full([1, 1, 1] if shape is None else shape, value, np.float32))
