"""Visitors' files: their folder, parsing them in separate processes, and models dropped on a local page.

Anyone can send anything here, so each file is read in a process of its own, within limits and outside the engine's
queue. Gradio deletes complete uploads, but not partial ones and not folders. A killed server leaves its folder
behind, which the next server on this machine deletes.
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

from specdemo.child import Failure, Limits, run_limited
from specdemo.errors import FileError, SpecdemoError, UsageError
from specdemo.experiments import Bench, Task, chosen_tasks, read_bench
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
"""Maximum bytes of a visitor's file; a comparison of 2,048 tokens per side takes about 5 MB."""


def show_file(data: bytes) -> Update:
    """Return the update that plays back the comparison in a JSON file as if it had just run.

    Raises:
        FileError: it is not a comparison.
    """
    comparison = schema.from_text(data, "open one saved with Share")
    return Update(feed_of(comparison).everything, "", anatomy(comparison))


def open_apart(data: bytes) -> Generator[None, None, Update]:
    """Run `show_file` in a process of its own.

    Raises:
        FileError: it is not a comparison, or exceeds a limit.
    """
    return _limited(show_file, data, what="This file cannot be read", otherwise="open one saved with Share")


def make_file(kind: str, record: str) -> bytes:
    """Make a file of this kind from a run as sent by the page.

    Raises:
        FileError: it is not a run, or too large.
    """
    return FILE_KINDS[kind].make(unpack(record, FILE_BYTES))


def share_apart(kind: str, record: str) -> Generator[None, None, bytes]:
    """Run `make_file` in a process of its own.

    Raises:
        FileError: it is not a run, or exceeds a limit.
    """
    return _limited(make_file, kind, record, what="This run cannot be drawn", otherwise="share it as JSON")


def tasks_apart(
    file: str | None, prompts: Prompts, limit: int, *, turns: bool = True
) -> Generator[None, None, list[Task]]:
    """Return the prompts of a visitor's file, read in a process of its own, or of the bundled suite.

    `turns`: see `chosen_tasks`.

    Raises:
        FileError: it contains no prompts, or exceeds a limit.
    """
    if file is None:
        return chosen_tasks(None, prompts, limit)
    words = {"what": "This file cannot be read", "otherwise": "choose one with fewer prompts"}
    return (yield from _limited(partial(chosen_tasks, turns=turns), Path(file), prompts, limit, **words))


def benchmark_apart(file: str) -> Generator[None, None, Bench]:
    """Return a visitor's benchmark, read in a process of its own.

    Raises:
        FileError: it is not a benchmark, or exceeds a limit.
    """
    return _limited(read_bench, Path(file), what="This benchmark cannot be read", otherwise="choose a smaller one")


def _limited(work: Callable[..., T], *arguments: Any, what: str, otherwise: str) -> Generator[None, None, T]:
    failure = Failure(FileError, what, otherwise)
    return run_limited(work, *arguments, name="specdemo file", failure=failure, limits=LIMITS)


def meanwhile(work: Generator[None, None, T], update: list[Any]) -> Generator[list[Any], None, T]:
    """Return the work's result; until then, yield copies of this update, so that Gradio notices who has left.

    Copies, because Gradio removes an update's value when it sends it.
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
FREE_BYTES = 2**30  # to keep free on the disk
_BLOCK = 512  # bytes, as `stat` counts them


@contextmanager
def visitors_files(age: float = AGE, every: float = _EVERY) -> Iterator[Path]:
    """Create a temporary folder for Gradio's files; every `every` seconds delete those older than 2 * `age` seconds.

    Enter it before the page is built, since components remember the folder.
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
    """Delete a folder's files that are older than `age` seconds, and its empty folders of that age."""
    until = time() - age
    for path in sorted(folder.rglob("*"), reverse=True):  # contents before their folder
        with suppress(OSError):  # already gone, or not empty
            if path.lstat().st_ctime > until:
                continue
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Create a temporary folder in `parent`, named for `delete_abandoned` to know its owner; `prefix` ends in "-"."""
    name = f"{prefix}{os.getpid()}-{_start_time(os.getpid())}-"
    with TemporaryDirectory(prefix=name, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def delete_abandoned(parent: Path, prefix: str) -> None:
    """Delete folders of servers that have ended; a folder is named after its process id and start time."""
    for folder in parent.glob(f"{prefix}*-*-*"):
        _, process, started, *_ = folder.name.split("-")
        if process.isdecimal() and _start_time(int(process)) != started and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)  # leaves other users' folders


def _start_time(process: int) -> str:
    """Return a process's start in seconds as text; "none" if it is not running."""
    try:
        return str(round(psutil.Process(process).create_time()))
    except psutil.Error:
        return "none"


class Usage(NamedTuple):
    """A folder's size on disk, and its number of files and folders."""

    bytes: int
    files: int


class UploadLimits(NamedTuple):
    """Limits on all visitors' files together, bytes to keep free on disk, and how long a measured size is valid."""

    bytes: int = 2**30
    files: int = 10_000
    free_bytes: int = FREE_BYTES
    fresh_seconds: float = 1.0


UPLOADS = UploadLimits()


class FolderUsage:
    """Size of the visitors' folder, measured on request if the last size is older than `fresh_seconds`."""

    def __init__(self, fresh_seconds: float) -> None:
        self._lock = Lock()
        self._usage = Usage(0, 0)
        self._fresh_seconds = fresh_seconds
        self.changed()

    @property
    def folder(self) -> Path:
        """The folder, which may not exist yet."""
        return Path(os.environ.get(_FOLDER) or Path(gettempdir(), "gradio"))

    @property
    def free(self) -> int:
        """Free bytes on the folder's disk."""
        return shutil.disk_usage(self.folder if self.folder.is_dir() else gettempdir()).free

    def changed(self) -> None:
        """Discard the last size."""
        self._measured = -inf

    async def now(self) -> Usage:
        """Return the size; concurrent requests share one measurement."""
        async with self._lock:
            if monotonic() - self._measured >= self._fresh_seconds:
                self._measured = monotonic()
                self._usage = await run_sync(usage_of, self.folder)
            return self._usage


def usage_of(folder: Path) -> Usage:
    """Measure everything below a folder."""
    total = count = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # already gone
            found = path.lstat()
            total += getattr(found, "st_blocks", -(-found.st_size // _BLOCK)) * _BLOCK
            count += 1
    return Usage(total, count)


DROPPED = ".dropped-"  # hidden, so that a file is not listed before it is complete
_DROPS = 4


class Drops:
    """Model files dropped on the page; actual models are kept in the user's models directory.

    `PUT /model/NAME` responds with the file's path there, or with the reason for a refusal.
    """

    def __init__(
        self, directory: Path | None = None, free_bytes: int = FREE_BYTES, *, limits: Limits = LIMITS
    ) -> None:
        """Keep `free_bytes` free, however many files arrive at once, and delete leftovers of a killed server.

        Each file is read within `limits`.
        """
        self._directory = directory
        self._keep = partial(keep_model, directory=directory, limits=limits)
        self._free_bytes = free_bytes
        self._coming: dict[Path, int] = {}  # bytes of each arriving file that are not on disk yet
        # one at a time, so that no two take the same name, and not in the threads that answer requests
        self._keeper = CapacityLimiter(1)
        delete_abandoned(models_dir(directory), DROPPED)

    @property
    def route(self) -> Route:
        """Route for a dropped file."""
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
                kept = await run_sync(self._keep, file, limiter=self._keeper)
        except SpecdemoError as error:
            return _refused(str(error))
        except OSError as error:
            return _refused(f"The file cannot be written ({error.strerror}); give its path instead.")
        except ClientDisconnect:
            return _refused("The page was closed.")
        return JSONResponse({"path": str(kept)})

    @contextmanager
    def _room(self, place: Path, size: int) -> Iterator[None]:
        """Reserve room for a file of this size while it arrives.

        Raises:
            UsageError: it does not fit besides the other arriving files, or there are too many of them.
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
    """Refuse with status 200, since browsers log any other status as an error of the page."""
    return JSONResponse({"refused": sentence})
