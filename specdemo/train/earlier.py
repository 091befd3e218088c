"""An earlier draft as the beginning of another: its layers, its rows and the tokens that it knows."""

from pathlib import Path

import numpy as np
import openvino as ov

from specdemo.errors import ModelError
from specdemo.train.lessons import Start
from specdemo.train.network import Array, Ids, Network


def from_draft(folder: Path, target: Network) -> tuple[Start, Ids]:
    """Read a draft that `train-draft` made for this target; also gives the tokens that it knows.

    Raises:
        ModelError: it is of another kind, or for another target.
    """
    draft = Network(folder)
    places, embedding = _tables(draft)
    kept = np.flatnonzero(places < len(embedding) - 1)
    if len(places) != target.shape.vocabulary or embedding.shape[1] != target.shape.hidden:
        raise ModelError(f"{folder.name!r} is not a draft for this target; leave --from out, or name another.")
    layers = [draft.layer(index) for index in range(len(draft.ends))]
    rows = draft.matrix(draft.head)
    return Start(target.shape, target.frequencies, layers, draft.norm, embedding, rows[: len(kept)]), kept


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
