"""Conversion of GGUF files to OpenVINO IR: once per file, by openvino-genai's own reader, into our cache.

The reader writes beside the file it reads, so it gets a link to the file in a hidden folder of the cache, which moves
to its place once everything is written. To choose the form of the weights, the file is stored in both forms, these
are measured, and the slower one is deleted. All of it runs in a separate process: reading can be interrupted, may
need more memory than there is, and prints text that would corrupt JSON output.

The reader accepts no F32 or BF16 matrices, so these are converted to F16 first. It writes no configuration, so that
is derived from the file's metadata. Three things are fixed in the network that it writes:

- In Q4_1 and Q4_K a group of 32 weights is stored as `scale * q + minimum`, with a 4-bit q. openvino-genai 2026.4
  converts it to `scale * (q - zero)`, with `zero` rounded to an integer. That is a different model:
  SmolLM2-135M-Instruct in Q4_1 then chose the same token as with its own weights at 66 % of 3,000 positions, and its
  perplexity was 81 instead of 63. With `zero` in half precision it chose the same at 99.6 %, for 5 % more bytes.
- The ends of layers get the names by which GenAI finds an EAGLE-3 head's layers, which the reader, part of GenAI too,
  does not set.
- Products that read the same input are joined.
"""

import json
import os
import re
import shutil
import struct
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from math import prod
from pathlib import Path
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar

import numpy as np
import openvino
import openvino_genai
from openvino import opset13 as opset

from specdemo.child import follow
from specdemo.errors import ConversionError, DiskError
from specdemo.models.converted import (
    VERSION,
    WeightsChoice,
    awaits_conversion,
    choice_of,
    conversions,
    converted_folder,
    file_digest,
    form_of,
    is_converted,
    measure_forms,
    place_of,
    remember_choice,
)
from specdemo.models.devices import draft_device, int8_runtime, properties
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import Header, Tensor, check_readable, inspect_gguf, read_header, type_number, vocabulary_of
from specdemo.models.graph import join_products, store_as_int8
from specdemo.models.machine import in_units, memory_free
from specdemo.models.places import link_or_copy, writable
from specdemo.records import Model, ModelPair
from specdemo.settings import WeightsForm

_GROWTH = 1.5  # bytes of IR per byte of GGUF, at most: 6 bits are stored as 8, with scales
_INT8_GROWTH = 2.0  # 4 bits are stored as 8
_MEMORY = 6  # bytes of memory per byte of GGUF, to load both forms
_STALE_SECONDS = 24 * 3600


class Forms(NamedTuple):
    """The wanted form of a file: a given one, or (None) whichever is faster on this device, with its properties."""

    form: WeightsForm | None
    device: str = "CPU"
    properties: tuple[tuple[str, str], ...] = ()
    int8_properties: tuple[tuple[str, str], ...] = ()


EXACT = Forms("exact")


def convert_pair(pair: ModelPair) -> Iterator[tuple[Model, float]]:
    """Convert a pair's GGUF files that are not ready to load; yields the current model and its seconds.

    If the form of its weights is not chosen yet, it is measured on the device where the model will be loaded. Stops
    when the caller goes away.

    Raises:
        SpecdemoError: as for `convert_gguf`.
    """
    runtime = pair.runtime.model_copy(update={"model_cache": False})
    for model, device, other in (
        (pair.target, runtime.device, int8_runtime(runtime)), (pair.draft, draft_device(runtime), runtime)
    ):  # fmt: skip
        if model is not None and model.path is not None and awaits_conversion(model):
            form = None if model.form == "auto" and choice_of(model) is None else form_of(model)
            options = [tuple(properties(each, device).items()) for each in (runtime, other)]
            for seconds in convert_gguf(model.path, Forms(form, device, *options)):
                yield model, seconds


def convert_models(models: Iterable[Model | None]) -> Iterator[tuple[Model, float]]:
    """Convert models whose tokenizer or exact network is needed, without measuring; yields as `convert_pair`."""
    for model in models:
        if model is not None and model.path is not None and not is_converted(model):
            for seconds in convert_gguf(model.path):
                yield model, seconds


def convert_gguf(path: Path, forms: Forms = EXACT) -> Iterator[float]:
    """Convert a file that is not converted yet; yields the elapsed seconds, five times a second.

    When the caller goes away, the conversion ends and leaves nothing behind.

    Raises:
        GGUFError: the file cannot be read.
        DiskError: the disk is too small.
        ConversionError: openvino-genai refused it, or ran out of memory.
    """
    if forms.form is not None and converted_folder(path, forms.form) is not None:
        return
    _check_disk(inspect_gguf(path), _GROWTH + (_INT8_GROWTH if forms != EXACT else 0))
    writable(conversions(), "Conversions")
    for left in conversions().glob(".converting-*"):  # left by a process that was killed
        if time() - left.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    began = monotonic()
    died = ConversionError(
        f"The conversion of {path.name!r} ended unexpectedly, perhaps for lack of memory; free some and try again."
    )
    with (
        tempfile.TemporaryDirectory(prefix=".converting-", dir=conversions()) as scratch,
        closing(
            follow(_convert, path.resolve(), Path(scratch), forms, name="specdemo conversion", died=died)
        ) as silences,
    ):
        for _ in silences:
            yield monotonic() - began


def _check_disk(model: Model, growth: float) -> None:
    place = next(folder for folder in (conversions(), *conversions().parents) if folder.is_dir())
    needed, free = int((model.weight_bytes or 0) * growth), shutil.disk_usage(place).free
    if needed > free:
        raise DiskError(
            f"The conversion of {model.name!r} may need {in_units(needed)}, but {place} has only {in_units(free)} "
            "free; free some space, or set XDG_CACHE_HOME to a larger disk."
        )


def _convert(path: Path, scratch: Path, forms: Forms) -> Iterator[None]:
    """Run the conversion in the child process."""
    os.dup2(2, 1)  # keep the reader's prints out of our output
    yield from convert_here(path, scratch, forms)


def convert_here(path: Path, scratch: Path, forms: Forms = EXACT) -> Iterator[None]:
    """Convert in this process, in a scratch folder on the cache's disk, and move the results to their places.

    Yields None once started. The reader prints to standard output.

    Raises:
        GGUFError: the file cannot be read.
        ConversionError: openvino-genai refused it.
    """
    digest = file_digest(path)
    exact, int8 = place_of(digest, "exact"), place_of(digest, "int8")
    if not exact.is_dir():  # else the same content under another name
        yield None
        _store_exact(path, scratch / "exact", exact)
        for version in range(1, VERSION):
            shutil.rmtree(exact.with_name(f"{digest}-{version}"), ignore_errors=True)
    if forms.form == "exact" or (forms.form == "int8" and int8.is_dir()):
        return
    yield None
    changed = int8.is_dir() or _store_int8(exact, scratch / "int8", int8)
    if forms.form is None:
        choice = WeightsChoice(form="exact")
        if changed and memory_free() > _MEMORY * path.stat().st_size:
            choice = measure_forms(exact, int8, forms.device, dict(forms.properties), dict(forms.int8_properties))
        remember_choice(digest, choice)
        if choice.form == "exact":
            shutil.rmtree(int8, ignore_errors=True)


def _store_exact(path: Path, work: Path, folder: Path) -> None:
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
    repair(work, path, header)
    link.unlink()
    for name, content in (("config", configuration(header)), ("generation_config", ends(header))):
        (work / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    _finish(work, folder)


def _store_int8(exact: Path, work: Path, folder: Path) -> bool:
    """Store a conversion's weights as int8 beside it; return False if all had eight bits already."""
    shutil.copytree(exact, work)
    changed = rewrite(work, store_as_int8)
    _finish(work, folder)
    return changed > 0


def _finish(work: Path, folder: Path) -> None:
    inspect_folder(work)
    with suppress(OSError):  # another process was faster
        work.rename(folder)


Changed = TypeVar("Changed")
Halves = np.ndarray[Any, np.dtype[np.float16]]
_GROUP = 32
_ROUNDED = ("Q4_1", "Q4_K")
_END = re.compile(r"model\.layers\.self_attn\.add1\.layer(\d+)")
_WIDE = ("F32", "BF16")
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_STEP = 2**24  # bytes converted at once


def repair(folder: Path, file: Path, header: Header) -> None:
    """Fix a converted model in place, and join its products."""

    def put_right(model: openvino.Model) -> None:
        _name_layers(model)
        _restore_minima(model, file, header)
        join_products(model)

    rewrite(folder, put_right)


def rewrite(folder: Path, change: Callable[[openvino.Model], Changed]) -> Changed:
    """Change a folder's network and store it; return the result of `change`."""
    model = openvino.Core().read_model(folder / "openvino_model.xml")
    result = change(model)
    changed = folder / "changed"
    openvino.save_model(model, changed / "openvino_model.xml", compress_to_fp16=False)
    del model  # which keeps the file open
    for written in changed.iterdir():
        written.replace(folder / written.name)
    changed.rmdir()
    return result


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
