"""The folder for what visitors upload and what is made for them, its size, and its cleaning.

Gradio deletes the files that it knows of; uploads that were broken off, and the folders, it does not. A server that
is killed leaves its folder, which the next one on this machine deletes.
"""

import os
import shutil
from asyncio import Lock
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from threading import Event, Thread
from time import monotonic, time
from typing import NamedTuple

import psutil
from anyio.to_thread import run_sync

AGE = 3600
"""Seconds after which a visitor's file may be deleted."""
_EVERY = 60.0
_FOLDER = "GRADIO_TEMP_DIR"
_PREFIX = "specdemo-"
_FRESH_SECONDS = 1.0  # for which a measured size holds, unless something was uploaded
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
    delete_abandoned(parent)
    prefix = f"{_PREFIX}{os.getpid()}-{_started(os.getpid())}-"
    with TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ[_FOLDER] = name
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


def delete_abandoned(parent: Path) -> None:
    """Delete the folders there of servers that run no more; each is named for its process and when that started."""
    for folder in parent.glob(f"{_PREFIX}*-*-*"):
        _, process, started, *_ = folder.name.split("-")
        if process.isdecimal() and _started(int(process)) != started and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)  # what is somebody else's stays


def _started(process: int) -> str:
    """When a process started, in a word; "none" if there is none."""
    try:
        return str(round(psutil.Process(process).create_time()))
    except psutil.Error:
        return "none"


class Usage(NamedTuple):
    """How much a folder takes on the disk, and how many files and folders it holds."""

    bytes: int
    files: int


class FolderUsage:
    """Size of the visitors' folder, measured when it is asked for."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._usage = Usage(0, 0)
        self._measured = -_FRESH_SECONDS

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
        self._measured = -_FRESH_SECONDS

    async def now(self) -> Usage:
        """The size; one measurement serves all who ask meanwhile."""
        async with self._lock:
            if monotonic() - self._measured > _FRESH_SECONDS:
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
