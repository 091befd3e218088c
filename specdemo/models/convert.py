"""Conversion of a GGUF file to OpenVINO IR by openvino-genai's own reader, and repair of the result.

In the reader's network, layers lack the names by which GenAI finds those that an EAGLE-3 head reads, and positions
are not scaled. A group of 32 weights in Q4_1 and Q4_K, `scale * q + minimum`, becomes `scale * (q - zero)`, with
`zero` rounded to an integer. SmolLM2-135M-Instruct in Q4_1 then chose the same token as with its own weights at 66 %
of 3,000 positions, with a perplexity of 81 instead of 63. With `zero` in half precision it does at 99.6 %, for 5 %
more bytes. The reader's tokenizer

- truncates a text to its last 8,192 tokens, regardless of the model's context, and loses the start of a prompt;
- splits text by one of only three rules, and never adds a BOS token;
- uses tokens that no merge produces, anywhere in a word, and merges words that are tokens themselves;
- decodes user-defined tokens, such as `<think>`, to nothing, as if they were control tokens.

The reader writes no configuration; it is derived from the file's metadata.
"""

import json
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
import openvino_tokenizers
from openvino import opset13 as opset

from specdemo.errors import FetchError
from specdemo.files import link_or_copy
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import check_readable, vocabulary_of
from specdemo.models.gguf_header import TYPE_NUMBERS, Header, Tensor, read_array, read_header
from specdemo.models.gguf_keys import SPLITS, adds_bos, keeps_whole_words, rope_factors
from specdemo.settings import WeightsForm

_DECOMPRESSION = {"Convert", "Subtract", "Multiply", "Reshape"}  # from a constant to its product
_EIGHT_BITS = {"u8", "i8"}
INT8_GROUPS = (64, 32)  # weights per scale in int8; the second if the first does not divide a row
_ROWS_AT_ONCE = 4096  # unpacked to f32 together; the whole matrix would need more memory

Floats = np.ndarray[Any, np.dtype[np.float32]]
Halves = np.ndarray[Any, np.dtype[np.float16]]
_GROUP = 32
_ROUNDED = ("Q4_1", "Q4_K")
_LAYER_END = re.compile(r"model\.layers\.self_attn\.add1\.layer(\d+)")
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_BYTES_AT_ONCE = 2**24  # converted together, for the same reason
_NUMPY = {"F32": "<f4", "F16": "<f2"}
_NO_LIMIT = np.int32(2**30)  # GenAI adds to it the tokens at the beginning, so 2**31 - 1 would overflow
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens


def store(path: Path, work: Path, form: WeightsForm) -> None:
    """Convert a file in a new folder. The reader gets a link there: it writes its output next to its input."""
    header = read_header(path)
    check_readable(header)
    work.mkdir()
    link = work / "model.gguf"
    if not write_with_f16(path, header, link):
        link_or_copy(path, link)
    try:
        openvino_genai.LLMPipeline(link, "CPU", enable_save_ov_model=True)
    except Exception as error:
        reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        raise FetchError(
            f"OpenVINO GenAI could not read {path.name!r} (its last message: {reason}); choose another file."
        ) from error
    link.unlink()

    def repair(model: openvino.Model) -> None:
        for node in model.get_ordered_ops():
            if end := _LAYER_END.fullmatch(node.get_friendly_name()):
                node.set_friendly_name(f"model.layers.{end[1]}/residual")
        _scale_positions(model, path, header)
        _restore_minima(model, path, header)
        if form == "int8":
            store_as_int8(model)

    _rewrite(work, "openvino_model", repair)
    _repair_tokenizer(work, path, header)
    for name, content in (("config", configuration(header)), ("generation_config", generation_config(header))):
        (work / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    inspect_folder(work)


def configuration(header: Header) -> dict[str, Any]:
    """Return the model's `config.json`, with Hugging Face's keys; values missing in the file are left out."""
    family, integer = header.family, header.integer
    heads, width = integer(f"{family}.attention.head_count"), integer(f"{family}.embedding_length")
    values = {
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
    return {key: value for key, value in values.items() if value is not None}


def generation_config(header: Header) -> dict[str, Any]:
    """Return the model's `generation_config.json`. Turns of a chat can end with a different token than texts."""
    integer = header.integer
    ends = (integer(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    values = {
        "bos_token_id": integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted({id_ for id_ in ends if id_ is not None}) or None,
        "pad_token_id": integer("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in values.items() if value is not None}


def write_with_f16(path: Path, header: Header, copy: Path) -> bool:
    """Write a copy with matrices in F16 and vectors in F32, as the reader requires; return False if not needed."""
    matrices = {"F32": "F16", "BF16": "F16"}
    tensors = [
        tensor._replace(type=matrices.get(tensor.type, tensor.type) if len(tensor.shape) > 1 else "F32")
        for tensor in header.tensors
    ]
    if tensors == list(header.tensors):
        return False
    with copy.open("wb") as file:
        file.write(np.memmap(path, np.uint8, "r")[: header.table].tobytes())
        offset = 0
        for tensor in tensors:
            name, rank = tensor.name.encode(), len(tensor.shape)
            row = len(name), name, rank, *tensor.shape, TYPE_NUMBERS[tensor.type], offset
            file.write(struct.pack(f"<Q{len(name)}sI{rank}QIQ", *row))
            offset += -(-tensor.bytes // header.alignment) * header.alignment
        for source, tensor in zip(header.tensors, tensors, strict=True):
            file.write(bytes(-file.tell() % header.alignment))
            weights, same = _bytes_of(path, header, source), tensor.type == source.type
            for start in range(0, len(weights), _BYTES_AT_ONCE):
                part = weights[start : start + _BYTES_AT_ONCE]
                file.write((part if same else _floats(part, source).astype(_NUMPY[tensor.type])).tobytes())
        file.write(bytes(-file.tell() % header.alignment))
    return True


def _bytes_of(file: Path, header: Header, tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    start = header.data + tensor.offset
    return np.memmap(file, np.uint8, "r")[start : start + tensor.bytes]


def _floats(raw: np.ndarray[Any, np.dtype[np.uint8]], tensor: Tensor) -> np.ndarray[Any, Any]:
    if tensor.type == "BF16":  # the upper half of an F32
        return (raw.view("<u2").astype("<u4") << 16).view("<f4")
    return raw.view(_NUMPY[tensor.type])


def _scale_positions(model: openvino.Model, file: Path, header: Header) -> None:
    """Store the file's position frequencies: the reader omits their scaling, and may round them to f16."""
    base = header.number(f"{header.family}.rope.freq_base") or 10_000.0
    llama3 = next((tensor for tensor in header.tensors if tensor.name == "rope_freqs.weight"), None)
    divisors = 1 if llama3 is None else np.array(_bytes_of(file, header, llama3).view(np.float32))
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
        frequencies = base ** (-np.arange(count) / count) * np.array(factors) / divisors
        stored = opset.constant(frequencies.astype(np.float32).reshape(shape))
        spread.input(0).replace_source_output(stored.output(0))
        if scale != 1:
            readers = list(node.output(0).get_target_inputs())
            _replace(readers, opset.multiply(node, opset.constant(np.float32(scale))).output(0))


def _replace(readers: Iterable[Any], output: Any) -> None:
    for reader in readers:
        reader.replace_source_output(output)


def _restore_minima(model: openvino.Model, file: Path, header: Header) -> None:
    tensors = defaultdict[tuple[int, ...], list[Tensor]](list)
    for tensor in header.tensors:
        if tensor.type in _ROUNDED and len(tensor.shape) == 2:
            tensors[tensor.shape[1], tensor.shape[0] // _GROUP].append(tensor)
    for subtraction, scales in _zero_points(model):
        minima = _minima(scales, tensors[scales.shape], file, header)
        if minima is not None:
            steps = np.where(scales == 0, 1, scales).astype(np.float32)
            zeros = (minima / steps).astype(np.float16)[..., None]
            subtraction.input(1).replace_source_output(opset.constant(zeros).output(0))


def _zero_points(model: openvino.Model) -> Iterator[tuple[Any, Halves]]:
    """Yield the nodes that subtract 4-bit zero points, and the scales that follow, shape (rows, groups)."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Subtract":
            continue
        zeros = node.input_value(1).get_node()
        if zeros.get_type_name() == "Convert" and zeros.get_input_element_type(0) == openvino.Type.u4:
            (product,) = node.output(0).get_target_inputs()
            yield node, np.array(product.get_node().input_value(1).get_node().data)[..., 0]


def _minima(scales: Halves, tensors: list[Tensor], file: Path, header: Header) -> Floats | None:
    """Return the negated minima of the tensor with these scales, whose rows may be in a different order."""
    for tensor in tensors:
        tensor_scales, minima = _scales_and_minima(tensor, _bytes_of(file, header, tensor))
        if not np.array_equal(tensor_scales[0], scales[0]):  # rows are reordered within heads: the first row stays
            continue
        if np.array_equal(tensor_scales, scales):
            return minima
        positions = {row.tobytes(): position for position, row in enumerate(tensor_scales)}
        order = [positions.get(row.tobytes(), -1) for row in scales]
        if -1 not in order:
            return minima[order]
    return None


def _scales_and_minima(tensor: Tensor, raw: np.ndarray[Any, Any]) -> tuple[Halves, Floats]:
    """Return the scales and negated minima of each group, shape (rows, groups)."""
    rows = tensor.shape[1]
    if tensor.type == "Q4_1":
        heads = raw.reshape(-1, 20)[:, :4].copy().view(np.float16)
        return heads[:, 0].reshape(rows, -1), -heads[:, 1].astype(np.float32).reshape(rows, -1)
    blocks = raw.reshape(-1, 144)
    unit = blocks[:, :4].copy().view(np.float16).astype(np.float32)  # those of scales and of minima
    # eight 6-bit values of each: the last four have their low bits in nibbles, their high bits above the others
    packed = blocks[:, 4:16]
    low, high = packed[:, :8], packed[:, 8:]
    scales = np.concatenate([low[:, :4] & 63, (high & 15) | (low[:, :4] >> 6 << 4)], axis=1)
    minima = np.concatenate([low[:, 4:] & 63, (high >> 4) | (low[:, 4:] >> 6 << 4)], axis=1)
    exact = (unit[:, :1] * scales).astype(np.float16)
    return exact.reshape(rows, -1), (unit[:, 1:] * minima).reshape(rows, -1)


def store_as_int8(model: openvino.Model) -> None:
    """Store weights of four bits, or of more than eight, as int8 in groups, in place.

    A group's largest weight is 127. Products that read the same input (q, k and v; gate and up) become one, which is
    split after it: SmolLM2-135M then has 121 products a step instead of 211.
    """
    by_input: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
    for product, weights in _products(model):
        kinds = {constant.get_output_element_type(0).get_type_name() for constant in _constants(weights)}
        if not kinds & _EIGHT_BITS:
            source = product.input_value(0)
            by_input[source.get_node().get_friendly_name(), source.get_index()].append((product, weights))
    for products in by_input.values():
        nodes = [weights for _, weights in products]
        kind, tied = nodes[0].get_output_element_type(0), list(nodes[0].output(0).get_target_inputs())
        stored = _as_int8(nodes)
        stored = opset.convert(stored, kind) if kind != openvino.Type.f16 else stored
        if len(products) == 1:
            _replace(tied, stored.output(0))  # such as the embedding of the tokens
            continue
        joined = opset.matmul(products[0][0].input_value(0), stored, transpose_a=False, transpose_b=True)
        rows = np.array([node.get_output_shape(0)[0] for node in nodes], np.int64)
        parts = opset.variadic_split(joined, opset.constant(np.int64(-1)), opset.constant(rows))
        for index, (product, _) in enumerate(products):
            _replace(product.output(0).get_target_inputs(), parts.output(index))


def _as_int8(nodes: Sequence[Any]) -> Any:
    """Return the nodes' weights, stacked and rounded to int8 with f16 scales; shape (rows, columns)."""
    columns = nodes[0].get_output_shape(0)[1]
    size = next((size for size in INT8_GROUPS if columns % size == 0), columns)
    steps, scales = [], []
    for node in nodes:
        for start in range(0, node.get_output_shape(0)[0], _ROWS_AT_ONCE):
            groups = _values(node, slice(start, start + _ROWS_AT_ONCE)).reshape(-1, columns // size, size)
            scale = (np.abs(groups).max(axis=-1, keepdims=True) / 127).astype(np.float16)
            scale[scale == 0] = 1
            steps.append(np.clip(np.rint(groups / scale.astype(np.float32)), -127, 127).astype(np.int8))
            scales.append(scale)
    unpacked = opset.convert(opset.constant(np.concatenate(steps)), openvino.Type.f16)
    scaled = opset.multiply(unpacked, opset.constant(np.concatenate(scales)))
    return opset.reshape(scaled, np.array([-1, columns], np.int64), special_zero=False)


def _values(node: Any, rows: slice) -> Floats:
    """Return some rows of the unpacked weights, in f32."""
    kind, inputs = node.get_type_name(), _unpacked(node)
    if kind == "Constant":
        return _constant_values(node, rows)
    left, *others = (_values(source, rows) for source in inputs)
    if kind == "Reshape":
        return left.reshape(-1, *node.get_output_shape(0)[1:])
    if not others:
        return left
    values: Floats = left - others[0] if kind == "Subtract" else left * others[0]
    return values


def _constant_values(node: Any, rows: slice) -> Floats:
    shape, data = node.get_output_shape(0), node.data
    if node.get_output_element_type(0) == openvino.Type.u4:
        pairs = data.reshape(shape[0], -1)[rows]
        data = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1, *shape[1:])
    elif len(shape) > 1:
        data = data[rows]
    return np.asarray(data, np.float32)


def _products(model: openvino.Model) -> Iterator[tuple[Any, Any]]:
    """Yield the products with weights, and the node of their weights."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul":
            sources = (node.input_value(index).get_node() for index in range(node.get_input_size()))
            yield from ((node, source) for source in sources if _constants(source))


def _constants(node: Any) -> list[Any]:
    """Return the constants that a node unpacks; empty if it depends on anything else."""
    kind = node.get_type_name()
    if kind == "Constant":
        return [node]
    parts = [_constants(source) for source in _unpacked(node)] if kind in _DECOMPRESSION else []
    return [constant for part in parts for constant in part] if all(parts) else []


def _unpacked(node: Any) -> list[Any]:
    """Return the inputs that a node unpacks, without the target shape of a reshape."""
    count = 1 if node.get_type_name() in {"Convert", "Reshape"} else node.get_input_size()
    return [node.input_value(index).get_node() for index in range(count)]


def _repair_tokenizer(folder: Path, file: Path, header: Header) -> None:
    kinds = read_array(file, header.metadata.get("tokenizer.ggml.token_type"))
    visible = {id_ for id_, kind in enumerate(kinds) if kind == _USER_DEFINED}

    def tokenizer(model: openvino.Model) -> None:
        _remove_limit(model)
        _replace_splits(model, SPLITS[header.text("tokenizer.ggml.pre") or "default"])
        if keeps_whole_words(header):
            _keep_whole_words(model)
        _remove_unmerged(model, file, header, kinds)
        if adds_bos(header):
            _add_bos(model, header.integer("tokenizer.ggml.bos_token_id") or 0)

    _rewrite(folder, "openvino_tokenizer", tokenizer)
    if visible:
        _rewrite(folder, "openvino_detokenizer", lambda model: _make_visible(model, visible))


def _rewrite(folder: Path, stem: str, edit: Callable[[openvino.Model], None]) -> None:
    """Edit a network or tokenizer of a folder in place."""
    core = openvino.Core()
    core.add_extension(str(openvino_tokenizers._ext_path))
    model = core.read_model(folder / f"{stem}.xml")
    edit(model)
    model.validate_nodes_and_infer_types()
    output = folder / "changed"
    openvino.save_model(model, output / f"{stem}.xml", compress_to_fp16=False)
    del model  # it keeps the file open
    for file in output.iterdir():
        file.replace(folder / file.name)
    output.rmdir()


def _remove_limit(model: openvino.Model) -> None:
    """Return all tokens of a text; whether a prompt fits the context is checked later."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Minimum" and node.input_value(1).get_node().get_type_name() == "Constant":
            node.input(1).replace_source_output(opset.constant(_NO_LIMIT).output(0))


def _replace_splits(model: openvino.Model, patterns: tuple[str, ...]) -> None:
    first = next(node for node in model.get_ordered_ops() if node.get_type_name() == "RegexSplit")
    merging = _merging(model)
    outputs = [first.input_value(index) for index in range(6)]
    attributes = {"behaviour": "isolate", "invert": False, "max_splits": -1}
    for pattern in patterns:
        stored = opset.constant(np.frombuffer(pattern.encode(), np.uint8))
        outputs = _create("RegexSplit", [*outputs, stored.output(0)], attributes)
    for index in range(5):  # begins and ends of texts, begins and ends of parts, and their bytes
        merging.input(index).replace_source_output(outputs[index])


def _keep_whole_words(model: openvino.Model) -> None:
    """Encode a piece of text that is a token as that token, without merging."""
    merging = _merging(model)
    texts, pieces, words = (
        [merging.input_value(index) for index in indexes] for indexes in (range(2), range(2, 5), range(5, 8))
    )
    readers = [list(merging.output(index).get_target_inputs()) for index in range(3)]
    zero, one, none = (opset.constant(np.int32(value)) for value in (0, 1, -1))
    ids = opset.constant(np.arange(words[0].get_shape()[0], dtype=np.int32))
    (token_ids,) = _create("VocabEncoder", [*pieces, *words, ids.output(0), none.output(0)], {})
    is_token = opset.convert(opset.greater(token_ids, none), "i32")
    number = opset.gather(opset.shape_of(pieces[0], "i32"), zero, zero)
    first = opset.range(zero, number, one, "i32")
    # merge piece by piece, except the pieces that are tokens
    merging.input(0).replace_source_output(first.output(0))
    merging.input(1).replace_source_output(opset.subtract(opset.add(first, one), is_token).output(0))
    merged = merging.output(0), opset.add(merging.output(1), zero).output(0), merging.output(2)
    segments = opset.constant(np.zeros(2, np.int32)).output(0)
    parts = [first.output(0), opset.add(first, is_token).output(0), token_ids, *merged, segments]
    _, ends, joined, *_ = _create("CombineSegments", parts, {})
    offsets = opset.concat([opset.constant(np.zeros(1, np.int32)), ends], 0)
    outputs = [*(opset.gather(offsets, text, zero).output(0) for text in texts), joined]
    for output, inputs in zip(outputs, readers, strict=True):
        _replace(inputs, output)


def _remove_unmerged(model: openvino.Model, file: Path, header: Header, kinds: Sequence[int]) -> None:
    """Disable tokens that merges cannot build from single characters, and their merges: llama.cpp never uses them."""
    tokens, merges = (
        [text.decode(errors="replace") for text in read_array(file, header.metadata.get(f"tokenizer.ggml.{name}"))]
        for name in ("tokens", "merges")
    )
    reachable, is_used = {token for token in tokens if len(token) == 1}, np.zeros(len(merges), bool)
    pairs = [merge.split(" ", 1) for merge in merges]
    before = 0
    while before < len(reachable):  # a single pass, if the merges are in training order
        before = len(reachable)
        for index, (left, right) in enumerate(pairs):
            if left in reachable and right in reachable:
                is_used[index] = True
                reachable.add(left + right)
    unmerged = [
        id_
        for id_, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if token not in reachable and kind not in (_CONTROL, _USER_DEFINED)  # texts are split at these before merging
    ]
    merging = _merging(model)
    begins, ends = (np.array(merging.input_value(index).get_node().data) for index in (5, 6))
    ends[unmerged] = begins[unmerged]
    merging.input(6).replace_source_output(opset.constant(ends).output(0))
    for index in (8, 9, 11, 12):  # begins and ends of both sides of merges
        used = merging.input_value(index).get_node().data[is_used]
        merging.input(index).replace_source_output(opset.constant(used).output(0))


def _merging(model: openvino.Model) -> Any:
    return next(node for node in model.get_ordered_ops() if node.get_type_name() == "BPETokenizer")


def _add_bos(model: openvino.Model, token: int) -> None:
    """Start each text with a token, added by the operation that GenAI looks for to switch special tokens off."""
    (dense,) = (node for node in model.get_ordered_ops() if node.get_type_name() == "RaggedToDense")
    length = dense.input_value(3).get_node().input_value(0).get_node()  # of each text: its end minus its beginning
    first = [opset.constant(np.array(values, np.int32)).output(0) for values in (0, 1, [token])]
    segments = opset.constant(np.zeros(2, np.int32)).output(0)
    outputs = _create("CombineSegments", [*first, *(dense.input_value(index) for index in range(3)), segments], {})
    for index in range(3):
        dense.input(index).replace_source_output(outputs[index])
    length.input(0).replace_source_output(outputs[1])
    length.input(1).replace_source_output(outputs[0])


def _make_visible(model: openvino.Model, visible: set[int]) -> None:
    """Decode these tokens to their text instead of to nothing."""
    (decoding,) = (node for node in model.get_ordered_ops() if node.get_type_name() == "VocabDecoder")
    part = decoding.input_value(4).get_node()  # a slice, whose end GenAI changes to decode all tokens
    hidden = part.input_value(0).get_node().data
    still_hidden = np.array([id_ for id_ in hidden.tolist() if id_ not in visible], hidden.dtype)
    part.input(0).replace_source_output(opset.constant(still_hidden).output(0))


def _create(kind: str, inputs: list[Any], attributes: dict[str, Any]) -> list[Any]:
    return list(openvino_tokenizers._get_factory().create(kind, inputs, attributes).outputs())
