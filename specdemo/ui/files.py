"""The folder for what visitors upload and what is made for them, and its cleaning.

Gradio deletes the files that it knows of; uploads that were broken off, and the folders, it does not.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import time

AGE = 3600
"""Seconds after which a visitor's file may be deleted."""
_EVERY = 60.0
_FOLDER = "GRADIO_TEMP_DIR"


@contextmanager
def visitors_files(age: float = AGE, every: float = _EVERY) -> Iterator[Path]:
    """A folder for Gradio to keep files in, while this lasts; what is twice as old as `age` seconds is deleted.

    To be entered before the page is built, since its parts remember the folder.
    """
    before, over = os.environ.get(_FOLDER), Event()

    def clean() -> None:
        while not over.wait(every):
            delete_older(folder, 2 * age)

    with TemporaryDirectory(prefix="specdemo-", dir=before, ignore_cleanup_errors=True) as name:
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
