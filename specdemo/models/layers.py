"""Where a decoder's layers end in its IR, found by structure: names differ between exporters.

Every layer adds what its attention and its MLP found to a residual stream. The MLP's addition is a matrix product
whose input is an elementwise one (gate times up); GenAI looks for the layers that an EAGLE-3 head sees in that way.
"""

import openvino


def layer_ends(model: openvino.Model) -> list[openvino.Node]:
    """Where each layer has added its part to the residual stream."""
    ends = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Add":
            continue
        added = node.input_value(1).get_node()
        if added.get_type_name() == "MatMul" and added.input_value(0).get_node().get_type_name() == "Multiply":
            ends.append(node)
    return ends


def seen_layers(layers: int) -> tuple[int, int, int]:
    """The layers whose states an EAGLE-3 head sees: those that GenAI takes."""
    return 2, layers // 2, layers - 3
