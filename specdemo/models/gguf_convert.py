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
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from openvino import opset13 as opset

from specdemo.errors import ConversionError
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import Header, Tensor, check_readable, read_header, type_number, vocabulary_of
from specdemo.models.graph import join_products, store_as_int8
from specdemo.models.places import link_or_copy
from specdemo.settings import WeightsForm


def store(path: Path, work: Path, form: WeightsForm) -> None:
    """Convert a file into a folder that does not exist yet.

    Raises:
        GGUFError: the file cannot be read.
        ConversionError: openvino-genai refused it.
    """
    header = read_header(path)
    check_readable(header)
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
        _restore_minima(model, path, header)
        join_products(model)
        if form == "int8":
            store_as_int8(model)

    rewrite(work, repair)
    for name, content in (("config", configuration(header)), ("generation_config", ends(header))):
        (work / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    inspect_folder(work)


Halves = np.ndarray[Any, np.dtype[np.float16]]
_GROUP = 32
_ROUNDED = ("Q4_1", "Q4_K")
_END = re.compile(r"model\.layers\.self_attn\.add1\.layer(\d+)")
_WIDE = ("F32", "BF16")
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_STEP = 2**24  # bytes converted at once


def rewrite(folder: Path, change: Callable[[openvino.Model], None]) -> None:
    """Change a folder's network and store it."""
    model = openvino.Core().read_model(folder / "openvino_model.xml")
    change(model)
    changed = folder / "changed"
    openvino.save_model(model, changed / "openvino_model.xml", compress_to_fp16=False)
    del model  # which keeps the file open
    for written in changed.iterdir():
        written.replace(folder / written.name)
    changed.rmdir()


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
    """Write a copy of a file with its F32 and BF16 matrices as F16; return False if there are none.

    The reader of openvino-genai 2026.4 supports F32 vectors but not F32 matrices, and fails on BF16.
    """
    if not any(_halved(tensor) for tensor in header.tensors):
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
                target.write((_halves(part, tensor.type) if _halved(tensor) else part).tobytes())
        target.write(bytes(-target.tell() % header.alignment))
    return True


def _halved(tensor: Tensor) -> bool:
    return tensor.type in _WIDE and len(tensor.shape) > 1


def _size(tensor: Tensor) -> int:
    return 2 * prod(tensor.shape) if _halved(tensor) else tensor.bytes


def _row(tensor: Tensor, offset: int) -> bytes:
    """Return the tensor's row in the table, in the file's format."""
    name = tensor.name.encode()
    form = f"<Q{len(name)}sI{len(tensor.shape)}QIQ"
    kind = type_number("F16" if _halved(tensor) else tensor.type)
    return struct.pack(form, len(name), name, len(tensor.shape), *tensor.shape, kind, offset)


def _halves(part: np.ndarray[Any, np.dtype[np.uint8]], kind: str) -> np.ndarray[Any, np.dtype[np.float16]]:
    if kind == "BF16":  # the upper half of an F32
        return (part.view("<u2").astype("<u4") << 16).view("<f4").astype("<f2")
    return part.view("<f4").astype("<f2")


def _name_layers(model: openvino.Model) -> None:
    for node in model.get_ordered_ops():
        if end := _END.fullmatch(node.get_friendly_name()):
            node.set_friendly_name(f"model.layers.{end[1]}/residual")


def _restore_minima(model: openvino.Model, file: Path, header: Header) -> None:
    """Replace rounded zero points by exact ones."""
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
        theirs, minima = _unpacked(tensor, data[tensor.offset : tensor.offset + tensor.bytes])
        if not np.array_equal(theirs[0], scales[0]):  # rows are reordered within heads: the first row stays
            continue
        if np.array_equal(theirs, scales):
            return minima
        places = {row.tobytes(): place for place, row in enumerate(theirs)}
        order = [places.get(row.tobytes(), -1) for row in scales]
        if -1 not in order:
            return minima[order]
    return None


def _unpacked(tensor: Tensor, raw: np.ndarray[Any, Any]) -> tuple[Halves, np.ndarray[Any, Any]]:
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
