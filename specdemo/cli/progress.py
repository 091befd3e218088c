"""What long commands share: progress on standard error, and a Ctrl+C that keeps finished results."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from time import monotonic
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from specdemo.cli.signals import on_interrupt
from specdemo.records import Model

LINE_SECONDS = 10.0
"""Between two lines of progress where standard error is no terminal."""


class Announce(Protocol):
    """Says what is being done; a `detail` changes often and is no reason for another line."""

    def __call__(self, doing: str, detail: str = "") -> None:
        """Say it."""


Show = Callable[[str, int, int | None, float | None], None]
"""Shows what is being done, how many runs are done, the total, and the seconds left, if there is an estimate."""


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """A function that returns whether Ctrl+C was pressed. The first press asks to stop; the second stops at once."""
    asked = Event()

    def ask(*_: Any) -> None:
        on_interrupt(before)
        asked.set()

    before = on_interrupt(ask)
    try:
        yield asked.is_set
    finally:
        on_interrupt(before)


@contextmanager
def announced(doing: str) -> Iterator[Announce]:
    """Say on standard error what is being done: in a line that changes, or one for each where it is no terminal."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(doing) as status:
            yield lambda doing, detail="": status.update(f"{doing}{detail}")
        return
    last = ""

    def announce(doing: str, detail: str = "") -> None:
        nonlocal last
        if doing != last:
            print(f"specdemo: {doing}{detail}", file=sys.stderr, flush=True)
        last = doing

    announce(doing)
    yield announce


def show_conversion(converting: Iterator[tuple[Model, float]]) -> None:
    """Show a conversion that yields the model under way and its seconds.

    Raises:
        SpecdemoError: it cannot be converted.
    """
    for model, seconds in converting:
        with announced(f"converting {model.name}, once") as announce:
            announce(f"converting {model.name}, once", f" ({seconds:.0f} s)")
            for model, seconds in converting:
                announce(f"converting {model.name}, once", f" ({seconds:.0f} s)")


@contextmanager
def progress_bar() -> Iterator[Show]:
    """A bar that disappears at the end; where standard error is no terminal, a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=None, left="")

        def show(doing: str, done: int, total: int | None, seconds: float | None) -> None:
            progress.update(bar, description=doing, completed=done, total=total, left=_left(seconds))

        yield show


def _lines() -> Show:
    """Prints a line at once where something else begins, else at most every `LINE_SECONDS`."""
    last, due = "", 0.0

    def show(doing: str, done: int, total: int | None, seconds: float | None) -> None:
        nonlocal last, due
        if doing == last and monotonic() < due:
            return
        last, due = doing, monotonic() + LINE_SECONDS
        count = "" if total is None else f", {done} of {total}"
        left = "" if seconds is None else f", {_left(seconds)}"
        print(f"specdemo: {doing}{count}{left}", file=sys.stderr, flush=True)

    return show


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds // 60:.0f}:{seconds % 60:02.0f} left"
