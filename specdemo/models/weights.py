"""What a target pass must read from memory: the weights that take part in it, and the cache of the text so far.

Read from the model's graph. Every matrix product reads its whole constant; an embedding reads one row of its table
per token, which is negligible. Weights stored in f32 are converted when the model is compiled for a narrower
inference precision, and are then read in that precision.
"""

from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import openvino

from specdemo.errors import FolderError

_PRODUCTS = {"MatMul"}
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "u8": 8, "i8": 8, "u4": 4, "i4": 4}


class PassBytes(NamedTuple):
    """Bytes of weights that a pass reads, and of cache for each token of the text so far."""

    weights: int
    cache_per_token: int


def pass_bytes(folder: Path, inference_precision: str, cache_precision: str) -> PassBytes:
    """What a pass of a folder's model reads with these precisions, named as OpenVINO names them.

    Raises:
        FolderError: the model cannot be read.
    """
    try:
        model = openvino.Core().read_model(folder / "openvino_model.xml")
    except RuntimeError as error:
        raise FolderError(f"OpenVINO cannot read the model in {folder.name!r}; export it again.") from error
    narrow = _BITS.get(inference_precision, 32)
    bits, seen = 0, set()
    for node in model.get_ordered_ops():
        if node.get_type_name() in _PRODUCTS:
            for constant in _constants(node):
                if constant.get_friendly_name() not in seen:
                    seen.add(constant.get_friendly_name())
                    width = constant.get_output_element_type(0).bitwidth
                    floats = constant.get_output_element_type(0).is_real()
                    bits += prod(constant.get_output_shape(0)) * (min(width, narrow) if floats else width)
    cached = sum(_width_of_state(variable.info.data_shape) for variable in model.get_variables())
    return PassBytes(bits // 8, cached * _BITS.get(cache_precision, 32) // 8)


def _constants(product: Any) -> list[Any]:
    """The weights of a matrix product: constants that reach it through conversions and scales only."""
    found, open_ = [], [product.input_value(index).get_node() for index in range(product.get_input_size())]
    while open_:
        node = open_.pop()
        kind = node.get_type_name()
        if kind == "Constant":
            found.append(node)
        elif kind in {"Convert", "Multiply", "Subtract", "Reshape", "Transpose"} and _is_constant(node):
            open_ += [node.input_value(index).get_node() for index in range(node.get_input_size())]
    return found


def _is_constant(node: Any) -> bool:
    """Whether nothing but constants reaches this node."""
    if node.get_type_name() in {"Parameter", "ReadValue"}:
        return False
    return all(_is_constant(node.input_value(index).get_node()) for index in range(node.get_input_size()))


def _width_of_state(shape: Any) -> int:
    """Numbers kept for each token: the product of the static dimensions."""
    return prod(int(size.get_length()) for size in shape if size.is_static)
