"""Visitors' files are read, and their runs drawn, in processes of their own, outside the engine's queue.

Anyone can send anything here, so memory, processor time and time of such a process are limited.
"""

from collections.abc import Callable, Generator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from specdemo.child import Failure, Limits, run_limited
from specdemo.errors import FileError
from specdemo.experiments import Result, Task, chosen_tasks, read_result
from specdemo.exports import schema
from specdemo.exports.html import FILE_KINDS
from specdemo.exports.schema import unpack
from specdemo.records import Prompts
from specdemo.ui.feed import end_event
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
    return Update(end_event(comparison), "")


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


def measurement_apart(file: str) -> Generator[None, None, Result]:
    """Return a visitor's measurement, read in a process of its own.

    Raises:
        FileError: it is not a measurement, or exceeds a limit.
    """
    return _limited(read_result, Path(file), what="This file cannot be read", otherwise="choose a smaller one")


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
