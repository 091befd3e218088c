"""Inspection of folders of OpenVINO IR, without loading weights.

The XML locates each constant's bytes in the .bin file. From these follow the number of parameters, the stored
precision, and whether the copy is complete.
"""

import xml.etree.ElementTree as ElementTree
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic_core import from_json

from specdemo.errors import FolderError, ModelError, quoted
from specdemo.files import is_text
from specdemo.records import Model
from specdemo.strategies import HeadName

_MODEL = ("openvino_model.xml", "openvino_model.bin")
_DETOKENIZER = ("openvino_detokenizer.xml", "openvino_detokenizer.bin")
_TOKENIZER = ("openvino_tokenizer.xml", "openvino_tokenizer.bin", *_DETOKENIZER)
REQUIRED_FILES = (*_MODEL, *_TOKENIZER)
ROUGH_HEAD = "openvino_rough_head_model.xml"
_EXPORT = "export it with: optimum-cli export openvino --model MODEL --weight-format int8 FOLDER"
_NO_STATE = (
    "was exported without a state, so it has no KV cache; "
    "export it again with: optimum-cli export openvino --model MODEL --task text-generation-with-past FOLDER"
)
_CONVERT_TOKENIZER = "convert it with: convert_tokenizer MODEL --with-detokenizer --output FOLDER"
_ENCODER_DECODER = (
    "is an encoder–decoder, for which OpenVINO GenAI has no speculative decoding; choose a decoder-only model"
)
_LINEAR = (
    "has layers with linear attention, whose state cannot take back rejected tokens here; "
    "choose a model with a KV cache in every layer"
)
_OTHER_HEADS = {"dflash": "a DFlash draft", "mtp": "a multi-token-prediction head"}
_PRECISIONS = {"u8": "int8", "i8": "int8", "u4": "int4", "i4": "int4"}
_TRUE = {"yes", "true", "1"}
_MAX_BYTES_READ = 2**20  # a tokenizer_config.json with many added tokens takes some 300,000
NO_LIMIT = 2**30  # tokens of a text; GenAI adds to it those at the beginning, so 2**31 - 1 would overflow
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx")


def cached_until_changed(inspect: Callable[[Path], Model]) -> Callable[[Path], Model]:
    """Cache the model, or the error, until one of its files changes: reading a large XML takes a second."""

    @lru_cache(maxsize=1024)
    def result(path: Path, stamps: tuple[tuple[str, int, int], ...]) -> Model | ModelError:
        try:
            return inspect(path)
        except ModelError as error:
            return type(error)(str(error))

    def inspect_cached(path: Path) -> Model:
        if not is_text(str(path)):
            raise FolderError(f"The name of {quoted(str(path))} is not valid text; rename it.")
        try:
            files = sorted(file for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file())
            states = [(file.name, file.stat()) for file in files]
            for file in files if path.is_file() else path.glob("openvino_*"):
                if file.stat().st_size < 200 and file.read_bytes().startswith(b"version https://git-lfs"):
                    raise FolderError(f"{quoted(file.name)} is only a Git LFS pointer; fetch it with: git lfs pull.")
            model = result(path, tuple((name, state.st_mtime_ns, state.st_size) for name, state in states))
        except OSError as error:
            raise FolderError(f"{quoted(str(path))} cannot be read ({error.strerror}); check it.") from error
        if isinstance(model, ModelError):
            raise type(model)(str(model))
        return model

    return inspect_cached


def read_start(file: Path) -> bytes:
    """Return the first megabyte of a file, which may be untrusted."""
    with file.open("rb") as stream:
        return stream.read(_MAX_BYTES_READ)


@cached_until_changed
def inspect_folder(path: Path) -> Model:
    """Describe the model in a folder.

    Without `config.json` the context length is unknown, and the vocabulary is the number of logits.
    """
    if path.exists() and not path.is_dir():  # a file, or a pipe or socket named .gguf
        raise FolderError(f"{quoted(path.name)} is not a model; give a GGUF file or an OpenVINO folder.")
    if not path.is_dir():
        raise FolderError(f"There is no folder {quoted(str(path))}; check the path.")
    config = read_config(path)
    text_config = config.get("text_config") or config  # a multimodal model's nests that of its language model
    if not isinstance(text_config, dict):
        raise _no_configuration(path)
    if (path / "openvino_encoder_model.xml").is_file() or config.get("is_encoder_decoder"):
        raise FolderError(f"The model in {path.name!r} {_ENCODER_DECODER}.")
    if "linear_attention" in str(text_config.get("layer_types")):
        raise FolderError(f"The model in {path.name!r} {_LINEAR}.")
    check_one_network(path.name, [file.name for file in path.iterdir()])
    complete = all((path / name).is_file() for name in _MODEL)
    network = _read_network(path, "openvino_model") if complete else None
    head = _head(path.name, config, network.modes if network is not None else frozenset())
    missing = [name for name in (*_MODEL, *(() if head else _TOKENIZER)) if not (path / name).is_file()]
    if len(missing) == len(REQUIRED_FILES):
        inner = [file.parent.name for file in sorted(path.glob(f"*/{_MODEL[0]}"))]
        advice = f"choose {quoted(inner[0])} inside it" if inner else _EXPORT
        raise FolderError(f"The folder {path.name!r} contains no OpenVINO model; {advice}.")
    unconverted = {_TOKENIZER: "tokenizer", _DETOKENIZER: "detokenizer"}.get(tuple(missing))
    if unconverted is not None:
        raise FolderError(f"The folder {path.name!r} has no OpenVINO {unconverted}; {_CONVERT_TOKENIZER}.")
    if missing or network is None:
        raise FolderError(f"The folder {path.name!r} lacks {', '.join(missing)}; copy the whole folder again.")
    if not network.stateful:
        raise FolderError(f"The model in {path.name!r} {_NO_STATE}.")
    for other in () if head else ("openvino_tokenizer", "openvino_detokenizer"):
        _read_network(path, other)
    sizes = weights_by_type((kind, shape) for kind, shape, _ in network.constants)
    most = max(sizes, key=sizes.__getitem__, default="unknown")
    try:
        return Model(
            name=path.name,
            path=path,
            architecture=str(config.get("model_type", "unknown")),
            parameters=sum(sizes.values()),
            weights=_PRECISIONS.get(most, most),
            context_length=next((int(text_config[key]) for key in _CONTEXT_KEYS if text_config.get(key)), None),
            weight_bytes=(path / "openvino_model.bin").stat().st_size,
            vocabulary=text_config.get("draft_vocab_size", text_config.get("vocab_size", network.logits)),
            chat_template=not head and _has_chat_template(path),
            head=head,
        )
    except (ValueError, TypeError, AttributeError, OverflowError) as error:  # a number or an object is malformed
        raise _no_configuration(path) from error


class _Network(NamedTuple):
    """Type, shape and end offset of each constant, number of logits, head modes, and whether it keeps a state."""

    constants: list[tuple[str, tuple[int, ...], int]]
    logits: int | None
    modes: frozenset[str]
    stateful: bool


def _read_network(path: Path, stem: str) -> _Network:
    constants, logits, modes, stateful = [], None, set[str](), False
    try:
        for _, layer in ElementTree.iterparse(path / f"{stem}.xml"):
            if layer.tag == "port" and "logits" in layer.get("names", "").split(","):
                logits = int(layer[-1].text or 0) if len(layer) else None
            if layer.tag.endswith("_mode") and layer.get("value", "").lower() in _TRUE:
                modes.add(layer.tag.removesuffix("_mode"))
            stateful = stateful or layer.get("type") == "ReadValue"
            if layer.tag == "layer" and layer.get("type") == "Const":
                data = layer.find("data")
                if data is not None:
                    shape = tuple(int(size) for size in (data.get("shape") or "").split(",") if size.strip())
                    end = int(data.get("offset", 0)) + int(data.get("size", 0))
                    constants.append((data.get("element_type", "unknown"), shape, end))
    except (ElementTree.ParseError, ValueError) as error:
        raise FolderError(f"{stem}.xml in {path.name!r} is damaged; copy the folder again.") from error
    needed, present = max((end for *_, end in constants), default=0), (path / f"{stem}.bin").stat().st_size
    if present < needed:
        raise FolderError(
            f"{stem}.bin in {path.name!r} has {present} of {needed} bytes; the copy is incomplete, copy it again."
        )
    return _Network(constants, logits if logits is not None and logits > 0 else None, frozenset(modes), stateful)


def weights_by_type(tensors: Iterable[tuple[str, Sequence[int]]]) -> Counter[str]:
    """Count weights by element type, in matrices only: biases, scales and masks do not name a precision."""
    sizes: Counter[str] = Counter()
    for kind, shape in tensors:
        if len(shape) > 1:
            sizes[kind] += prod(shape)
    return sizes


def _has_chat_template(path: Path) -> bool:
    if any((path / f"chat_template.{ending}").is_file() for ending in ("jinja", "json")):
        return True
    settings = path / "tokenizer_config.json"
    if settings.is_file() and b'"chat_template"' in read_start(settings):
        return True
    return b"<chat_template value=" in read_start(path / "openvino_tokenizer.xml")


def check_one_network(name: str, files: Collection[str]) -> None:
    """Check that a folder or repository with these files has one network for the language model, or none."""
    if "openvino_language_model.xml" in files and _MODEL[0] not in files:
        raise FolderError(
            f"The model in {name!r} is exported in parts, as multimodal models are, which do not run here; "
            "export its language model alone, with --task text-generation-with-past."
        )


def _head(name: str, config: dict[str, Any], modes: frozenset[str]) -> HeadName | None:
    """Return the kind of head, from its network's runtime information or its configuration; None if not a head."""
    names = str(config.get("architectures")).lower()
    for head, noun in _OTHER_HEADS.items():
        if head in modes or head in names or f"{head}_config" in config:
            raise FolderError(
                f"{name!r} is {noun}, which does not run here; "
                "choose an EAGLE-3 head, or a small model of the target's family."
            )
    return next((head for head in get_args(HeadName) if head in modes or head in names), None)


def read_config(path: Path) -> dict[str, Any]:
    """Return a folder's `config.json`, empty if there is none. Python writes infinite numbers as Infinity."""
    if not (path / "config.json").is_file():
        return {}
    try:
        config = from_json(read_start(path / "config.json").removeprefix(BOM_UTF8))
    except ValueError as error:
        raise FolderError(f"config.json in {path.name!r} is damaged; copy the folder again.") from error
    if not isinstance(config, dict):
        raise _no_configuration(path)
    return config


def _no_configuration(path: Path) -> FolderError:
    return FolderError(f"config.json in {path.name!r} is not a model's configuration; copy the folder again.")
