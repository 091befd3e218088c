"""What openvino-genai's reader changes in a GGUF file's model, put right after the conversion.

In Q4_1 and Q4_K a group of 32 weights is stored as `scale * q + minimum`, with a 4-bit q. openvino-genai 2026.4
converts it to `scale * (q - zero)`, with `zero` rounded to an integer. That is a different model:
SmolLM2-135M-Instruct in Q4_1 then chose the same token as with its own weights at 66 % of 3,000 positions, and its
perplexity was 81 instead of 63. With `zero` in half precision it chose the same at 99.6 %, for 5 % more bytes.

The ends of layers get the names that GenAI's own search for an EAGLE-3 head's layers expects, which the reader, part
of GenAI too, does not give.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as opset

from specdemo.models.gguf import Header, Tensor

Halves = np.ndarray[Any, np.dtype[np.float16]]
_GROUP = 32
_ROUNDED = ("Q4_1", "Q4_K")
_END = re.compile(r"model\.layers\.self_attn\.add1\.layer(\d+)")


def repair(folder: Path, file: Path, header: Header) -> None:
    """Put a converted model right, in place."""
    model = openvino.Core().read_model(folder / "openvino_model.xml")
    _name_layers(model)
    _restore_minima(model, file, header)
    exact = folder / "exact"
    openvino.save_model(model, exact / "openvino_model.xml", compress_to_fp16=False)
    del model  # which keeps the file open
    for written in exact.iterdir():
        written.replace(folder / written.name)
    exact.rmdir()


def _name_layers(model: openvino.Model) -> None:
    for node in model.get_ordered_ops():
        if end := _END.fullmatch(node.get_friendly_name()):
            node.set_friendly_name(f"model.layers.{end[1]}/residual")


def _restore_minima(model: openvino.Model, file: Path, header: Header) -> None:
    """Replace rounded zeros by exact ones."""
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
    """Where 4-bit zeros are subtracted, and the scales that follow, shape (rows, groups)."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Subtract":
            continue
        zeros = node.input_value(1).get_node()
        if zeros.get_type_name() == "Convert" and zeros.get_input_element_type(0) == openvino.Type.u4:
            (product,) = node.output(0).get_target_inputs()
            yield node, np.array(product.get_node().input_value(1).get_node().data)[..., 0]


def _minima(scales: Halves, tensors: list[Tensor], data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """The minima, with the sign turned, of the tensor with these scales; its rows may be in a different order."""
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
    """Scales and minima (sign turned) of each group, shape (rows, groups)."""
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
