"""Models from the Hugging Face Hub: what of them is on this machine, and fetching the rest.

A model counts as here only when it is whole: a folder of the cache is inspected as any other, and its weights enter
it last of all.
"""

import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

from specdemo.errors import DiskError, FetchError, FolderError, NetworkError
from specdemo.models.catalogue import Source
from specdemo.models.convert import converted_folder
from specdemo.models.folder import inspect_folder
from specdemo.models.hub_process import Plan, RemoteFile, Started, fetch, partial_of, storage_of
from specdemo.models.memory import in_units
from specdemo.models.places import hub_cache
from specdemo.resources import ASSETS

_POLL_SECONDS = 0.2
_SPARE = 64 * 2**20  # bytes of the disk that a download leaves free


@dataclass(frozen=True)
class DownloadProgress:
    """Bytes here and bytes in all, seconds since the start; `folder` only when the download is complete.

    `seconds_left` goes by the mean speed so far; it is None until there is one.
    """

    done_bytes: int
    total_bytes: int
    seconds: float
    seconds_left: float | None
    file: str
    folder: Path | None = None


def download(
    repository: str, *, revision: str | None = None, stop: Callable[[], bool] = lambda: False
) -> Iterator[DownloadProgress]:
    """Fetch what of a repository OpenVINO GenAI needs; the last progress tells the folder.

    `stop` is asked five times a second. Once it says True, no more comes, and what was fetched stays for the next
    time; so it does when the caller goes away, or the connection is cut.

    Raises:
        FetchError: the model could not be fetched; the message says why and what to do.
        FolderError: the repository lacks a file that is needed to run the model.
    """
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    process = context.Process(
        target=fetch,
        args=(repository, revision or "main", hub_cache(), theirs),
        daemon=True,
        name="specdemo download",
    )
    process.start()
    theirs.close()  # so that reading fails once the child is gone
    try:
        yield from _follow(connection, stop)
    finally:
        process.terminate()
        process.join()
        connection.close()


def _follow(connection: Connection, stop: Callable[[], bool]) -> Iterator[DownloadProgress]:
    plan: Plan | None = None
    began, before, file = perf_counter(), 0, ""
    while not stop():
        message = _receive(connection)
        if isinstance(message, FetchError):
            raise message
        if isinstance(message, Plan):
            plan = message
            _check_disk(plan)
            began, before = perf_counter(), sum(each.have for each in plan.files)
            connection.send("go on")
        elif isinstance(message, Started):
            file = message.file.name
        if plan is None:
            continue
        total, seconds = sum(each.size for each in plan.files), perf_counter() - began
        if isinstance(message, Path):
            inspect_folder(message, draft=True)
            yield DownloadProgress(total, total, seconds, 0, file, message)
            return
        done = sum(_bytes_here(plan.blobs, each) for each in plan.files)
        left = (total - done) * seconds / (done - before) if done > before else None
        yield DownloadProgress(done, total, seconds, left, file)


def _receive(connection: Connection) -> Plan | Started | Path | FetchError | None:
    """What the child says, or None if it says nothing for now."""
    try:
        if not connection.poll(_POLL_SECONDS):
            return None
        message: Plan | Started | Path | FetchError = connection.recv()
    except (EOFError, OSError):
        return NetworkError("The download ended unexpectedly; download again to resume.")
    return message


def _bytes_here(blobs: Path, file: RemoteFile) -> int:
    for path in (blobs / file.etag, partial_of(blobs, file)):
        try:
            return path.stat().st_size
        except OSError:  # not there, or just about to be renamed
            continue
    return 0


def _check_disk(plan: Plan) -> None:
    needed = sum(file.size - file.have for file in plan.files)
    place = next(folder for folder in plan.blobs.parents if folder.is_dir())
    free = shutil.disk_usage(place).free
    if needed and needed + _SPARE > free:
        raise DiskError(
            f"The download needs {in_units(needed + _SPARE)} more, but {place} has only {in_units(free)} free; "
            "free some space, or set HF_HOME to a larger disk."
        )


def cached_folders(cache: Path | None = None) -> dict[str, Path]:
    """The whole OpenVINO models in the Hub's cache, by repository; asks nobody."""
    found = {}
    for storage in sorted((cache or hub_cache()).glob("models--*")):
        repository = storage.name.removeprefix("models--").replace("--", "/")
        folder = cached_folder(repository, cache=cache)
        if folder is not None:
            found[repository] = folder
    return found


def cached_folder(repository: str, revision: str = "main", cache: Path | None = None) -> Path | None:
    """Where the Hub's cache has this model whole, else None; asks nobody.

    The revision's own snapshot comes first. While a newer one is still being fetched, an older one will do.
    """
    storage = storage_of(repository, cache or hub_cache())
    snapshots = storage / "snapshots"
    if not snapshots.is_dir():
        return None
    reference = storage / "refs" / revision
    current = reference.read_text().strip() if reference.is_file() else ""
    newest_first = sorted(snapshots.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in sorted(newest_first, key=lambda folder: folder.name != current):
        try:
            inspect_folder(folder, draft=True)
        except FolderError:
            continue
        return folder
    return None


def local_folder(source: Source, directory: Path | None = None) -> Path | None:
    """The folder of a catalogue's model if it is on this machine, and whole; asks nobody.

    Converted models are looked for in the user's own models directory, or the one given.
    """
    if source.path is not None:
        return ASSETS / source.path
    assert source.repository is not None, "a source has a repository or a path"
    if source.format == "openvino":
        return cached_folder(source.repository)
    folder = converted_folder(source.repository, source.weights, directory)
    try:
        inspect_folder(folder, draft=True)
    except FolderError:
        return None
    return folder
