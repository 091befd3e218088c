"""What a target's network holds, read from its IR by structure, not by names, which differ between exporters.

A decoder is a residual stream: every layer adds what its attention and its MLP found to it. The MLP's addition is a
matrix product whose input is an elementwise one (gate times up), by which GenAI recognises the layers as well.
Weights may be stored in any precision: the constants and what dequantises them are cut out as a network of their own
and run.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov

from specdemo.errors import ModelError
from specdemo.models.graph import layer_ends

Array = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
"""Token ids, shape (tokens,)."""

_OTHER = "The target has no layers like Llama's, which training needs; choose another target."
_PASSED = ("Convert", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Broadcast", "Concat", "Slice", "StridedSlice")


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-like decoder."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    layers: int
    vocabulary: int
    eps: float


class _Rows(NamedTuple):
    """Rows of the matrix of a product."""

    product: ov.Node
    first: int
    last: int


class Network:
    """A target's IR."""

    def __init__(self, folder: Path) -> None:
        """Read, not compile."""
        self.core = ov.Core()
        self.model = self.core.read_model(folder / "openvino_model.xml")
        self.nodes = self.model.get_ordered_ops()

    @cached_property
    def head(self) -> ov.Node:
        """The product of the last hidden states with the output rows."""
        node = self.model.output("logits").get_node().input_value(0).get_node()
        while node.get_type_name() != "MatMul":
            if not node.get_input_size():
                raise ModelError("The target's logits come from no product of matrices; choose another target.")
            node = _source(node)
        return node

    @cached_property
    def ends(self) -> list[ov.Node]:
        """Where each layer has added its part to the residual stream."""
        ends = layer_ends(self.model)
        if not ends:
            raise ModelError(_OTHER)
        return ends

    @cached_property
    def attentions(self) -> list[ov.Node]:
        """Each layer's attention."""
        return [node for node in self.nodes if node.get_type_name() == "ScaledDotProductAttention"]

    @cached_property
    def embedding(self) -> Array:
        """Rows of all tokens, [vocabulary, hidden]."""
        for node in self.nodes:
            if node.get_type_name() == "Gather" and _reaches(node.input_value(1).get_node(), "input_ids"):
                return self.constant(node.input_value(0))
        raise ModelError("The target's embeddings were not found; choose another target.")

    @cached_property
    def output(self) -> Array:
        """Output rows of all tokens, [vocabulary, hidden]."""
        return self.matrix(self.head)

    @property
    def vocabulary(self) -> int:
        """Tokens of the vocabulary."""
        size = self.model.output("logits").get_partial_shape()[2]
        return int(size.get_length()) if size.is_static else len(self.output)

    @cached_property
    def norm(self) -> Array:
        """Scales of the last norm, [hidden]."""
        return self.scales(_source(self.head))

    @cached_property
    def frequencies(self) -> Array:
        """Of the rotary embedding, [head_dim / 2], in radians a position."""
        cos = next(node for node in self.nodes if node.get_type_name() == "Cos")
        for node in _upstream(cos):
            for value in node.input_values():
                shape, kind = value.get_partial_shape(), value.get_node().get_type_name()
                fixed = kind in ("Constant", "Convert", "Reshape") and shape.is_static
                if fixed and np.prod(shape.to_shape()) == self.shape.head_dim // 2:
                    return self.constant(value).reshape(-1)
        raise ModelError("The target's rotary embedding was not found; choose another target.")

    @cached_property
    def shape(self) -> Shape:
        """Sizes, from the network itself."""
        attention = self.attentions[0]
        queries, keys = (self._part(attention.input_value(index)) for index in range(2))
        head_dim = attention.get_output_partial_shape(0)[3].get_length()
        return Shape(
            hidden=self.embedding.shape[1],
            heads=(queries.last - queries.first) // head_dim,
            kv_heads=(keys.last - keys.first) // head_dim,
            head_dim=head_dim,
            intermediate=_source(_source(self.ends[0], 1)).get_output_partial_shape(0)[2].get_length(),
            layers=len(self.ends),
            vocabulary=self.embedding.shape[0],
            eps=self._eps(),
        )

    def _part(self, value: ov.Output) -> "_Rows":
        """The nearest product of matrices before a value, and the rows of it that the value depends on.

        Products that read the same input may be one, with a split behind it.
        """
        waiting = [value]
        for found in waiting:
            node = found.get_node()
            if node.get_type_name() == "MatMul":
                return _Rows(node, 0, int(node.get_output_partial_shape(0)[2].get_length()))
            if node.get_type_name() in ("Split", "VariadicSplit"):
                source = _source(node)
                product = _source(source) if source.get_type_name() == "Add" else source  # a bias
                if product.get_type_name() == "MatMul":
                    sizes = [output.get_partial_shape()[2].get_length() for output in node.outputs()]
                    first = sum(sizes[: found.get_index()])
                    return _Rows(product, first, first + sizes[found.get_index()])
            waiting += node.input_values()
        raise ModelError(_OTHER)

    def _eps(self) -> float:
        for node in _upstream(_source(self.head)):
            if node.get_type_name() == "Add" and _source(node).get_type_name() == "ReduceMean":
                return float(self.constant(node.input_value(1)).reshape(-1)[0])
        return 1e-5

    def layer(self, index: int) -> dict[str, Array]:
        """Weights of a layer by the names of `modules.Layer`, matrices as [outputs, inputs].

        Biases, and norms within the attention, are left out.

        Raises:
            ModelError: the layer is built in another way.
        """
        attention, end = self.attentions[index], self.ends[index]
        down = _source(end, 1)
        gated = _source(down)
        sides = [gated.input_value(side) for side in range(2)]
        sides.sort(key=lambda side: side.get_node().get_type_name() != "Swish")
        gate, up, middle = self._part(sides[0]), self._part(sides[1]), _source(end, 0)
        queries, keys, values = (self._part(attention.input_value(side)) for side in range(3))
        out, last = (self._part(node.output(0)) for node in (_source(middle, 1), down))
        parts = {"q": queries, "k": keys, "v": values, "o": out, "gate": gate, "up": up, "down": last}
        apart = len({(part.product.get_friendly_name(), part.first) for part in parts.values()}) == len(parts)
        products = all(node.get_type_name() == "MatMul" for node in (_source(middle, 1), down))
        if sides[0].get_node().get_type_name() != "Swish" or not (apart and products):
            raise ModelError(_OTHER)
        weights = {name: self.matrix(part.product)[part.first : part.last] for name, part in parts.items()}
        norms = {"input_norm": self.scales(_source(queries.product)), "post_norm": self.scales(_source(gate.product))}
        return weights | norms

    def matrix(self, product: ov.Node) -> Array:
        """What a product multiplies with, [outputs, inputs]."""
        matrix = self.constant(product.input_value(1))
        return matrix if product.get_attributes()["transpose_b"] else np.ascontiguousarray(matrix.T)

    def scales(self, norm: ov.Node) -> Array:
        """Of a norm's last multiplication, [hidden]."""
        for value in norm.input_values():
            if not any(
                node.get_type_name() == "Parameter" for node in (value.get_node(), *_upstream(value.get_node()))
            ):
                return self.constant(value).reshape(-1)
        return np.ones(self.shape.hidden, np.float32)  # scales of 1 are left out of a network

    def constant(self, value: ov.Output) -> Array:
        """What a part of the network that depends on no input comes to."""
        cut = ov.Model([ov.opset13.result(ov.opset13.convert(value, "f32"))], [], "constant")
        compiled = self.core.compile_model(cut, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return np.array(compiled({})[0], np.float32)


def _source(node: ov.Node, side: int = 0) -> ov.Node:
    return node.input_value(side).get_node()


def _upstream(node: ov.Node) -> Iterator[ov.Node]:
    """All nodes that a node depends on, nearest first."""
    waiting, seen = [node], set[str]()
    while waiting:
        for value in waiting.pop(0).input_values():
            found = value.get_node()
            if found.get_friendly_name() not in seen:
                seen.add(found.get_friendly_name())
                waiting.append(found)
                yield found


def _reaches(node: ov.Node, name: str) -> bool:
    """Whether a node is that input, but for changes of its type."""
    while node.get_type_name() in _PASSED and node.get_input_size():
        node = _source(node)
    return name in node.output(0).get_names()
