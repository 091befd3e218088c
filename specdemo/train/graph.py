"""OpenVINO IR of a draft or a head, written operation by operation.

Written rather than traced: nothing but OpenVINO is needed, the cache is model state from the beginning, and the
names are those by which GenAI finds its way in a head (`hidden_states`, `midlayer`, `d2t`). Matrices are int8 with a
scale for each row; a matrix used twice is stored once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

from specdemo.train.network import Array, Shape

NEVER = -1e4  # logit of tokens that a draft does not know


class Graph:
    """A network in the making: its inputs, its cache, and the parts that all decoders have."""

    def __init__(self, shape: Shape, frequencies: Array) -> None:
        """Inputs, rotary embedding and mask."""
        self.shape, self.sinks = shape, list[ov.Node]()
        self.ids = parameter("input_ids", ov.Type.i64, 2)
        self.mask = parameter("attention_mask", ov.Type.i64, 2)
        self.positions = parameter("position_ids", ov.Type.i64, 2)
        self.beams = parameter("beam_idx", ov.Type.i32, 1)
        self.parameters = [self.ids, self.mask, self.positions, self.beams]
        self.batch = _size(self.ids, 0)
        self.cos, self.sin = self._rotary(frequencies)
        self.allowed = self._allowed()

    def _rotary(self, frequencies: Array) -> tuple[ov.Node, ov.Node]:
        """Cosines and sines, [batch, 1, tokens, head_dim]."""
        positions = ops.convert(ops.unsqueeze(self.positions, _ints(1)), "f32")
        angles = ops.matmul(ops.constant(frequencies.reshape(1, -1, 1)), positions, False, False)
        angles = ops.transpose(angles, _ints([0, 2, 1]))
        both = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(both), _ints(1)), ops.unsqueeze(ops.sin(both), _ints(1))

    def _allowed(self) -> ov.Node:
        """0 where a token may look, minus infinity elsewhere, [batch, 1, tokens, tokens before and now]."""
        length, tokens = ops.squeeze(_size(self.mask, 1), _ints(0)), ops.squeeze(_size(self.ids, 1), _ints(0))
        columns = ops.range(_ints(0), length, _ints(1), "i64")
        rows = ops.add(ops.range(_ints(0), tokens, _ints(1), "i64"), ops.subtract(length, tokens))
        causal = ops.less_equal(ops.unsqueeze(columns, _ints(0)), ops.unsqueeze(rows, _ints(1)))
        real = ops.greater(ops.unsqueeze(self.mask, _ints([1, 2])), _ints(0))
        both = ops.logical_and(ops.unsqueeze(causal, _ints([0, 1])), real)
        return ops.select(both, _floats(0.0), _floats(-np.inf))

    def product(self, x: ov.Node, matrix: ov.Node, name: str) -> ov.Node:
        """`x` times the transposed matrix."""
        node = ops.matmul(x, matrix, False, True)
        node.set_friendly_name(name)
        return node

    def norm(self, x: ov.Node, scales: Array) -> ov.Node:
        """Root-mean-square norm."""
        mean = ops.reduce_mean(ops.power(x, _floats(2.0)), _ints([-1]), True)
        inverse = ops.divide(_floats(1.0), ops.sqrt(ops.add(mean, _floats(self.shape.eps))))
        return ops.multiply(_floats(scales.reshape(1, 1, -1)), ops.multiply(x, inverse))

    def layer(self, residual: ov.Node, read: ov.Node, weights: Mapping[str, Array], name: str) -> ov.Node:
        """A layer whose attention reads `read`; gives the residual stream, named after the layer."""
        shape, matrices = self.shape, {one: int8(weights[f"{one}.weight"]) for one in _MATRICES}

        def heads(which: str, count: int) -> ov.Node:
            product = self.product(read, matrices[which], f"{name}.{which}")
            apart = ops.reshape(product, _ints([0, 0, count, shape.head_dim]), True)
            return ops.transpose(apart, _ints([0, 2, 1, 3]))

        queries = self._turned(heads("q", shape.heads))
        keys = self._cached(self._turned(heads("k", shape.kv_heads)), f"{name}.key")
        values = self._cached(heads("v", shape.kv_heads), f"{name}.value")
        attended = ops.scaled_dot_product_attention(queries, self._shared(keys), self._shared(values), self.allowed)
        joined = ops.reshape(
            ops.transpose(attended, _ints([0, 2, 1, 3])), _ints([0, 0, shape.heads * shape.head_dim]), True
        )
        middle = ops.add(residual, self.product(joined, matrices["o"], f"{name}.o"))
        normed = self.norm(middle, weights["post_norm.weight"])
        gate = ops.swish(self.product(normed, matrices["gate"], f"{name}.gate"))
        gated = ops.multiply(gate, self.product(normed, matrices["up"], f"{name}.up"))
        end = ops.add(middle, self.product(gated, matrices["down"], f"{name}.down"))
        end.set_friendly_name(f"{name}/residual")
        return end

    def _turned(self, x: ov.Node) -> ov.Node:
        first, second = ops.split(x, _ints(3), 2).outputs()
        rotated = ops.concat([ops.multiply(second, _floats(-1.0)), first], -1)
        return ops.add(ops.multiply(x, self.cos), ops.multiply(rotated, self.sin))

    def _cached(self, new: ov.Node, name: str) -> ov.Node:
        """What the cache holds, and the new; both stay in it."""
        sizes = [_ints([size]) for size in (self.shape.kv_heads, 0, self.shape.head_dim)]
        empty = ops.broadcast(_floats(0.0), ops.concat([self.batch, *sizes], 0))
        info = VariableInfo()
        info.variable_id, info.data_type = name, ov.Type.f32
        info.data_shape = ov.PartialShape([-1, self.shape.kv_heads, -1, self.shape.head_dim])
        variable = Variable(info)
        read = ops.read_value(empty, variable)
        whole = ops.concat([ops.gather(read, self.beams, _ints(0)), new], 2)
        self.sinks.append(ops.assign(whole, variable))
        return whole

    def _shared(self, x: ov.Node) -> ov.Node:
        """Keys or values once for every head that shares them."""
        share = self.shape.heads // self.shape.kv_heads
        if share == 1:
            return x
        apart = ops.unsqueeze(x, _ints(2))
        kv_heads, repeats, width = (_ints([size]) for size in (self.shape.kv_heads, share, self.shape.head_dim))
        wide = ops.broadcast(apart, ops.concat([self.batch, kv_heads, repeats, _size(x, 2), width], 0))
        return ops.reshape(wide, _ints([0, self.shape.heads, -1, self.shape.head_dim]), True)

    def model(self, results: Mapping[str, ov.Node], name: str) -> ov.Model:
        """The network with these outputs."""
        outputs = []
        for output, node in results.items():
            result = ops.result(node)
            result.output(0).set_names({output})
            result.set_friendly_name(output)
            outputs.append(result)
        return ov.Model(outputs, self.sinks, self.parameters, name)


_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def int8(matrix: Array) -> ov.Node:
    """A matrix stored as int8, with a scale a row."""
    scales = np.maximum(np.abs(matrix).max(1, keepdims=True) / 127, 1e-6).astype(np.float16)
    whole = np.clip(np.rint(matrix / scales.astype(np.float32)), -127, 127).astype(np.int8)
    half = ops.multiply(ops.convert(ops.constant(whole), "f16"), ops.constant(scales))
    return ops.convert(half, "f32")


def parameter(name: str, kind: ov.Type, rank: int) -> Any:
    """An input, of sizes that are not known before."""
    node = ops.parameter([-1] * rank, kind)
    node.set_friendly_name(name)  # paged attention is looked for by it
    node.output(0).set_names({name})
    return node


def _size(node: ov.Node, axis: int) -> ov.Node:
    """A dimension's size, [1]."""
    return ops.gather(ops.shape_of(node, "i64"), _ints([axis]), _ints(0))


def _ints(values: int | list[int]) -> ov.Node:
    return ops.constant(np.array(values, np.int64))


def _floats(values: float | Array) -> ov.Node:
    return ops.constant(np.array(values, np.float32))
