"""Files of visitors: the folder that holds them, what they have the server parse, and models dropped on a local page.

Anyone can send anything here, so each file is read in a process of its own, within limits, beside the line for the
engine. Gradio deletes the files that it knows of; uploads that were broken off, and the folders, it does not. A
server that is killed leaves its folder, which the next one on this machine deletes.
"""

import os
import shutil
from asyncio import Lock
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from threading import Event, Thread
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar

import psutil
from anyio import CapacityLimiter, open_file
from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specdemo.child import Limits, apart
from specdemo.errors import FileError, SpecdemoError, UsageError
from specdemo.experiments.against import read_bench
from specdemo.experiments.bench_result import Bench
from specdemo.experiments.suites import Task, chosen_tasks
from specdemo.models.library import keep_model
from specdemo.models.places import models_dir, writable
from specdemo.presentation import schema
from specdemo.presentation.feed import feed_of
from specdemo.presentation.share import FILE_KINDS, unpack
from specdemo.records import Prompts
from specdemo.ui.boards import anatomy
from specdemo.ui.session import Update

T = TypeVar("T")
LIMITS = Limits()
FILE_BYTES = 10 * 2**20
"""A visitor's file at most; a comparison of 2,048 tokens a side has some 5 MB."""


def show_file(data: bytes) -> Update:
    """What to show for the comparison in a JSON file, played as if it had just run.

    Raises:
        FileError: it is not such a file.
    """
    comparison = schema.from_text(data, "open one saved with Share")
    return Update(feed_of(comparison).everything, "", anatomy(comparison))


def open_apart(data: bytes) -> Generator[None, None, Update]:
    """Return the same, found in a process of its own.

    Raises:
        FileError: it is not such a file, or takes too much.
    """
    return _apart(show_file, data, refused="This file takes too long to read; open one saved with Share.")


def make_file(kind: str, record: str) -> bytes:
    """A file of this kind for a run, as the page sends it.

    Raises:
        FileError: it holds none, or is too large.
    """
    return FILE_KINDS[kind].make(unpack(record, FILE_BYTES))


def share_apart(kind: str, record: str) -> Generator[None, None, bytes]:
    """Return the same, made in a process of its own.

    Raises:
        FileError: it holds none, or takes too much.
    """
    return _apart(make_file, kind, record, refused="This run takes too long to draw; share it as JSON.")


def tasks_apart(
    file: str | None, prompts: Prompts, limit: int, *, turns: bool = True
) -> Generator[None, None, list[Task]]:
    """Return prompts of a visitor's file, read in a process of its own, or of the bundled suite.

    `turns`: see `chosen_tasks`.

    Raises:
        FileError: it holds none, or takes too much.
    """
    if file is None:
        return chosen_tasks(None, prompts, limit)
    refused = "This file takes too long to read; choose one with fewer prompts."
    return (yield from _apart(partial(chosen_tasks, turns=turns), Path(file), prompts, limit, refused=refused))


def benchmark_apart(file: str) -> Generator[None, None, Bench]:
    """Return a visitor's benchmark, read in a process of its own.

    Raises:
        FileError: it is none, or takes too much.
    """
    return _apart(read_bench, Path(file), refused="This benchmark takes too long to read; choose a smaller one.")


def _apart(work: Callable[..., T], *arguments: Any, refused: str) -> Generator[None, None, T]:
    return apart(work, *arguments, name="specdemo file", died=FileError(refused), limits=LIMITS)


def meanwhile(work: Generator[None, None, T], update: list[Any]) -> Generator[list[Any], None, T]:
    """Return what the work returns; until then, yield copies of this update, which is how Gradio sees who has left.

    Copies, since Gradio empties an update of its value when it sends it.
    """
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: T = end.value
            return found
        yield deepcopy(update)


AGE = 3600
"""Seconds after which a visitor's file may be deleted."""
_EVERY = 60.0
_FOLDER = "GRADIO_TEMP_DIR"
_PREFIX = "specdemo-"
FREE_BYTES = 2**30  # which must stay free on the disk
_BLOCK = 512  # bytes, as `stat` counts them


@contextmanager
def visitors_files(age: float = AGE, every: float = _EVERY) -> Iterator[Path]:
    """A folder for Gradio to keep files in, while this lasts; what is twice as old as `age` seconds is deleted.

    To be entered before the page is built, since its parts remember the folder.
    """
    before, over = os.environ.get(_FOLDER), Event()

    def clean() -> None:
        while not over.wait(every):
            delete_older(folder, 2 * age)

    parent = Path(before or gettempdir())
    delete_abandoned(parent, _PREFIX)
    with own_folder(parent, _PREFIX) as folder:
        os.environ[_FOLDER] = str(folder)
        cleaner = Thread(target=clean, daemon=True)
        cleaner.start()
        try:
            yield folder
        finally:
            over.set()
            cleaner.join()
            if before is None:
                del os.environ[_FOLDER]
            else:
                os.environ[_FOLDER] = before


def delete_older(folder: Path, age: float) -> None:
    """Delete the files under a folder that are older than `age` seconds, and folders left empty by then."""
    until = time() - age
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        with suppress(OSError):  # it is gone, or not empty
            if path.lstat().st_ctime > until:
                continue
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder there while this lasts; its name tells `delete_abandoned` whose it is. `prefix` ends in a dash."""
    name = f"{prefix}{os.getpid()}-{_start_time(os.getpid())}-"
    with TemporaryDirectory(prefix=name, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def delete_abandoned(parent: Path, prefix: str) -> None:
    """Delete the folders there of servers that run no more; each is named for its process and when that started."""
    for folder in parent.glob(f"{prefix}*-*-*"):
        _, process, started, *_ = folder.name.split("-")
        if process.isdecimal() and _start_time(int(process)) != started and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)  # what is somebody else's stays


def _start_time(process: int) -> str:
    """When a process started, in a word; "none" if there is none."""
    try:
        return str(round(psutil.Process(process).create_time()))
    except psutil.Error:
        return "none"


class Usage(NamedTuple):
    """How much a folder takes on the disk, and how many files and folders it holds."""

    bytes: int
    files: int


class UploadLimits(NamedTuple):
    """What all visitors' files may take together, what must stay free on the disk, and for how long a size counts."""

    bytes: int = 2**30
    files: int = 10_000
    free_bytes: int = FREE_BYTES
    fresh_seconds: float = 1.0


UPLOADS = UploadLimits()


class FolderUsage:
    """Size of the visitors' folder, measured when it is asked for and the last size is older than `fresh_seconds`."""

    def __init__(self, fresh_seconds: float) -> None:
        self._lock = Lock()
        self._usage = Usage(0, 0)
        self._fresh_seconds = fresh_seconds
        self.changed()

    @property
    def folder(self) -> Path:
        """The folder, whether it exists yet or not."""
        return Path(os.environ.get(_FOLDER) or Path(gettempdir(), "gradio"))

    @property
    def free(self) -> int:
        """Bytes that are free where it is."""
        return shutil.disk_usage(self.folder if self.folder.is_dir() else gettempdir()).free

    def changed(self) -> None:
        """Have the size measured anew."""
        self._measured = -inf

    async def now(self) -> Usage:
        """The size; one measurement serves all who ask meanwhile."""
        async with self._lock:
            if monotonic() - self._measured >= self._fresh_seconds:
                self._measured = monotonic()
                self._usage = await run_sync(usage_of, self.folder)
            return self._usage


def usage_of(folder: Path) -> Usage:
    """What all that is below a folder takes on the disk."""
    total = count = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it is gone
            found = path.lstat()
            total += getattr(found, "st_blocks", -(-found.st_size // _BLOCK)) * _BLOCK
            count += 1
    return Usage(total, count)


DROPPED = ".dropped-"  # hidden, so that nobody lists a file before it is whole
_DROPS = 4


class Drops:
    """Model files dropped on the page, which go into the user's models directory if they are models.

    `PUT /model/NAME` answers with the path that the file has there, or with a sentence that says why it is refused.
    """

    def __init__(self, directory: Path | None = None, free_bytes: int = FREE_BYTES) -> None:
        """So many `free_bytes` stay free, whatever arrives at once. What a killed server left is deleted."""
        self._directory = directory
        self._free_bytes = free_bytes
        self._coming: dict[Path, int] = {}  # bytes of each file under way that are not on the disk yet
        # one after the other, so that neither takes the other's name, and in no thread that answers requests
        self._keeper = CapacityLimiter(1)
        delete_abandoned(models_dir(directory), DROPPED)

    @property
    def route(self) -> Route:
        """The address that takes a file."""
        return Route("/model/{name}", self._dropped, methods=["PUT"])

    async def _dropped(self, request: Request) -> Response:
        try:
            folder = await run_sync(writable, models_dir(self._directory), "Models")
            size = int(request.headers.get("content-length", "0"))
            with own_folder(folder, DROPPED) as place, self._room(place, size):
                file = place / request.path_params["name"]
                async with await open_file(file, "wb") as part:
                    async for piece in request.stream():
                        await part.write(piece)
                        self._coming[place] -= len(piece)
                kept = await run_sync(keep_model, file, self._directory, limiter=self._keeper)
        except SpecdemoError as error:
            return _refused(str(error))
        except OSError as error:
            return _refused(f"The file cannot be written ({error.strerror}); give its path instead.")
        except ClientDisconnect:
            return _refused("The page was left.")
        return JSONResponse({"path": str(kept)})

    @contextmanager
    def _room(self, place: Path, size: int) -> Iterator[None]:
        """While a file of this size arrives in a place.

        Raises:
            UsageError: it does not fit beside the others that arrive, or they are many.
        """
        if len(self._coming) >= _DROPS:
            raise UsageError("Other files are being copied; wait until they are here, then drop this one again.")
        if shutil.disk_usage(place).free < sum(self._coming.values()) + size + self._free_bytes:
            raise UsageError(f"There is no room for this file in {place.parent}; free some, or give the file's path.")
        self._coming[place] = size
        try:
            yield
        finally:
            del self._coming[place]


def _refused(sentence: str) -> Response:
    """An answer like the other, since browsers report any other status as a fault of the page."""
    return JSONResponse({"refused": sentence})
