"""The folder of OpenVINO IR for a model: its own, or the conversion of its GGUF file in our cache.

It is named by the file's SHA-256 digest, our conversion's version and the form of weights (docs/models.md).
Conversion runs in its own process, since it may run out of memory.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from time import time
from typing import NamedTuple

from specdemo.child import Failure, run_child
from specdemo.errors import FetchError, LoadError, SpecdemoError
from specdemo.files import cache_folder, json_text, json_value, nearest_folder, writable_folder, write_bytes
from specdemo.models.devices import in_units, multiplies_int8
from specdemo.models.gguf import EIGHT_BITS, FOUR_BITS, inspect_gguf
from specdemo.records import Model, ModelPair
from specdemo.settings import RuntimeSettings, WeightsForm

VERSION = 8  # increased when the conversion changes, to redo older ones
# Bytes per weight, of matrices: in 8 and 4 bits with scales, and in half precision. Exact 4-bit weights and int4 keep
# theirs, but for scales of their own and an embedding in more bits: measured 1.18 to 1.24 of a GGUF file in Q4_K_M.
_INT8_BYTES, _FAST_BYTES, _F16_BYTES, _FILE_FACTOR = 1.06, 0.54, 2.0, 1.25
# Weights of a model from which 4 bits are faster than 8. EPYC with VNNI, ms a plain step in int4 and int8: 7.4 and
# 6.5 for 135 million, 16.8 and 16.4 for 0.5 billion, 35 and 39 for 1.5 billion.
_INT4_THRESHOLD = 750_000_000
# Weights of a draft from which 4 bits in groups of 64 pay: 0.5 billion keep 82 % of their own tokens, and the target
# accepts 2 to 4 of 100 fewer; 135 million keep 57 %.
_FAST_DRAFT_THRESHOLD = 400_000_000
_LABELS = {
    "exact": "exact weights",
    "int4": "exact 4-bit weights and the rest in int8, which changes about 2 tokens in 100",
    "int8": "int8 in groups of 64, which changes about 2 tokens in 100",
    "fast": "4 bits in groups of 64, which changes about 1 token in 7, of small models more",
}
_SIZES = "sizes.json"  # bytes of each of a conversion's files
_TICK_SECONDS = 0.2
_MAX_SECONDS = 24 * 3600  # no conversion takes as long


def folder_of(model: Model) -> Path:
    if model.path is None:
        raise LoadError(f"The folder of {model.name!r} on this machine is unknown; choose it.")
    folder = converted_folder(model.path, form_of(model)) if model.path.is_file() else model.path
    if folder is None:
        raise LoadError(f"The GGUF file {model.name!r} is not converted yet; choose it as a target or draft again.")
    return folder


def _gguf_file(model: Model) -> Path | None:
    return model.path if model.path is not None and model.path.is_file() else None


def form_of(model: Model) -> WeightsForm:
    """Return the form of a GGUF model's weights: as set, else the fastest that chooses nearly the same tokens."""
    if model.form != "auto":
        return model.form
    if not multiplies_int8():
        return "exact"
    return "int4" if (model.parameters or 0) >= _INT4_THRESHOLD else "int8"


def as_draft(model: Model) -> Model:
    """Return the model in a draft's form: large ones in 4 bits, whose steps take a third less time."""
    fast = _gguf_file(model) and model.form == "auto" and (model.parameters or 0) >= _FAST_DRAFT_THRESHOLD
    return model.model_copy(update={"form": "fast"}) if fast else model


def has_integer_weights(model: Model) -> bool:
    """Whether OpenVINO multiplies the weights as integers, with quantized activations."""
    return (_gguf_file(model) is not None and form_of(model) != "exact") or model.weights in ("int8", "Q8_0")


def traced_runtime(pair: ModelPair) -> RuntimeSettings:
    """Return the settings with which the traced engine loads the target.

    Automatic quantization is on where it is faster, unless a trial at loading shows that passes do not repeat bits.
    """
    runtime = pair.runtime
    if runtime.dynamic_quantization != "auto" or not runtime.device.startswith("CPU") or not multiplies_int8():
        return runtime
    return runtime.model_copy(update={"dynamic_quantization": "on"}) if has_integer_weights(pair.target) else runtime


def stored_form(model: Model) -> str | None:
    if _gguf_file(model) is None:
        return None
    if model.form != "auto":
        return _LABELS[model.form]
    multiplies = "multiplies" if multiplies_int8() else "does not multiply"
    return f"{_LABELS[form_of(model)]} (this processor {multiplies} int8)"


def is_converted(model: Model) -> bool:
    file = _gguf_file(model)
    return file is None or converted_folder(file, form_of(model)) is not None


def converted_folder(path: Path, form: WeightsForm) -> Path | None:
    """Return the folder of a file's conversion, if any, by its stored digest, so that no file is hashed."""
    digest = _recorded_digest(path)
    return folder if digest is not None and _is_whole(folder := _conversion_folder(digest, form)) else None


def _conversion_folder(digest: str, form: WeightsForm) -> Path:
    return conversions() / f"{digest}-{VERSION}-{form}"


def _is_whole(folder: Path) -> bool:
    """Whether all files of a conversion have the sizes that they were written with; else it is made again."""
    with suppress(OSError, ValueError, TypeError):
        sizes = json_value((folder / _SIZES).read_bytes())
        return bool({name: (folder / name).stat().st_size for name in sizes} == sizes)
    return False


def conversions() -> Path:
    return cache_folder() / "gguf"


def file_digest(path: Path) -> str:
    """Return the SHA-256 digest of a file's content, recomputed only if its size or time has changed."""
    stored = _recorded_digest(path)
    if stored is not None:
        return stored
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError, SpecdemoError):  # without a cache it is computed again
        record = _digest_file(path)
        write_bytes(digest.encode(), writable_folder(record.parent, "Digests of models") / record.name)
    return digest


def _recorded_digest(path: Path) -> str | None:
    with suppress(OSError, UnicodeDecodeError):
        digest = _digest_file(path).read_text(encoding="ascii")
        return digest if len(digest) == hashlib.sha256().digest_size * 2 else None
    return None


def _digest_file(path: Path) -> Path:
    state = path.stat()
    key = f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
    return conversions() / "digests" / hashlib.sha256(os.fsencode(key)).hexdigest()


def convert_pair(pair: ModelPair) -> Iterator[tuple[Model, float]]:
    return convert_models([pair.target, pair.draft])


def convert_models(models: Iterable[Model | None]) -> Iterator[tuple[Model, float]]:
    """Convert GGUF files that are not converted yet; yield the current model and the share that is done."""
    for model in models:
        if model is not None and model.path is not None and not is_converted(model):
            for share in convert_gguf(model.path, form_of(model)):
                yield model, share


def convert_gguf(path: Path, form: WeightsForm) -> Iterator[float]:
    """Convert a file; yield the share that is done, five times a second. Closing the generator cleans up."""
    if converted_folder(path, form) is not None:
        return
    _check_disk(inspect_gguf(path))
    writable_folder(conversions(), "Conversions")
    for abandoned in conversions().glob(".converting-*"):  # left by a process that was killed
        if time() - abandoned.stat().st_mtime > _MAX_SECONDS:
            shutil.rmtree(abandoned, ignore_errors=True)
    share = 0.0
    failure = Failure(FetchError, f"{path.name!r} cannot be converted", "free memory and try again")
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=conversions()) as scratch:
        work = run_child(_convert, path.resolve(), Path(scratch), form, name="specdemo conversion", failure=failure)
        with closing(work):
            for message in work:
                share = message or share
                yield share


def stored_bytes(model: Model) -> int:
    """Return the bytes of a model's weights as they are loaded; of a file that is not converted yet, an estimate."""
    if (file := _gguf_file(model)) is None:
        return model.weight_bytes or 0
    form = form_of(model)
    if (folder := converted_folder(file, form)) is not None:
        return (folder / "openvino_model.bin").stat().st_size
    if form == "fast":
        return int(_FAST_BYTES * model.parameters)
    if form == "int8" or (form == "int4" and model.weights not in FOUR_BITS):
        return int(_INT8_BYTES * model.parameters)
    kept = model.weights in (*FOUR_BITS, *EIGHT_BITS)
    return int(_FILE_FACTOR * (model.weight_bytes or 0) if kept else _F16_BYTES * model.parameters)


def _check_disk(model: Model) -> None:
    folder = nearest_folder(conversions())
    needed, free = stored_bytes(model), shutil.disk_usage(folder).free
    if needed > free:
        raise FetchError(
            f"The conversion of {model.name!r} may need {in_units(needed)}, but {folder} has only {in_units(free)} "
            "free; free some space, or set XDG_CACHE_HOME to a larger disk."
        )


def _convert(path: Path, scratch: Path, form: WeightsForm) -> Iterator[float]:
    shares = [0.0]
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(convert_here, path, scratch, form, shares.append)
        while not job.done():
            wait([job], _TICK_SECONDS)
            yield shares[-1]
    job.result()


def convert_here(
    path: Path, scratch: Path, form: WeightsForm, report: Callable[[float], None] = lambda _: None
) -> None:
    """Convert in this process, in a scratch folder on the cache's disk."""
    from specdemo.models import gguf_convert

    digest = file_digest(path)
    folder = _conversion_folder(digest, form)
    if _is_whole(folder):  # the same content under another name
        return
    work = scratch / "work"
    try:
        gguf_convert.store(path, work, form, report)
        write_bytes(json_text({file.name: file.stat().st_size for file in work.iterdir()}).encode(), work / _SIZES)
    except Exception as error:
        shutil.rmtree(work, ignore_errors=True)
        try:
            _check_disk(inspect_gguf(path))
        except FetchError as full:  # OpenVINO's writer only says "iostream error"
            raise FetchError(f"The disk is full. {full}").because(error) from error
        raise
    if not _is_whole(folder):
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # another process was faster
        work.rename(folder)
    for other in conversions().glob(f"{digest}-*"):
        if not other.name.startswith(f"{digest}-{VERSION}"):
            shutil.rmtree(other, ignore_errors=True)


class StoredConversion(NamedTuple):
    """A conversion on disk, named by its file and form, and its bytes."""

    name: str
    bytes: int
    folder: Path


def stored_conversions() -> list[StoredConversion]:
    """Return all conversions in our cache, the largest first."""
    found = []
    for folder in conversions().glob("[!.]*-*"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            size = sum(file.stat().st_size for file in folder.iterdir())
            source = json_value((folder / "config.json").read_bytes())["_name_or_path"]
            found.append(StoredConversion(f"{source} ({folder.name.rpartition('-')[2]})", size, folder))
    return sorted(found, key=lambda stored: -stored.bytes)


def remove_stored(name: str) -> int:
    """Remove the conversions of this name; return their bytes. They are made again for the next use."""
    chosen = [stored for stored in stored_conversions() if stored.name == name]
    for stored in chosen:
        shutil.rmtree(stored.folder)
    return sum(stored.bytes for stored in chosen)
