"""The header of a GGUF file, the format of llama.cpp: metadata and the table of tensors, without weights.

The `gguf` package creates an object per token, which takes 4 s for a vocabulary of 49,000. Files are untrusted:
counts are compared with the file's size, dimensions have limits, and the type of every value is checked where it is
used. Any defect raises a `GGUFError`. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import stat
import struct
from collections.abc import Callable
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, cast

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from specdemo.errors import GGUFError, quoted

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALARS = {kind: struct.Struct(f"<{form}") for kind, form in _FORMS.items()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_ENTRY_BYTES, _TENSOR_BYTES = 13, 25  # minimum of a metadata entry, and of a row in the table of tensors
_MAX_ENTRIES, _MAX_TENSORS, _MAX_DIMENSIONS = 2**12, 2**16, 4
_MAX_TEXT = 2**23  # bytes of all keys, names and texts that are read; a chat template has some 10,000
_MAX_STRINGS = 2**22  # in all arrays together; a vocabulary of 262,144 tokens has twice as many merges
_MAX_WEIGHTS = 2**44
_MAX_ALIGNMENT = 2**16
# not of weights, or not unpacked by `gguf`
_OTHER_KINDS = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K", "Q1_0")
BLOCKS = {kind.name: size for kind, size in GGML_QUANT_SIZES.items() if kind.name not in _OTHER_KINDS}
"""Weights and bytes per block of the kinds of tensors that can be converted."""
_KINDS = {kind.value: kind.name for kind in GGMLQuantizationType}


class Tensor(NamedTuple):
    """`type` as llama.cpp names it; `shape` starts with a row's length; `offset` is in the data."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        weights, size = BLOCKS[self.type]
        return prod(self.shape) // weights * size


class Array(NamedTuple):
    """An array of the metadata. Its values, of type `kind`, start at `offset` and are not read."""

    length: int
    kind: int
    offset: int


class Header(NamedTuple):
    """A file's header; `data` is the offset of the tensors' data from the file's start."""

    file: str
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data: int

    @property
    def family(self) -> str:
        return self.text("general.architecture") or "unknown"

    @property
    def alignment(self) -> int:
        is_valid = lambda value: type(value) is int and 0 < value <= _MAX_ALIGNMENT and not value & (value - 1)  # noqa: E731
        return self._checked("general.alignment", is_valid, f"a power of two up to {_MAX_ALIGNMENT}") or _ALIGNMENT

    def integer(self, key: str, maximum: int = 2**31 - 1) -> int | None:
        """Return a whole number of the metadata, from 0 to `maximum`; None if absent, as with the other kinds."""
        is_valid = lambda value: type(value) is int and 0 <= value <= maximum  # noqa: E731
        return cast(int | None, self._checked(key, is_valid, f"a whole number up to {maximum}"))

    def number(self, key: str) -> float | None:
        is_valid = lambda value: type(value) in (int, float) and math.isfinite(value)  # noqa: E731
        return cast(float | None, self._checked(key, is_valid, "a number"))

    def text(self, key: str) -> str | None:
        return cast(str | None, self._checked(key, lambda value: isinstance(value, str), "a text"))

    def _checked(self, key: str, is_valid: Callable[[Any], bool], expected: str) -> Any:
        value = self.metadata.get(key)
        if value is not None and not is_valid(value):
            actual = "an array" if isinstance(value, Array) else quoted(value)
            raise GGUFError(f"{self.file!r} is damaged: {key} is {actual}, not {expected}; choose another file.")
        return value

    def length(self, key: str) -> int:
        value = self.metadata.get(key)
        return value.length if isinstance(value, Array) else 0


def read_header(path: Path) -> Header:
    name = path.name
    try:
        regular = stat.S_ISREG(path.stat().st_mode)  # a pipe would wait for its other end
        with path.open("rb") if regular else BytesIO() as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise GGUFError(f"{name!r} is not a GGUF file; give one, or an OpenVINO folder.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Parser(content, name).header()
    except (struct.error, IndexError, OverflowError) as error:  # an offset beyond the end, however far
        raise incomplete(name) from error
    except OSError as error:
        raise GGUFError(f"The file {name!r} cannot be read ({error.strerror}); check the path.") from error


def read_array(path: Path, array: Any) -> list[Any]:
    """Return the strings (as bytes) or numbers of a metadata array; empty if there is no array."""
    if not isinstance(array, Array):
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if array.kind != _STRING:
            return list(struct.unpack_from(f"<{array.length}{_FORMS[array.kind]}", content, array.offset))
        values, offset = [], array.offset
        for _ in range(array.length):
            begin = offset + 8
            offset = begin + _U64.unpack_from(content, offset)[0]
            values.append(content[begin:offset])
        return values


class _Parser:
    """Reads consecutive values; `struct` raises if the file ends first."""

    def __init__(self, content: mmap.mmap, name: str) -> None:
        self._content = content
        self._name = name
        self._offset = len(_MAGIC)
        self._text = self._strings = 0

    def header(self) -> Header:
        version = self._number(_U32)
        if version not in _VERSIONS:
            raise GGUFError(
                f"{self._name!r} has version {version} of GGUF, which is not supported; choose a newer file."
            )
        tensors, entries = self._number(_U64), self._number(_U64)
        self._check_count("entries of metadata", entries, _MAX_ENTRIES, _ENTRY_BYTES)
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._string()
            if key in metadata:
                raise self._damaged(f"it holds {quoted(key)} twice")
            metadata[key] = self._value(self._number(_U32))
        self._check_count("tensors", tensors, _MAX_TENSORS, _TENSOR_BYTES)
        header = Header(self._name, metadata, tuple(self._tensor() for _ in range(tensors)), 0)
        return header._replace(data=-(-self._offset // header.alignment) * header.alignment)

    def _number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._content, self._offset)
        self._offset += form.size
        return value

    def _string(self) -> str:
        length = self._number(_U64)
        begin, self._offset = self._offset, self._offset + length
        if self._offset > len(self._content):
            raise IndexError
        self._text += length
        if self._text > _MAX_TEXT:
            raise self._damaged(f"its header holds more than {_MAX_TEXT >> 20} MB of text")
        return self._content[begin : self._offset].decode(errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            kind, count = self._number(_U32), self._number(_U64)
            offset = self._offset
            if kind == _STRING:
                self._skip_strings(count)
            else:
                size = count * self._scalar(kind).size
                if size > len(self._content) - self._offset:
                    raise IndexError
                self._offset += size
            return Array(count, kind, offset)
        return self._number(self._scalar(kind))

    def _scalar(self, kind: int) -> struct.Struct:
        if kind not in _SCALARS:
            raise GGUFError(f"{self._name!r} holds metadata of an unknown kind ({kind}); choose another file.")
        return _SCALARS[kind]

    def _skip_strings(self, count: int) -> None:
        self._strings += count
        self._check_count("strings in arrays", self._strings, _MAX_STRINGS, 0)
        content, offset, length_at = self._content, self._offset, _U64.unpack_from
        for _ in range(count):  # vocabularies run this some 100,000 times
            offset += 8 + length_at(content, offset)[0]
        self._offset = offset

    def _tensor(self) -> Tensor:
        name, dimensions = self._string(), self._number(_U32)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"the tensor {quoted(name)} has {dimensions} dimensions")
        shape = tuple(self._number(_U64) for _ in range(dimensions))
        if not 0 < prod(shape) <= _MAX_WEIGHTS:
            raise self._damaged(f"the tensor {quoted(name)} has {prod(shape)} weights")
        number = self._number(_U32)
        kind = _KINDS.get(number, f"type {number}")
        if kind in BLOCKS and shape[0] % BLOCKS[kind][0]:
            raise self._damaged(f"rows of the tensor {quoted(name)} are not a whole number of {kind} blocks")
        return Tensor(name, kind, shape, self._number(_U64))

    def _check_count(self, noun: str, count: int, maximum: int, least_bytes: int) -> None:
        if count > maximum:
            raise self._damaged(f"it claims {count} {noun}")
        if count * least_bytes > len(self._content) - self._offset:
            raise IndexError

    def _damaged(self, how: str) -> GGUFError:
        return GGUFError(f"{self._name!r} is damaged: {how}; download it again, or choose another file.")


def incomplete(name: str, how: str = "") -> GGUFError:
    return GGUFError(f"{name!r}{how} is incomplete; download or copy it again.")
