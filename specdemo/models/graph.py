"""Reading and changing a decoder's graph, by structure, since names differ between exporters.

Every layer adds the outputs of its attention and its MLP to a residual stream. The MLP's addition is a matrix product
whose input is an elementwise one (gate times up); GenAI finds the layers that an EAGLE-3 head reads in that way.

A target pass must read from memory the weights that take part in it, and the cache of the text so far. Every matrix
product reads its whole constant; an embedding reads one row of its table per token, which is negligible. Weights
stored in f32 are converted when the model is compiled for a narrower inference precision, and are then read in that
precision. Floats multiplied by floats are computed once, on loading, and read as their product.

A small model's step is bound by its number of operations more than by its bytes: SmolLM2-135M has 211 matrix
products, 121 once those that read the same input are joined.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino
from openvino import opset13 as opset

from specdemo.errors import FolderError

_DECOMPRESSION = {"Convert", "Subtract", "Multiply", "Reshape", "Transpose"}
"""Operations between a constant and its product: weights are unpacked, shifted, scaled and reshaped."""
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "u8": 8, "i8": 8, "u4": 4, "i4": 4}
_EIGHT_BITS = {"u8", "i8"}
INT8_GROUPS = (64, 32)
"""Weights that share a scale in int8; the second if the first does not divide a row."""
_ROWS_AT_ONCE = 4096

Floats = np.ndarray[Any, np.dtype[np.float32]]


def layer_ends(model: openvino.Model) -> list[openvino.Node]:
    """Return the additions that end each layer's residual stream."""
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


class PassBytes(NamedTuple):
    """Bytes of weights that a pass reads, and of cache for each token of the text so far."""

    weights: int
    cache_per_token: int


def pass_bytes(folder: Path, inference_precision: str, cache_precision: str) -> PassBytes:
    """Return the bytes read by a pass of a folder's model with these precisions, named as in OpenVINO.

    Raises:
        FolderError: the model cannot be read.
    """
    try:
        model = openvino.Core().read_model(folder / "openvino_model.xml")
    except RuntimeError as error:
        raise FolderError(f"OpenVINO cannot read the model in {folder.name!r}; export it again.") from error
    narrow = _BITS.get(inference_precision, 32)
    bits, seen = 0, set()
    for _, weights in _products(model):
        constants = _constants(weights)
        folded = len(constants) > 1 and all(each.get_output_element_type(0).is_real() for each in constants)
        for constant in constants:
            if constant.get_friendly_name() not in seen:
                seen.add(constant.get_friendly_name())
                width = (weights if folded else constant).get_output_element_type(0).bitwidth
                floats = constant.get_output_element_type(0).is_real()
                bits += prod(constant.get_output_shape(0)) * (min(width, narrow) if floats else width)
    cached = sum(_width_of_state(variable.info.data_shape) for variable in model.get_variables())
    return PassBytes(bits // 8, cached * _BITS.get(cache_precision, 32) // 8)


def join_products(model: openvino.Model) -> int:
    """Join matrix products that read the same input, in place; return how many products that saves.

    Weights stored alike are stacked along their rows, biases too, and the product is split after them. Every output
    is the same sum as before, so the model's results do not change.
    """
    alike: dict[Any, list[_Product]] = defaultdict(list)
    for product, weights in _products(model):
        if product.get_attributes() == {"transpose_a": False, "transpose_b": True}:
            source, rows = product.input_value(0), weights.get_output_shape(0)[0]
            bias = _bias_of(product, rows)
            key = (source.get_node().get_friendly_name(), source.get_index(), bias is None, _form(weights, rows))
            alike[key].append(_Product(product, weights, rows, bias))
    left_out = 0
    for products in alike.values():
        if len(products) > 1:
            _join(products)
            left_out += len(products) - 1
    model.validate_nodes_and_infer_types()
    return left_out


class _Product(NamedTuple):
    """A matrix product with a constant of `rows` rows; `bias`: the addition after it, and its constant."""

    node: Any
    weights: Any
    rows: int
    bias: tuple[Any, Any] | None

    @property
    def end(self) -> Any:
        """Node whose output others read."""
        return self.bias[0] if self.bias is not None else self.node


def _join(products: Sequence[_Product]) -> None:
    source = products[0].node.input_value(0)
    rows = [product.rows for product in products]
    stacked = _stacked([product.weights for product in products], rows)
    result = opset.matmul(source, stacked, transpose_a=False, transpose_b=True)
    if products[0].bias is not None:
        biases = [_values(product.bias[1]).reshape(-1) for product in products if product.bias is not None]
        result = opset.add(result, opset.constant(np.concatenate(biases)))
    parts = opset.variadic_split(result, opset.constant(np.int64(-1)), opset.constant(np.array(rows, np.int64)))
    for index, product in enumerate(products):
        for reader in product.end.output(0).get_target_inputs():
            reader.replace_source_output(parts.output(index))


def _bias_of(product: Any, rows: int) -> tuple[Any, Any] | None:
    """Return the addition of a constant vector that is a product's only reader."""
    readers = list(product.output(0).get_target_inputs())
    if len(readers) != 1 or readers[0].get_node().get_type_name() != "Add":
        return None
    addition = readers[0].get_node()
    added = addition.input_value(1 - readers[0].get_index()).get_node()
    if not _is_constant(added) or prod(added.get_output_shape(0)) != rows or added.get_output_shape(0)[-1] != rows:
        return None
    return addition, added


def _form(node: Any, rows: int) -> Any:
    """Return how weights are stored and unpacked, apart from the number of rows and their values."""
    shape = node.get_output_shape(0)
    own = bool(shape) and shape[0] == rows
    values = b"" if own or node.get_type_name() != "Constant" else node.data.tobytes()
    inputs = tuple(_form(each, rows) for each in _unpacked(node))
    return node.get_type_name(), str(node.get_output_element_type(0)), own, tuple(shape[own:]), values, inputs


def _stacked(nodes: Sequence[Any], rows: Sequence[int]) -> Any:
    """Return the same unpacking of all their rows."""
    first = nodes[0]
    kind, inputs = first.get_type_name(), [_unpacked(node) for node in nodes]
    if kind == "Constant":
        return _stacked_constants(nodes, rows)
    if kind == "Convert":
        return opset.convert(_stacked([each[0] for each in inputs], rows), first.get_output_element_type(0))
    if kind == "Reshape":
        shape = np.array([sum(rows), *first.get_output_shape(0)[1:]], np.int64)
        return opset.reshape(_stacked([each[0] for each in inputs], rows), shape, special_zero=False)
    left, right = (_stacked([each[index] for each in inputs], rows) for index in (0, 1))
    return opset.subtract(left, right) if kind == "Subtract" else opset.multiply(left, right)


def _stacked_constants(nodes: Sequence[Any], rows: Sequence[int]) -> Any:
    shape, kind = nodes[0].get_output_shape(0), nodes[0].get_output_element_type(0)
    if not shape or shape[0] != rows[0]:  # one value for all rows
        return nodes[0]
    return _constant(np.concatenate([node.data.reshape(-1) for node in nodes]), [sum(rows), *shape[1:]], kind)


def _constant(values: np.ndarray[Any, Any], shape: Sequence[int], kind: openvino.Type) -> Any:
    """Return a constant with a copy of these values, as stored: two to a byte if they have four bits."""
    tensor = openvino.Tensor(np.ascontiguousarray(values), openvino.Shape(list(shape)), kind)
    return opset.constant(tensor, shared_memory=False)


def store_as_int8(model: openvino.Model) -> int:
    """Store weights of four bits, or of more than eight, as int8 in groups, in place; return how many matrices.

    Each group of a row has one scale, so that its largest weight is 127. Four bits become eight for processors on
    which these are multiplied faster.
    """
    places = {}
    for _, weights in _products(model):
        kinds = {each.get_output_element_type(0).get_type_name() for each in _constants(weights)}
        if not kinds & _EIGHT_BITS:
            places[weights.get_friendly_name()] = weights
    for weights in places.values():
        kind, replaced = weights.get_output_element_type(0), list(weights.output(0).get_target_inputs())
        stored = _as_int8(weights)
        converted = opset.convert(stored, kind) if kind != openvino.Type.f16 else stored
        for reader in replaced:
            reader.replace_source_output(converted.output(0))
    model.validate_nodes_and_infer_types()
    return len(places)


def _as_int8(weights: Any) -> Any:
    """Return nearly the same weights as int8 with f16 scales; shape (rows, columns)."""
    rows, columns = weights.get_output_shape(0)
    size = next((size for size in INT8_GROUPS if columns % size == 0), columns)
    steps, scales = [], []
    for begin in range(0, rows, _ROWS_AT_ONCE):
        groups = _values(weights, slice(begin, begin + _ROWS_AT_ONCE)).reshape(-1, columns // size, size)
        scale = (np.abs(groups).max(axis=-1, keepdims=True) / 127).astype(np.float16)
        scale[scale == 0] = 1
        steps.append(np.clip(np.rint(groups / scale.astype(np.float32)), -127, 127).astype(np.int8))
        scales.append(scale)
    unpacked = opset.convert(opset.constant(np.concatenate(steps)), openvino.Type.f16)
    scaled = opset.multiply(unpacked, opset.constant(np.concatenate(scales)))
    return opset.reshape(scaled, np.array([rows, columns], np.int64), special_zero=False)


def _values(node: Any, rows: slice = slice(None)) -> Floats:
    """Return some rows of what constants unpack to, in f32."""
    kind, inputs = node.get_type_name(), _unpacked(node)
    if kind == "Constant":
        return _constant_values(node, rows)
    if kind == "Convert":
        return _values(inputs[0], rows)
    if kind == "Reshape":
        shape = node.get_output_shape(0)
        return _values(inputs[0], rows).reshape(-1, *shape[1:])
    left, right = (_values(each, rows) for each in inputs)
    found: Floats = left - right if kind == "Subtract" else left * right
    return found


def _constant_values(node: Any, rows: slice) -> Floats:
    shape, data = node.get_output_shape(0), node.data
    if node.get_output_element_type(0) == openvino.Type.u4:
        pairs = data.reshape(shape[0], -1)[rows]
        data = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1, *shape[1:])
    elif len(shape) > 1:
        data = data[rows]
    return np.asarray(data, np.float32)


def _products(model: openvino.Model) -> Iterator[tuple[Any, Any]]:
    """Yield matrix products with weights, and the node that ends their unpacking."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul":
            for index in range(node.get_input_size()):
                weights = node.input_value(index).get_node()
                if _is_constant(weights):
                    yield node, weights


def _constants(node: Any) -> list[Any]:
    """Return the constants that are unpacked to a product's weights."""
    if node.get_type_name() == "Constant":
        return [node]
    return [constant for each in _unpacked(node) for constant in _constants(each)]


def _unpacked(node: Any) -> list[Any]:
    """Return the inputs that a node unpacks, without the target shape of a reshape."""
    arguments = 1 if node.get_type_name() in {"Convert", "Reshape", "Transpose"} else node.get_input_size()
    return [node.input_value(index).get_node() for index in range(arguments)]


def _is_constant(node: Any) -> bool:
    """Whether this output depends only on unpacked constants."""
    kind = node.get_type_name()
    return kind == "Constant" or (kind in _DECOMPRESSION and all(map(_is_constant, _unpacked(node))))


def _width_of_state(shape: Any) -> int:
    """Return how many numbers are kept per token: the product of the static dimensions."""
    return prod(int(size.get_length()) for size in shape if size.is_static)
