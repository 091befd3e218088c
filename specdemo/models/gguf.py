"""GGUF files, the format of llama.cpp: what one holds, from its header alone, without reading any weights.

A file begins with metadata (keys and values) and a table of tensors; their data follow. The `gguf` package reads this
too, but makes an object of every token: 4 s for a vocabulary of 49,000, where listing models should take a
fraction of one. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from specdemo.errors import GGUFError, quoted
from specdemo.models.folder import inspect_folder
from specdemo.records import Model

FAMILIES = ("llama", "qwen2", "qwen3")
"""The architectures that the reader of openvino-genai 2026.4 supports."""

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_BLOCKS = {  # weights per block, and bytes per block
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q6_K": (256, 210),
}
"""The types of tensors that can be converted."""
_NAMES = (
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S "
    "IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16"
)
_TYPES = dict(enumerate(_NAMES.split(" "))) | {34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"}
"""Types of tensors, by their number in files."""


def type_number(name: str) -> int:
    """The number of a tensor type in files."""
    return next(number for number, known in _TYPES.items() if known == name)


class Tensor(NamedTuple):
    """A tensor: `type` as llama.cpp names it; `shape` starts with a row's length; `offset` is in the data."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """Its size in the file; only for types that the reader supports."""
        weights, size = _BLOCKS[self.type]
        return -(-prod(self.shape) // weights) * size


class Header(NamedTuple):
    """A file's header. For an array in the metadata, only its length is kept, as an int.

    `table` and `data` are the offsets of the table of tensors and of their data, in bytes from the file's start.
    """

    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    table: int
    data: int

    @property
    def alignment(self) -> int:
        """The alignment of offsets, in bytes."""
        return int(self.metadata.get("general.alignment", 0)) or _ALIGNMENT


def is_gguf(path: Path) -> bool:
    """Whether a file starts like a GGUF file; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_header(path: Path) -> Header:
    """Read a file's metadata and table of tensors.

    Raises:
        GGUFError: it cannot be read, is not a GGUF file, or ends before its header does.
    """
    if not is_gguf(path):
        raise GGUFError(f"{path.name!r} is not a readable GGUF file; choose another file.")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            return _Parser(content).header(path.name)
        except (struct.error, IndexError) as error:
            raise _cut(path.name) from error


class _Parser:
    """Reads one value after another; `struct` raises where the file ends first."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._place = len(_MAGIC)

    def header(self, name: str) -> Header:
        version = self._number(_U32)
        if version not in _VERSIONS:
            raise GGUFError(f"{name!r} is in version {version} of GGUF, which is not supported; choose a newer file.")
        tensors, entries = self._number(_U64), self._number(_U64)
        metadata = {}
        for _ in range(entries):
            key = self._string()
            metadata[key] = self._value(self._number(_U32), name)
        begin = self._place
        found = Header(metadata, tuple(self._tensor() for _ in range(tensors)), begin, 0)
        return found._replace(data=-(-self._place // found.alignment) * found.alignment)

    def _number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._content, self._place)
        self._place += form.size
        return value

    def _string(self) -> str:
        length = self._number(_U64)
        begin, self._place = self._place, self._place + length
        if self._place > len(self._content):
            raise IndexError
        return self._content[begin : self._place].decode(errors="replace")

    def _value(self, kind: int, name: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            kind, count = self._number(_U32), self._number(_U64)
            if kind == _STRING:
                self._skip_strings(count)
            elif kind in _SCALARS:
                self._place += count * struct.calcsize(_SCALARS[kind])
            else:
                raise GGUFError(f"{name!r} holds metadata of an unknown kind ({kind}); choose another file.")
            return count
        if kind not in _SCALARS:
            raise GGUFError(f"{name!r} holds metadata of an unknown kind ({kind}); choose another file.")
        return self._number(struct.Struct(_SCALARS[kind]))

    def _skip_strings(self, count: int) -> None:
        content, place, length_at = self._content, self._place, _U64.unpack_from
        for _ in range(count):  # vocabularies call this some 100,000 times
            place += 8 + length_at(content, place)[0]
        self._place = place

    def _tensor(self) -> Tensor:
        name, dimensions = self._string(), self._number(_U32)
        shape = tuple(self._number(_U64) for _ in range(dimensions))
        kind = self._number(_U32)
        return Tensor(name, _TYPES.get(kind, f"type {kind}"), shape, self._number(_U64))


def inspect_gguf(path: Path) -> Model:
    """Describe the model in a GGUF file, from its own metadata.

    Raises:
        GGUFError: it is not a GGUF file, is incomplete, or is of a kind that openvino-genai's reader does not
        support.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise GGUFError(f"The file {quoted(str(path))} cannot be read ({error.strerror}); check the path.") from error
    return _inspected(path, state.st_size, state.st_mtime_ns)


def inspect_model(path: Path) -> Model:
    """Describe the model in a folder of OpenVINO IR, or in a GGUF file.

    Raises:
        ModelError: it cannot be used.
    """
    return inspect_gguf(path) if path.is_file() else inspect_folder(path, draft=True)


@lru_cache(maxsize=512)
def _inspected(path: Path, size: int, modified: int) -> Model:
    """The model, re-read only when its file has changed."""
    header = read_header(path)
    check_readable(path.name, header)
    needed = max((header.data + tensor.offset + tensor.bytes for tensor in header.tensors), default=0)
    if size < needed:
        raise _cut(path.name, f" has {size} of {needed} bytes and")
    metadata = header.metadata
    family = metadata["general.architecture"]
    sizes: Counter[str] = Counter()
    for tensor in header.tensors:
        if len(tensor.shape) > 1:  # matrices only, as for a folder
            sizes[tensor.type] += prod(tensor.shape)
    return Model(
        name=path.name,
        path=path,
        architecture=family,
        parameters=sum(sizes.values()),
        weights=sizes.most_common(1)[0][0],
        context_length=metadata.get(f"{family}.context_length"),
        weight_bytes=sum(tensor.bytes for tensor in header.tensors),
        vocabulary=vocabulary_of(header),
        chat_template="tokenizer.chat_template" in metadata,
    )


def vocabulary_of(header: Header) -> int | None:
    """Number of tokens, by the shape of the embeddings."""
    return next((tensor.shape[-1] for tensor in header.tensors if tensor.name == "token_embd.weight"), None)


def check_readable(name: str, header: Header) -> None:
    """Check that openvino-genai's reader supports such a model.

    Raises:
        GGUFError: it does not; the message names what is unsupported.
    """
    family = header.metadata.get("general.architecture", "unknown")
    if family not in FAMILIES:
        raise GGUFError(
            f"{name!r} has the {family} architecture, which OpenVINO GenAI does not read from GGUF; "
            f"choose one of {_listed(FAMILIES)}, or convert the original with: models convert."
        )
    if header.metadata.get("split.count", 1) > 1:
        raise GGUFError(f"{name!r} is one of several parts; join them with llama-gguf-split --merge.")
    types = Counter(tensor.type for tensor in header.tensors)
    refused = [kind for kind, _ in types.most_common() if kind not in _BLOCKS]
    if refused:
        raise GGUFError(
            f"{name!r} holds {_listed(refused)} tensors, which OpenVINO GenAI does not read; "
            f"choose a file quantized as one of {_listed(_BLOCKS)}, such as Q4_K_M."
        )
    if not any(len(tensor.shape) > 1 for tensor in header.tensors):
        raise GGUFError(f"{name!r} holds no weights; choose another file.")


def _cut(name: str, how: str = "") -> GGUFError:
    return GGUFError(f"{name!r}{how} is incomplete; download or copy it again.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
