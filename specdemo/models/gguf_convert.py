"""GGUF files to OpenVINO IR: each is converted once, by openvino-genai's own reader, into our cache.

The reader writes beside the file it reads, so it gets a link to the file, in a hidden folder of the cache. Once
everything is written, that folder is renamed to the file's SHA-256 digest and the version of our conversion. It runs
in a separate process: reading can be interrupted, may need more memory than there is, and prints text that would
corrupt JSON output.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, time

import openvino_genai

from specdemo.child import follow
from specdemo.errors import ConversionError, DiskError, LoadError
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import check_readable, inspect_gguf, read_header
from specdemo.models.gguf_exact import repair
from specdemo.models.gguf_write import configuration, ends, with_halves
from specdemo.models.memory import in_units
from specdemo.models.places import own_cache, writable
from specdemo.records import Model

_VERSION = 2  # raised when a conversion changes, so that files converted before it are converted again
_GROWTH = 1.5  # bytes of IR per byte of GGUF, at most: 6 bits are stored as 8, with scales
_STALE_SECONDS = 24 * 3600


def folder_of(model: Model) -> Path:
    """The folder of OpenVINO IR that an engine loads: the model's own, or the conversion of its GGUF file.

    Raises:
        LoadError: it is not converted yet, or the model was read from JSON, which never holds paths.
    """
    if model.path is None:
        raise LoadError(f"The folder of {model.name!r} on this machine is unknown; choose it.")
    folder = converted_folder(model.path) if model.path.is_file() else model.path
    if folder is None:
        raise LoadError(f"The GGUF file {model.name!r} is not converted yet; choose it as a target or draft again.")
    return folder


def awaits_conversion(model: Model) -> bool:
    """Whether a model is a GGUF file without a conversion."""
    return model.path is not None and model.path.is_file() and converted_folder(model.path) is None


def convert_models(models: Iterable[Model | None]) -> Iterator[tuple[Model, float]]:
    """Convert what of these is GGUF and not converted yet; yields the model under way and its seconds.

    Stops when the caller goes away.

    Raises:
        SpecdemoError: what `convert_gguf` raises.
    """
    for model in models:
        if model is not None and model.path is not None and awaits_conversion(model):
            for seconds in convert_gguf(model.path):
                yield model, seconds


def convert_gguf(path: Path) -> Iterator[float]:
    """Convert a file that is not converted yet; yields the elapsed seconds, five times a second.

    When the caller goes away the conversion ends and leaves nothing behind.

    Raises:
        GGUFError: the file cannot be read.
        DiskError: the disk is too small.
        ConversionError: openvino-genai refused it, or ran out of memory.
    """
    if converted_folder(path) is not None:
        return
    _check_disk(inspect_gguf(path))
    writable(_conversions(), "Conversions")
    for left in _conversions().glob(".converting-*"):  # left by a process that was killed
        if time() - left.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    began = monotonic()
    died = ConversionError(
        f"The conversion of {path.name!r} ended unexpectedly, perhaps for lack of memory; free some and try again."
    )
    with (
        tempfile.TemporaryDirectory(prefix=".converting-", dir=_conversions()) as scratch,
        closing(follow(_convert, path.resolve(), Path(scratch), name="specdemo conversion", died=died)) as silences,
    ):
        for _ in silences:
            yield monotonic() - began


def converted_folder(path: Path) -> Path | None:
    """Where a file's conversion is, if there is one; instant, since converted files have a stored digest."""
    record = _record_of(path)
    if record is None or not record.is_file():
        return None
    folder = _place_of(record.read_text(encoding="ascii"))
    return folder if folder.is_dir() else None


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, recomputed only when its size or time has changed.

    Raises:
        OSError: it cannot be read.
    """
    record = _record_of(path)
    if record is not None and record.is_file():
        return record.read_text(encoding="ascii")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if record is not None:
        writable(record.parent, "What is known of models")
        with tempfile.NamedTemporaryFile("w", dir=record.parent, delete=False, encoding="ascii") as written:
            written.write(digest)
        Path(written.name).replace(record)
    return digest


def _record_of(path: Path) -> Path | None:
    """Where the digest of a file of this size and time is stored."""
    try:
        state = path.stat()
    except OSError:
        return None
    key = f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
    return _conversions() / "digests" / hashlib.sha256(os.fsencode(key)).hexdigest()


def _place_of(digest: str) -> Path:
    return _conversions() / f"{digest}-{_VERSION}"


def _conversions() -> Path:
    return own_cache() / "gguf"


def _check_disk(model: Model) -> None:
    place = next(folder for folder in (_conversions(), *_conversions().parents) if folder.is_dir())
    needed, free = int((model.weight_bytes or 0) * _GROWTH), shutil.disk_usage(place).free
    if needed > free:
        raise DiskError(
            f"The conversion of {model.name!r} may need {in_units(needed)}, but {place} has only {in_units(free)} "
            "free; free some space, or set XDG_CACHE_HOME to a larger disk."
        )


def _convert(path: Path, scratch: Path) -> Iterator[None]:
    """The child."""
    os.dup2(2, 1)  # the reader's prints are not our output
    yield from convert_here(path, scratch)


def convert_here(path: Path, scratch: Path) -> Iterator[None]:
    """Convert in this process, in a scratch folder on the cache's disk, and move the result to its place.

    Yields None once it is under way. The reader prints to standard output.

    Raises:
        GGUFError: the file cannot be read.
        ConversionError: openvino-genai refused it.
    """
    folder = _place_of(file_digest(path))
    if folder.is_dir():  # the same content under another name
        return
    yield None
    header = read_header(path)
    check_readable(path.name, header)
    work = scratch / "model"
    work.mkdir()
    link = work / "model.gguf"
    if not with_halves(path, header, link):
        _link(path, link)
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
    inspect_folder(work)
    with suppress(OSError):  # another process was faster
        work.rename(folder)


def _link(source: Path, link: Path) -> None:
    """A link to a file, of whatever kind this system and these disks allow, else a copy."""
    for how in (os.symlink, os.link):
        with suppress(OSError):
            how(source, link)
            return
    shutil.copyfile(source, link)
