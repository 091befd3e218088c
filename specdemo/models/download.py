"""Models from the Hugging Face Hub: which are on this machine, and downloading the others.

A model counts as present only when it is complete: a folder of the cache is inspected like any other, and its weights
arrive last.
"""

import glob
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import perf_counter

from specdemo.child import follow
from specdemo.errors import FetchError, ModelError, NetworkError
from specdemo.files import ASSETS
from specdemo.models.catalogue import Source
from specdemo.models.convert import converted_folder
from specdemo.models.discovery import listed, modified
from specdemo.models.gguf import inspect_model, inspected_apart
from specdemo.models.hub_process import Plan, RemoteFile, Started, existing, fetch, partial_of, quarantine, storage_of
from specdemo.models.packages import download_package, is_right, packaged_file
from specdemo.models.places import hub_cache
from specdemo.progress import Progress
from specdemo.records import Model


def download(
    repository: str, *, revision: str | None = None, stop: Callable[[], bool] = lambda: False
) -> Generator[Progress[Path | None], None, None]:
    """Download the files of a repository that OpenVINO GenAI needs; progress is in bytes and ends with the folder.

    A name such as ORGANISATION/MODEL:FILE.gguf stands for that file, and progress ends with the file.

    `stop` is checked five times a second. Once it returns True, the download ends, and what was fetched stays for the
    next attempt; so it does when the caller goes away or the connection is lost.

    Raises:
        FetchError: the model could not be fetched; the message says why and what to do.
        FolderError: the repository lacks a file that is needed to run the model.
    """
    repository, _, gguf = repository.partition(":")
    cache = hub_cache()
    free = shutil.disk_usage(existing(cache)).free
    died = NetworkError("The download ended unexpectedly; download again to resume.")
    plan: Plan | None = None
    began, before, file = perf_counter(), 0, ""
    messages = follow(
        fetch,
        repository,
        gguf or None,
        revision or "main",
        cache,
        free,
        name="specdemo download",
        died=died,
        stop=stop,
    )
    with closing(messages):
        for message in messages:
            if isinstance(message, Plan):
                plan = message
                began, before = perf_counter(), sum(each.have for each in plan.files)
            elif isinstance(message, Started):
                file = message.file.name
            if plan is None:
                continue
            total, seconds = sum(each.size for each in plan.files), perf_counter() - began
            if isinstance(message, Path):
                for _ in _inspected_apart(message):
                    yield Progress(total, total, 0, None, file)
                yield Progress(total, total, 0, message, file)
                return
            done = sum(_bytes_here(plan.blobs, each) for each in plan.files)
            left = (total - done) * seconds / (done - before) if done > before else None
            yield Progress(done, total, left, None, file)


def _inspected_apart(place: Path) -> Generator[None, None, Model]:
    """Read what was just downloaded in a process of its own, within limits; yields while it does.

    What is refused is not kept, and not downloaded again.

    Raises:
        ModelError: it cannot be used.
    """
    died = ModelError(f"{place.name!r} could not be read within limits and was deleted; choose another model.")
    try:
        return (yield from inspected_apart(place, died))
    except ModelError as error:
        if place.is_file():
            quarantine(place, str(error))
        elif error is died:
            (place / "openvino_model.xml").unlink(missing_ok=True)  # so that no listing reads it
        raise


def download_source(source: Source, stop: Callable[[], bool] = lambda: False) -> Iterator[Progress[Path | None]]:
    """Download a model of the catalogue: from the Hub or, where that fails, from its Python package, if it has one.

    Raises:
        FetchError, ModelError: what `download` raises, or `download_package`.
    """
    try:
        yield from download(source.address, revision=source.revision, stop=stop)
    except FetchError:
        if source.package is None:
            raise
        yield from download_package(source, stop)


def _bytes_here(blobs: Path, file: RemoteFile) -> int:
    for path in (blobs / file.etag, partial_of(blobs, file)):
        try:
            return path.stat().st_size
        except OSError:  # not there, or just about to be renamed
            continue
    return 0


def cached_folders(cache: Path | None = None) -> dict[str, Path]:
    """The complete OpenVINO models in the Hub's cache, by repository; works offline."""
    found = {}
    for storage in sorted((cache or hub_cache()).glob("models--*")):
        repository = storage.name.removeprefix("models--").replace("--", "/")
        folder = cached_folder(repository, cache=cache)
        if folder is not None:
            found[repository] = folder
    return found


def cached_folder(repository: str, revision: str = "main", cache: Path | None = None) -> Path | None:
    """Where the Hub's cache holds this model, if complete, else None; works offline.

    The revision's own snapshot comes first. While a newer one is still being downloaded, an older one will do.
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
    """Where the Hub's cache holds this file of a repository, else None; works offline."""
    snapshots = storage_of(repository, cache or hub_cache()) / "snapshots"
    return next((path for path in sorted(snapshots.glob(f"*/{glob.escape(file)}")) if path.is_file()), None)


def local_file(source: Source) -> Path | None:
    """The GGUF file of a catalogue model if it is on this machine, in its package or in the Hub's cache."""
    assert source.repository is not None
    assert source.file is not None
    packaged = packaged_file(source) if source.package is not None else None
    cached = cached_file(source.repository, source.file)
    return packaged or (cached if cached is not None and is_right(source, cached) else None)


def local_folder(source: Source, directory: Path | None = None) -> Path | None:
    """The folder, or GGUF file, of a catalogue model if it is on this machine and complete; works offline.

    Converted models are looked for in the user's own models directory, or the one given.
    """
    if source.path is not None:
        return ASSETS / source.path
    assert source.repository is not None, "a source has a repository or a path"
    if source.format == "openvino":
        return cached_folder(source.repository)
    if source.format == "gguf":
        return local_file(source)
    folder = converted_folder(source.repository, source.weights, directory)
    with suppress(ModelError):
        _ = inspect_model(folder)
        return folder
    return None
