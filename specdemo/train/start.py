"""Initial weights of a draft: layers and rows of its target, or those of an earlier draft."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import openvino as ov

from specdemo.errors import ModelError
from specdemo.train.network import Array, Ids, Network, Shape

_RIDGE = 1.0  # of the fit of rows; their squares are sums over thousands of tokens


@dataclass(frozen=True)
class Start:
    """Initial weights of a draft: parts of its target, or those of an earlier draft for it."""

    shape: Shape
    frequencies: Array
    layers: list[dict[str, Array]]
    norm: Array
    embedding: Array
    """Rows of the vocabulary, then one that stands for all other tokens, [size + 1, hidden]."""

    rows: Array
    """Output rows of the vocabulary, [size, hidden]."""

    def grown(self, old: Ids, new: Ids, network: Network) -> "Start":
        """The same for another vocabulary: rows of the tokens in both are kept, others are made from the target's.

        Training moves all rows in like ways (it shrinks them and shifts their mean), so that rows as the target has
        them would win too often. An affine map, fitted to the rows that were trained, moves them alike: for the
        bundled draft it explains two thirds of the change, and agreement at the start is 41 instead of 27 %.
        """
        embedding = _grown(self.embedding[:-1], network.embedding, old, new)
        tied = np.array_equal(self.embedding[:-1], self.rows) and np.array_equal(network.embedding, network.output)
        rows = embedding if tied else _grown(self.rows, network.output, old, new)
        return replace(self, embedding=np.vstack([embedding, self.embedding[-1:]]), rows=rows)


def _grown(trained: Array, target: Array, old: Ids, new: Ids) -> Array:
    """Rows of the `new` tokens; `trained` are those of the `old` ones, `target` those of all."""
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
    """Some of the target's own layers, and its rows."""
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
    """A start's layers and norm by the names of `modules.Draft`."""
    layers = {
        f"layers.{index}.{name}.weight": value
        for index, layer in enumerate(start.layers)
        for name, value in layer.items()
    }
    return layers | {"norm.weight": start.norm}


def from_draft(folder: Path, target: Network) -> tuple[Start, Ids]:
    """Read a draft that `train-draft` made for this target; also gives its vocabulary.

    Raises:
        ModelError: it is of another kind, or for another target.
    """
    draft = Network(folder)
    places, embedding = _tables(draft)
    vocabulary = np.flatnonzero(places < len(embedding) - 1)
    if len(places) != target.shape.vocabulary or embedding.shape[1] != target.shape.hidden:
        raise ModelError(f"{folder.name!r} is not a draft for this target; leave --from out, or name another.")
    layers = [draft.layer(index) for index in range(len(draft.ends))]
    rows = draft.matrix(draft.head)
    return Start(target.shape, target.frequencies, layers, draft.norm, embedding, rows[: len(vocabulary)]), vocabulary


def _tables(draft: Network) -> tuple[Array, Array]:
    """Places of the target's tokens, and the rows at those places."""
    refused = ModelError(
        "A draft can only begin from one that train-draft made with --kind draft; leave --from out, or name another."
    )
    gathers = [node for node in draft.nodes if node.get_type_name() == "Gather"]
    head = any("hidden_states" in value.get_names() for value in draft.model.inputs)
    for first in () if head else gathers:
        for second in gathers:
            if _reads(first) == "input_ids" and _reads(second) == first.get_friendly_name():
                return draft.constant(first.input_value(0)), draft.constant(second.input_value(0))
    raise refused


def _reads(gather: ov.Node) -> str:
    """Name of the node that gives the indices, before changes of their type."""
    node = gather.input_value(1).get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return str(node.get_friendly_name())
