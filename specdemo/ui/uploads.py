"""What visitors have the server parse: saved comparisons, runs to share, files of prompts.

Anyone can send anything here, so each is read in a process of its own, within limits, beside the line for the engine.
"""

from collections.abc import Callable, Generator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from specdemo.child import Limits, apart
from specdemo.errors import FileError
from specdemo.experiments.against import read_bench
from specdemo.experiments.bench import Bench
from specdemo.experiments.suites import Task, chosen_tasks
from specdemo.presentation import schema
from specdemo.records import Prompts
from specdemo.ui.boards.anatomy import anatomy
from specdemo.ui.feed import recorded
from specdemo.ui.session import Update
from specdemo.ui.share.files import KINDS, unpacked

T = TypeVar("T")
LIMITS = Limits()
FILE_BYTES = 10 * 2**20
"""A visitor's file at most; a comparison of 2,048 tokens a side has some 5 MB."""


def opened(data: bytes) -> Update:
    """What to show for the comparison in a JSON file, played as if it had just run.

    Raises:
        FileError: it is not such a file.
    """
    comparison = schema.from_text(data, "open one saved with Share")
    return Update(recorded(comparison).everything, "", anatomy(comparison))


def opening(data: bytes) -> Generator[None, None, Update]:
    """Return the same, found in a process of its own.

    Raises:
        FileError: it is not such a file, or takes too much.
    """
    return _apart(opened, data, refused="This file takes too long to read; open one saved with Share.")


def shared(kind: str, record: str) -> bytes:
    """A file of this kind for a run, as the page sends it.

    Raises:
        FileError: it holds none, or is too large.
    """
    return KINDS[kind].make(unpacked(record, FILE_BYTES))


def sharing(kind: str, record: str) -> Generator[None, None, bytes]:
    """Return the same, made in a process of its own.

    Raises:
        FileError: it holds none, or takes too much.
    """
    return _apart(shared, kind, record, refused="This run takes too long to draw; share it as JSON.")


def reading(
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


def benchmark(file: str) -> Generator[None, None, Bench]:
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
