"""What long commands share: a progress bar on standard error, and a Ctrl+C that keeps finished results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from specdemo.cli.signals import on_interrupt
from specdemo.records import Model

Show = Callable[[str, int, int | None, float | None], None]
"""Shows what is being done, how many runs are done, the total, and the seconds left, where known."""


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """A function that tells whether Ctrl+C was pressed. The first press asks to stop; the second stops at once."""
    asked = Event()

    def ask(*_: Any) -> None:
        on_interrupt(before)
        asked.set()

    before = on_interrupt(ask)
    try:
        yield asked.is_set
    finally:
        on_interrupt(before)


def show_conversion(converting: Iterator[tuple[Model, float]]) -> None:
    """Show a conversion that yields the model under way and its seconds.

    Raises:
        SpecdemoError: it cannot be converted.
    """
    with Console(stderr=True).status("") as status:
        for model, seconds in converting:
            status.update(f"converting {model.name}, once ({seconds:.0f} s)")


@contextmanager
def progress_bar() -> Iterator[Show]:
    """A bar that disappears at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=None, left="")

        def show(doing: str, done: int, total: int | None, seconds: float | None) -> None:
            left = "" if seconds is None else f"{seconds // 60:.0f}:{seconds % 60:02.0f} left"
            progress.update(bar, description=doing, completed=done, total=total, left=left)

        yield show
