"""Weights of a GGUF file as OpenVINO's constants, in one of four forms.

- exact: groups of 32 weights in 4 bits keep their integers, and other kinds their own in 8 bits or half precision.
- int4: the same for 4-bit kinds; everything else becomes int8.
- int8: all in groups of 64, whose largest weight is 127.
- fast: all in groups of 64, in 4 bits, for drafts.

Q4_K and Q4_1 store `scale * q + minimum`. OpenVINO multiplies 4-bit weights fast only with an integer as their zero,
so they are stored as `scale * (q - 8)`. What that leaves out, `offset = minimum + 8 * scale` for each group, is
multiplied with the sum of the group's inputs: the inputs are extended by these sums, and the weights by the offsets,
each written with two digits of 4 bits (three if exact), so that one product computes both.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from openvino import opset13 as ops

from specdemo.models.gguf import EIGHT_BITS, FOUR_BITS
from specdemo.models.gguf_header import BLOCKS, Header, Tensor
from specdemo.models.gguf_keys import head_size
from specdemo.settings import WeightsForm

ROUNDED_GROUPS = (64, 32)  # weights per scale of rounded weights; the second if the first does not divide a row
_BLOCK = 32
_ROUGH_HEAD_THRESHOLD = 1e8  # weights; a smaller head saves a twentieth of a step, and 4 bits blur its logits more
_ROWS_BYTES = 2**24  # unpacked together as f32; a whole matrix would need more memory

Floats = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _StoredWeights(NamedTuple):
    """Integers in int8, or in pairs of 4 bits, or floats, shape (rows, groups, ...), and their f16 scales.

    Offsets have the shape (rows, groups), in f32; None if there are none.
    """

    values: Any
    scales: Any = None
    offsets: Any = None

    @property
    def form(self) -> tuple[Any, ...]:
        return self.values.dtype, self.values.shape[2:], self.offsets is None


def _stacked(parts: Sequence[_StoredWeights]) -> _StoredWeights:
    """Return the rows of all parts, which have one form."""
    columns = zip(*parts, strict=True)
    return _StoredWeights(*(None if column[0] is None else np.concatenate(column) for column in columns))


Pack = Callable[[Bytes, Tensor], _StoredWeights]  # of some rows


class Weights:
    def __init__(self, path: Path, header: Header, form: WeightsForm, report: Callable[[float], None]) -> None:
        self._header, self._form, self._report = header, form, report
        self._read, self._bytes = 0, sum(tensor.bytes for tensor in header.tensors)
        self._file = np.memmap(path, np.uint8, "r")
        self._tensors = {tensor.name: tensor for tensor in header.tensors}
        self._shared = list[Any]()  # memory that OpenVINO's constants do not own
        self._extended = dict[str, Any]()
        self._embedding: Any = None

        self.head = "output" if self.holds("output.weight") else "token_embd"

    def holds(self, name: str) -> bool:
        return name in self._tensors

    def vector(self, name: str) -> Floats:
        tensor = self._tensors[name]
        return _unpacked(self._rows(tensor), tensor).reshape(-1)

    def embedding(self) -> Any:
        """Return the table of the tokens' embeddings, without offsets, which rows that are looked up cannot have."""
        tensor = self._tensors["token_embd.weight"]
        pack = self._packing(tensor)
        self._shares_embedding = pack is not _as_stored
        if not self._shares_embedding:
            pack = _as_halves if self._form == "exact" else _rounded
        self._embedding = self._decompressed(self._stored("token_embd", pack))
        return self._embedding

    def products(self, inputs: Any, names: Sequence[str]) -> list[Any]:
        """Return the products of the inputs with these matrices; those of one form are computed as one and split."""
        if names == ["token_embd"] and self._shares_embedding:
            return [ops.matmul(inputs, self._embedding, transpose_a=False, transpose_b=True).output(0)]
        by_form = dict[Any, dict[str, _StoredWeights]]()
        for name in names:
            stored = self._stored(name)
            by_form.setdefault(stored.form, {})[name] = stored
        results = dict[str, Any]()
        for group in by_form.values():
            parts = list(group.values())
            product = self._product(inputs, _stacked(parts))
            if any(self.holds(f"{name}.bias") for name in group):
                product = ops.add(product, ops.constant(np.concatenate([self._bias(name) for name in group])))
            if len(parts) == 1:
                results |= {name: product.output(0) for name in group}
                continue
            rows = ops.constant(np.array([len(part.values) for part in parts], np.int64))
            split = ops.variadic_split(product, ops.constant(np.int64(-1)), rows)
            results |= dict(zip(group, split.outputs(), strict=True))
        return [results[name] for name in names]

    def rough_logits(self, inputs: Any) -> Any | None:
        """Return the product with an output head in 4 bits; None unless the model's own is large and in 8 bits."""
        tensor = self._tensors[f"{self.head}.weight"]
        if self._packing(tensor) is not _rounded or np.prod(tensor.shape) < _ROUGH_HEAD_THRESHOLD:
            return None
        return self._product(inputs, self._stored(self.head, _rounded_to_4_bits))

    def _bias(self, name: str) -> Floats:
        rows = self._tensors[f"{name}.weight"].shape[1]
        return self.vector(f"{name}.bias") if self.holds(f"{name}.bias") else np.zeros(rows, np.float32)

    def _product(self, inputs: Any, stored: _StoredWeights) -> Any:
        if stored.offsets is not None:
            groups = stored.offsets.shape[1]
            digits = _as_digits(stored.offsets, 3 if self._form == "exact" else 2)
            inputs = self._with_sums(inputs, groups, len(digits))
            values, scales = zip((stored.values, stored.scales), *digits, strict=True)
            stored = _StoredWeights(np.concatenate(values, axis=1), np.concatenate(scales, axis=1))
        return ops.matmul(inputs, self._decompressed(stored), transpose_a=False, transpose_b=True)

    def _with_sums(self, inputs: Any, groups: int, digits: int) -> Any:
        """Return the inputs and, once for each digit, the sums of their groups, padded to whole groups."""
        key = inputs.get_node().get_friendly_name()
        if key not in self._extended:
            split = ops.reshape(inputs, np.array([0, 0, groups, _BLOCK]), special_zero=True)
            end = np.array([0, 0, -groups % _BLOCK])
            sums = ops.pad(ops.reduce_sum(split, np.array([-1])), np.array([0, 0, 0]), end, "constant", np.float32(0))
            self._extended[key] = ops.concat([inputs, *[sums] * digits], -1)
        return self._extended[key]

    def _decompressed(self, stored: _StoredWeights) -> Any:
        """Return the matrix in f32, which OpenVINO multiplies without unpacking it first."""
        rows, groups, size = stored.values.shape
        if stored.values.dtype == np.uint8:  # two weights to a byte
            size *= 2
            tensor = openvino.Tensor(stored.values, openvino.Shape([rows, groups, size]), openvino.Type.i4)
        else:
            tensor = openvino.Tensor(stored.values, shared_memory=True)
        self._shared += [stored, tensor]
        values = ops.constant(tensor, shared_memory=True)
        if stored.scales is not None:
            values = ops.multiply(ops.convert(values, "f16"), ops.constant(stored.scales))
        values = ops.reshape(values, np.array([rows, groups * size]), special_zero=False)
        return ops.convert(values, "f32").output(0)

    def _rows(self, tensor: Tensor) -> Bytes:
        start = self._header.data + tensor.offset
        rows = tensor.shape[1] if len(tensor.shape) > 1 else 1
        return self._file[start : start + tensor.bytes].reshape(rows, -1)

    def _stored(self, name: str, pack: Pack | None = None) -> _StoredWeights:
        tensor = self._tensors[f"{name}.weight"]
        raw = self._rows(tensor)
        pack = pack or self._packing(tensor)
        step = max(1, _ROWS_BYTES // (4 * tensor.shape[0]))
        chunks = (raw[start : start + step] for start in range(0, len(raw), step))
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(lambda chunk: pack(chunk, tensor), chunks))
        self._read += tensor.bytes
        self._report(min(self._read / self._bytes, 1.0))  # an output head may be read twice
        stored = _stacked(parts)
        if self._header.family == "llama" and name.endswith(("attn_q", "attn_k")):
            # the halves of a head turn together; GGUF has them in pairs
            order = np.arange(len(raw)).reshape(-1, head_size(self._header) // 2, 2).swapaxes(1, 2).reshape(-1)
            stored = _StoredWeights(*(None if part is None else part[order] for part in stored))
        return stored

    def _packing(self, tensor: Tensor) -> Pack:
        if self._form == "fast":
            return _rounded_to_4_bits
        if tensor.type in FOUR_BITS and self._form != "int8":
            return _as_stored
        if self._form == "exact":
            return _as_bytes if tensor.type in EIGHT_BITS else _as_halves
        return _rounded


def _blocks(raw: Bytes, tensor: Tensor) -> Bytes:
    """Return the blocks of rows, shape (blocks, bytes)."""
    return raw.reshape(-1, BLOCKS[tensor.type][1])


def _unpacked(raw: Bytes, tensor: Tensor) -> Floats:
    kind = GGMLQuantizationType[tensor.type]
    return np.asarray(dequantize(raw.copy(), kind), np.float32)


def _rounded(raw: Bytes, tensor: Tensor) -> _StoredWeights:
    groups = _groups(raw, tensor)
    return _StoredWeights(*_steps(groups, np.abs(groups).max(axis=-1, keepdims=True) / 127, (-127, 127)))


def _rounded_to_4_bits(raw: Bytes, tensor: Tensor) -> _StoredWeights:
    """Make the largest weight of a group -8, as llama.cpp does for Q4_0."""
    groups = _groups(raw, tensor)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    steps, scales = _steps(groups, np.where(-low > high, low, high) / -8, (-8, 7))
    return _StoredWeights(_packed(steps.view(np.uint8) & 15), scales)


def _groups(raw: Bytes, tensor: Tensor) -> Floats:
    values = _unpacked(raw, tensor)
    rows, columns = values.shape
    size = next((size for size in ROUNDED_GROUPS if columns % size == 0), columns)
    return values.reshape(rows, -1, size)


def _steps(groups: Floats, scales: Any, limits: tuple[int, int]) -> tuple[Any, Any]:
    scales = scales.astype(np.float16)
    scales[scales == 0] = 1
    return np.rint(groups / scales.astype(np.float32)).clip(*limits).astype(np.int8), scales


def _as_halves(raw: Bytes, tensor: Tensor) -> _StoredWeights:
    return _StoredWeights(_unpacked(raw, tensor).astype(np.float16)[:, None])


def _as_bytes(raw: Bytes, tensor: Tensor) -> _StoredWeights:
    rows, blocks = len(raw), _blocks(raw, tensor)
    if tensor.type == "Q6_K":
        unit = blocks[:, 208:].copy().view(np.float16).astype(np.float32)
        scales = unit * blocks[:, 192:208].view(np.int8)
    else:  # Q5_0 and Q8_0
        scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    scales = scales.reshape(rows, -1, 1)
    groups = _unpacked(raw, tensor).reshape(rows, scales.shape[1], -1)
    steps = np.rint(groups / np.where(scales == 0, 1, scales)).astype(np.int8)
    return _StoredWeights(steps, scales.astype(np.float16))


def _as_stored(raw: Bytes, tensor: Tensor) -> _StoredWeights:
    """Keep 4-bit integers, less 8, and their scales; offsets are what that changes, and the minima."""
    rows, blocks, offsets = len(raw), _blocks(raw, tensor), None
    if tensor.type == "Q4_K":
        unit = blocks[:, :4].copy().view(np.float16).astype(np.float32)  # those of scales and of minima
        # eight 6-bit values of each: the last four have their low bits in nibbles, their high bits above the others
        low, high = blocks[:, 4:12], blocks[:, 12:16]
        factors = np.concatenate([low[:, :4] & 63, (high & 15) | (low[:, :4] >> 6 << 4)], axis=1)
        minima = np.concatenate([low[:, 4:] & 63, (high >> 4) | (low[:, 4:] >> 6 << 4)], axis=1)
        scales = (unit[:, :1] * factors).astype(np.float16).reshape(rows, -1)
        offsets = 8 * scales.astype(np.float32) - (unit[:, 1:] * minima).reshape(rows, -1)
        pairs = blocks[:, 16:].reshape(-1, 32)  # of two groups
    else:
        scales = blocks[:, :2].copy().view(np.float16).reshape(rows, -1)
        if tensor.type == "Q4_1":
            minima = blocks[:, 2:4].copy().view(np.float16).reshape(rows, -1)
            offsets = 8 * scales.astype(np.float32) + minima.astype(np.float32)
        pairs = blocks[:, -16:]  # of two halves of a group
    packed = np.stack([_packed(pairs & 15), _packed(pairs >> 4)], axis=1)
    return _StoredWeights((packed ^ 0x88).reshape(rows, -1, _BLOCK // 2), scales[..., None], offsets)


def _packed(nibbles: Any) -> Any:
    """Put two neighbours of 4 bits into a byte, the first into its lower half."""
    return nibbles[..., ::2] | nibbles[..., 1::2] << 4


def _as_digits(offsets: Floats, digits: int) -> list[tuple[Any, Any]]:
    """Write offsets as sums of 4-bit numbers with scales that differ by 16; return these columns of weights."""
    rows, groups = offsets.shape
    padded = np.zeros((rows, -(-groups // _BLOCK), _BLOCK), np.float32)
    padded.reshape(rows, -1)[:, :groups] = offsets
    largest = sum(7 * 16**digit for digit in range(digits))
    scales = (np.abs(padded).max(axis=-1, keepdims=True) / largest).astype(np.float16)
    scales[scales == 0] = 1
    rest = np.rint(padded / scales.astype(np.float32)).clip(-largest, largest).astype(np.int32)
    columns = []
    for digit in range(digits):
        lowest = (rest + 8 & 15) - 8
        rest = (rest - lowest) >> 4
        columns.append((_packed((lowest & 15).astype(np.uint8)), (scales * 16**digit).astype(np.float16)))
    return columns
