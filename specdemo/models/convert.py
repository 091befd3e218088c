"""Conversion of a GGUF file to OpenVINO IR by openvino-genai's own reader, and what is put right in its result.

The reader writes beside the file it reads, so it gets a link to the file in a folder of its own. It accepts no F32
or BF16 matrices, so these are converted to F16 first. It writes no configuration, so that is derived from the file's
metadata. In the network that it writes:

- In Q4_1 and Q4_K a group of 32 weights is stored as `scale * q + minimum`, with a 4-bit q. openvino-genai 2026.4
  converts it to `scale * (q - zero)`, with `zero` rounded to an integer. That is a different model:
  SmolLM2-135M-Instruct in Q4_1 then chose the same token as with its own weights at 66 % of 3,000 positions, and its
  perplexity was 81 instead of 63. With `zero` in half precision it chose the same at 99.6 %, for 5 % more bytes.
- The ends of layers get the names by which GenAI finds an EAGLE-3 head's layers, which the reader, part of GenAI too,
  does not set.
- Products that read the same input are joined.
"""

import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino
import openvino_genai
from openvino import opset13 as opset

from specdemo.errors import ConversionError
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import Header, Tensor, check_readable, read_header, type_number, vocabulary_of
from specdemo.models.gguf_keys import rope_factors
from specdemo.models.places import link_or_copy
from specdemo.models.tokenizer import change, check_merges, repair_tokenizer
from specdemo.settings import WeightsForm

_DECOMPRESSION = {"Convert", "Subtract", "Multiply", "Reshape", "Transpose"}
"""Operations between a constant and its product: weights are unpacked, shifted, scaled and reshaped."""
_EIGHT_BITS = {"u8", "i8"}
INT8_GROUPS = (64, 32)
"""Weights that share a scale in int8; the second if the first does not divide a row."""
_ROWS_AT_ONCE = 4096  # rows unpacked to f32 at once, so that memory stays below the matrix's own

Floats = np.ndarray[Any, np.dtype[np.float32]]
Halves = np.ndarray[Any, np.dtype[np.float16]]
_GROUP = 32
_ROUNDED = ("Q4_1", "Q4_K")
_END = re.compile(r"model\.layers\.self_attn\.add1\.layer(\d+)")
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_STEP = 2**24  # bytes converted at once, for the same reason


def store(path: Path, work: Path, form: WeightsForm) -> None:
    """Convert a file into a folder that does not exist yet."""
    header = read_header(path)
    check_readable(header)
    check_merges(path, header)
    work.mkdir()
    link = work / "model.gguf"
    if not with_halves(path, header, link):
        link_or_copy(path, link)
    try:
        openvino_genai.LLMPipeline(link, "CPU", enable_save_ov_model=True)
    except Exception as error:  # whatever makes the reader fail
        said = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        raise ConversionError(
            f"OpenVINO GenAI could not read {path.name!r} (its last message: {said}); choose another file."
        ) from error
    link.unlink()

    def repair(model: openvino.Model) -> None:
        _name_layers(model)
        _scale_positions(model, path, header)
        _restore_minima(model, path, header)
        join_products(model)
        if form == "int8":
            store_as_int8(model)

    change(work, "openvino_model", repair)
    repair_tokenizer(work, path, header)
    for name, content in (("config", configuration(header)), ("generation_config", ends(header))):
        (work / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    inspect_folder(work)


def configuration(header: Header) -> dict[str, Any]:
    """Return the model's `config.json`, with Hugging Face's keys; values missing in the file are left out."""
    family, integer = header.family, header.integer
    heads, width = integer(f"{family}.attention.head_count"), integer(f"{family}.embedding_length")
    found = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "hidden_size": width,
        "intermediate_size": integer(f"{family}.feed_forward_length"),
        "num_hidden_layers": integer(f"{family}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": integer(f"{family}.attention.head_count_kv") or heads,
        "head_dim": integer(f"{family}.attention.key_length") or (width // heads if width and heads else None),
        "max_position_embeddings": integer(f"{family}.context_length"),
        "rms_norm_eps": header.number(f"{family}.attention.layer_norm_rms_epsilon"),
        "rope_theta": header.number(f"{family}.rope.freq_base"),
        "vocab_size": vocabulary_of(header),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in header.tensors),
        "bos_token_id": integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": integer("tokenizer.ggml.eos_token_id"),
    }
    return {key: value for key, value in found.items() if value is not None}


def ends(header: Header) -> dict[str, Any]:
    """Return the model's `generation_config.json`: a turn can end with a different token from the text."""
    integer = header.integer
    named = (integer(f"tokenizer.ggml.{which}_token_id") for which in ("eos", "eot", "eom"))
    found = {
        "bos_token_id": integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted({id_ for id_ in named if id_ is not None}) or None,
        "pad_token_id": integer("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in found.items() if value is not None}


def with_halves(path: Path, header: Header, copy: Path) -> bool:
    """Write a copy of a file with its F32 and BF16 matrices as F16, and vectors as F32; return False if all are.

    The reader of openvino-genai 2026.4 supports no other vectors, and no F32 or BF16 matrices.
    """
    if all(_stored_as(tensor) == tensor.type for tensor in header.tensors):
        return False
    content = np.memmap(path, np.uint8, "r")
    with copy.open("wb") as target:
        target.write(content[: header.table].tobytes())
        offset = 0
        for tensor in header.tensors:
            target.write(_row(tensor, offset))
            offset += -(-_size(tensor) // header.alignment) * header.alignment
        for tensor in header.tensors:
            target.write(bytes(-target.tell() % header.alignment))
            begin = header.data + tensor.offset
            weights = content[begin : begin + tensor.bytes]
            for place in range(0, len(weights), _STEP):
                part = weights[place : place + _STEP]
                target.write(_converted(part, tensor).tobytes())
        target.write(bytes(-target.tell() % header.alignment))
    return True


def _stored_as(tensor: Tensor) -> str:
    if len(tensor.shape) > 1:
        return "F16" if tensor.type in ("F32", "BF16") else tensor.type
    return "F32"


def _size(tensor: Tensor) -> int:
    kind = _stored_as(tensor)
    return tensor.bytes if kind == tensor.type else prod(tensor.shape) * (2 if kind == "F16" else 4)


def _row(tensor: Tensor, offset: int) -> bytes:
    name = tensor.name.encode()
    form = f"<Q{len(name)}sI{len(tensor.shape)}QIQ"
    kind = type_number(_stored_as(tensor))
    return struct.pack(form, len(name), name, len(tensor.shape), *tensor.shape, kind, offset)


def _converted(part: np.ndarray[Any, np.dtype[np.uint8]], tensor: Tensor) -> np.ndarray[Any, Any]:
    kind = _stored_as(tensor)
    if kind == tensor.type:
        return part
    if tensor.type == "BF16":  # the upper half of an F32
        floats = (part.view("<u2").astype("<u4") << 16).view("<f4")
    else:
        floats = part.view({"F32": "<f4", "F16": "<f2"}[tensor.type])
    return floats.astype({"F16": "<f2", "F32": "<f4"}[kind])


def _name_layers(model: openvino.Model) -> None:
    for node in model.get_ordered_ops():
        if end := _END.fullmatch(node.get_friendly_name()):
            node.set_friendly_name(f"model.layers.{end[1]}/residual")


def _scale_positions(model: openvino.Model, file: Path, header: Header) -> None:
    """Store the file's own frequencies of positions.

    The reader leaves their scaling out, and rounds them to half precision where no matrix is quantized.
    """
    base = header.number(f"{header.family}.rope.freq_base") or 10_000.0
    for node in model.get_ordered_ops():
        if node.get_type_name() not in ("Cos", "Sin"):
            continue
        product = node.input_value(0).get_node()
        while product.get_type_name() != "MatMul":  # behind a transpose and a concatenation of halves
            product = product.input_value(0).get_node()
        spread = product.input_value(0).get_node()
        shape = spread.input_value(0).get_node().get_output_shape(0)
        count = prod(shape)
        factors, scale = rope_factors(header, 2 * count)
        frequencies = base ** (-np.arange(count) / count) * np.array(factors) / _divisors(file, header)
        stored = opset.constant(frequencies.astype(np.float32).reshape(shape))
        spread.input(0).replace_source_output(stored.output(0))
        if scale != 1:
            readers = list(node.output(0).get_target_inputs())
            larger = opset.multiply(node, opset.constant(np.float32(scale)))
            for reader in readers:
                reader.replace_source_output(larger.output(0))


def _divisors(file: Path, header: Header) -> Floats:
    """Return what llama 3 divides the frequencies by: one for other models."""
    for tensor in header.tensors:
        if tensor.name == "rope_freqs.weight":
            begin = header.data + tensor.offset
            return np.array(np.memmap(file, np.uint8, "r")[begin : begin + tensor.bytes].view(np.float32))
    return np.ones(1, np.float32)


def _restore_minima(model: openvino.Model, file: Path, header: Header) -> None:
    tensors = defaultdict[tuple[int, ...], list[Tensor]](list)
    for tensor in header.tensors:
        if tensor.type in _ROUNDED and len(tensor.shape) == 2:
            tensors[tensor.shape[1], tensor.shape[0] // _GROUP].append(tensor)
    if not tensors:
        return
    content = np.memmap(file, np.uint8, "r")
    for subtraction, scales in _rounded(model):
        found = _minima(scales, tensors[scales.shape], content[header.data :])
        if found is not None:
            steps = np.where(scales == 0, 1, scales).astype(np.float32)
            zeros = (found / steps).astype(np.float16)[..., None]
            subtraction.input(1).replace_source_output(opset.constant(zeros).output(0))


def _rounded(model: openvino.Model) -> Iterator[tuple[Any, Halves]]:
    """Yield the nodes that subtract 4-bit zero points, and the scales that follow, shape (rows, groups)."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Subtract":
            continue
        zeros = node.input_value(1).get_node()
        if zeros.get_type_name() == "Convert" and zeros.get_input_element_type(0) == openvino.Type.u4:
            (product,) = node.output(0).get_target_inputs()
            yield node, np.array(product.get_node().input_value(1).get_node().data)[..., 0]


def _minima(scales: Halves, tensors: list[Tensor], data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return the negated minima of the tensor with these scales, whose rows may be in a different order."""
    for tensor in tensors:
        theirs, minima = _scales_and_minima(tensor, data[tensor.offset : tensor.offset + tensor.bytes])
        if not np.array_equal(theirs[0], scales[0]):  # rows are reordered within heads: the first row stays
            continue
        if np.array_equal(theirs, scales):
            return minima
        places = {row.tobytes(): place for place, row in enumerate(theirs)}
        order = [places.get(row.tobytes(), -1) for row in scales]
        if -1 not in order:
            return minima[order]
    return None


def _scales_and_minima(tensor: Tensor, raw: np.ndarray[Any, Any]) -> tuple[Halves, np.ndarray[Any, Any]]:
    """Return the scales and negated minima of each group, shape (rows, groups)."""
    rows = tensor.shape[1]
    if tensor.type == "Q4_1":
        heads = raw.reshape(-1, 20)[:, :4].copy().view(np.float16)
        return heads[:, 0].reshape(rows, -1), -heads[:, 1].astype(np.float32).reshape(rows, -1)
    blocks = raw.reshape(-1, 144)
    unit = blocks[:, :4].copy().view(np.float16).astype(np.float32)  # those of scales and of minima
    packed = blocks[
        :, 4:16
    ]  # eight 6-bit values of each: the last four have their low bits in nibbles, their high bits above the others
    low, high = packed[:, :8], packed[:, 8:]
    scales = np.concatenate([low[:, :4] & 63, (high & 15) | (low[:, :4] >> 6 << 4)], axis=1)
    minima = np.concatenate([low[:, 4:] & 63, (high >> 4) | (low[:, 4:] >> 6 << 4)], axis=1)
    exact = (unit[:, :1] * scales).astype(np.float16)
    return exact.reshape(rows, -1), (unit[:, 1:] * minima).reshape(rows, -1)


def join_products(model: openvino.Model) -> None:
    """Join matrix products that read the same input, in place.

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
    for products in alike.values():
        if len(products) > 1:
            _join(products)


class _Product(NamedTuple):
    """A matrix product with a constant of `rows` rows; `bias`: the addition after it, and its constant."""

    node: Any
    weights: Any
    rows: int
    bias: tuple[Any, Any] | None

    @property
    def end(self) -> Any:
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
    shape = node.get_output_shape(0)
    own = bool(shape) and shape[0] == rows
    values = b"" if own or node.get_type_name() != "Constant" else node.data.tobytes()
    inputs = tuple(_form(each, rows) for each in _unpacked(node))
    return node.get_type_name(), str(node.get_output_element_type(0)), own, tuple(shape[own:]), values, inputs


def _stacked(nodes: Sequence[Any], rows: Sequence[int]) -> Any:
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


def store_as_int8(model: openvino.Model) -> None:
    """Store weights of four bits, or of more than eight, as int8 in groups, in place.

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
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul":
            for index in range(node.get_input_size()):
                weights = node.input_value(index).get_node()
                if _is_constant(weights):
                    yield node, weights


def _constants(node: Any) -> list[Any]:
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
