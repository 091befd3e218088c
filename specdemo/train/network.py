"""Weights and sizes of a target's network, and a draft's initial weights derived from them.

The target's IR is read by structure, since names differ between exporters. A decoder is a residual stream to which
the attention and the MLP of every layer add. The MLP's addition is a matrix product with an elementwise product (gate
times up) as its input, by which GenAI recognises layers as well. Weights may be stored in any precision: constants
and their dequantization are cut out as a small network and run.

A draft starts with layers and rows of its target, or with those of an earlier draft or head.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Rows of a product's matrix."""

    product: ov.Node
    first: int
    last: int


class Network:
    """A target's IR."""

    def __init__(self, folder: Path) -> None:
        """Read the model without compiling it."""
        self.core = ov.Core()
        self.model = self.core.read_model(folder / "openvino_model.xml")
        self.nodes = self.model.get_ordered_ops()

    @cached_property
    def head(self) -> ov.Node:
        """Product of the last hidden states and the output rows."""
        node = self.model.output("logits").get_node().input_value(0).get_node()
        while node.get_type_name() != "MatMul":
            if not node.get_input_size():
                raise ModelError("The target's logits come from no product of matrices; choose another target.")
            node = _source(node)
        return node

    @cached_property
    def ends(self) -> list[ov.Node]:
        """Node at which each layer has been added to the residual stream."""
        ends = layer_ends(self.model)
        if not ends:
            raise ModelError(_OTHER)
        return ends

    @cached_property
    def attentions(self) -> list[ov.Node]:
        """Attention node of each layer."""
        return [node for node in self.nodes if node.get_type_name() == "ScaledDotProductAttention"]

    @cached_property
    def embedding(self) -> Array:
        """Embeddings of all tokens, [vocabulary, hidden]."""
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
        """Number of tokens."""
        size = self.model.output("logits").get_partial_shape()[2]
        return int(size.get_length()) if size.is_static else len(self.output)

    @cached_property
    def norm(self) -> Array:
        """Scales of the last norm, [hidden]."""
        return self.scales(_source(self.head))

    @cached_property
    def frequencies(self) -> Array:
        """Rotary embedding's frequencies, [head_dim / 2], in radians per position."""
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
        """Sizes, read from the network itself."""
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
        """Return the nearest matrix product before a value, and its rows that the value depends on.

        Products with the same input may be fused into one, followed by a split.
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
        """Return a layer's weights under the names of `architecture.Layer`, matrices as [outputs, inputs].

        Biases, and norms within the attention, are left out.

        Raises:
            ModelError: the layer has another structure.
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

    def projections(self) -> dict[str, Array]:
        """Return what a head has besides layers, under the names of `architecture.Head`, its scales folded in."""
        (given,) = self.model.input("hidden_states").get_node().output(0).get_target_inputs()
        weights = {"fc.weight": self.matrix(given.get_node())}
        for index, end in enumerate(self.ends):
            residual = _source(_source(end))  # before the layer's attention
            join = self._part(residual.input_value(1))
            weights[f"joins.{index}.weight"] = self.matrix(join.product)[join.first : join.last]
            weights["hidden_norm.weight"] = self.scales(_source(join.product))
        return weights

    def matrix(self, product: ov.Node) -> Array:
        """Return a product's matrix, [outputs, inputs]."""
        matrix = self.constant(product.input_value(1))
        return matrix if product.get_attributes()["transpose_b"] else np.ascontiguousarray(matrix.T)

    def scales(self, norm: ov.Node) -> Array:
        """Return a norm's scales, [hidden]."""
        for value in norm.input_values():
            if not any(
                node.get_type_name() == "Parameter" for node in (value.get_node(), *_upstream(value.get_node()))
            ):
                return self.constant(value).reshape(-1)
        return np.ones(self.shape.hidden, np.float32)  # exporters leave out scales of 1

    def constant(self, value: ov.Output) -> Array:
        """Evaluate a part of the network that depends on no input."""
        cut = ov.Model([ov.opset13.result(ov.opset13.convert(value, "f32"))], [], "constant")
        compiled = self.core.compile_model(cut, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return np.array(compiled({})[0], np.float32)


def _source(node: ov.Node, side: int = 0) -> ov.Node:
    return node.input_value(side).get_node()


def _upstream(node: ov.Node) -> Iterator[ov.Node]:
    """Yield all nodes that a node depends on, nearest first."""
    waiting, seen = [node], set[str]()
    while waiting:
        for value in waiting.pop(0).input_values():
            found = value.get_node()
            if found.get_friendly_name() not in seen:
                seen.add(found.get_friendly_name())
                waiting.append(found)
                yield found


def _reaches(node: ov.Node, name: str) -> bool:
    """Check if a node is that input, apart from conversions and reshapes."""
    while node.get_type_name() in _PASSED and node.get_input_size():
        node = _source(node)
    return name in node.output(0).get_names()


_RIDGE = 1.0  # of the fit of rows, whose squares are sums over thousands of tokens


@dataclass(frozen=True)
class Start:
    """Initial weights of a draft: parts of its target, or of an earlier draft for it."""

    shape: Shape
    frequencies: Array
    layers: list[dict[str, Array]]
    norm: Array
    embedding: Array
    """Embeddings of the vocabulary, then one for all other tokens, [size + 1, hidden]."""

    rows: Array
    """Output rows of the vocabulary, [size, hidden]."""

    head: Mapping[str, Array] | None = None
    """An earlier head's weights besides its layers, as `Network.projections` returns them."""

    def grown(self, old: Ids, new: Ids, network: Network) -> "Start":
        """Return the weights for another vocabulary: known tokens keep their rows, others derive from the target's.

        Training moves all rows alike (it shrinks them and shifts their mean), so unchanged rows of the target would
        win too often. An affine map, fitted to the trained rows, moves them alike: for the bundled draft it explains
        two thirds of the change and raises agreement at the start from 27 to 41 %.
        """
        embedding = _grown(self.embedding[:-1], network.embedding, old, new)
        tied = np.array_equal(self.embedding[:-1], self.rows) and np.array_equal(network.embedding, network.output)
        rows = embedding if tied else _grown(self.rows, network.output, old, new)
        return replace(self, embedding=np.vstack([embedding, self.embedding[-1:]]), rows=rows)


def _grown(trained: Array, target: Array, old: Ids, new: Ids) -> Array:
    """Return rows of the `new` tokens; `trained` are those of the `old` ones, `target` those of all."""
    found = np.isin(new, old)
    rows = target[new].copy()
    if not found.all():
        before = np.hstack([target[old], np.ones((len(old), 1))]).astype(np.float64)
        squares = before.T @ before + _RIDGE * np.eye(before.shape[1])
        change = np.linalg.solve(squares, before.T @ (trained - target[old]))
        rows += (np.hstack([rows, np.ones((len(rows), 1))]) @ change).astype(np.float32)
    rows[found] = trained[np.searchsorted(old, new[found])]
    return rows


def from_target(network: Network, vocabulary: Ids, layers: Sequence[int]) -> Start:
    """Start from some of the target's layers, and its rows."""
    embedding = network.embedding
    return Start(
        shape=network.shape,
        frequencies=network.frequencies,
        layers=[network.layer(index) for index in layers],
        norm=network.norm,
        embedding=np.vstack([embedding[vocabulary], embedding.mean(0, keepdims=True)]),
        rows=network.output[vocabulary],
    )


def initial_weights(start: Start) -> dict[str, Array]:
    """Return the layers and norm under the names of `architecture.Draft`."""
    layers = {
        f"layers.{index}.{name}.weight": value
        for index, layer in enumerate(start.layers)
        for name, value in layer.items()
    }
    return layers | {"norm.weight": start.norm}


def from_draft(folder: Path, target: Network) -> tuple[Start, Ids]:
    """Read a draft or head that `train-draft` made for this target; return it with its vocabulary.

    Raises:
        ModelError: something else made it, or it is for another target.
    """
    draft = Network(folder)
    places, embedding = _tables(draft)
    vocabulary = np.flatnonzero(places < len(embedding) - 1)
    if len(places) != target.shape.vocabulary or embedding.shape[1] != target.shape.hidden:
        raise ModelError(f"{folder.name!r} is not a draft for this target; leave --from out, or name another.")
    layers, rows = [draft.layer(index) for index in range(len(draft.ends))], draft.matrix(draft.head)
    reads_states = any("hidden_states" in value.get_names() for value in draft.model.inputs)
    start = Start(
        target.shape,
        target.frequencies,
        layers,
        draft.norm,
        embedding,
        rows[: len(vocabulary)],
        draft.projections() if reads_states else None,
    )
    return start, vocabulary


def _tables(draft: Network) -> tuple[Array, Array]:
    """Return the indices of the target's tokens, and the rows at these indices."""
    gathers = [node for node in draft.nodes if node.get_type_name() == "Gather"]
    for first in gathers:
        for second in gathers:
            if _reads(first) == "input_ids" and _reads(second) == first.get_friendly_name():
                return draft.constant(first.input_value(0)), draft.constant(second.input_value(0))
    raise ModelError("A draft can only begin from one that train-draft made; leave --from out, or name another.")


def _reads(gather: ov.Node) -> str:
    """Return the name of the node that provides the indices, before conversions."""
    node = gather.input_value(1).get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return str(node.get_friendly_name())
