"""Output of commands: results in the page's colours and, while they run, progress on standard error.

Ctrl+C ends a long command early and keeps its finished results.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderableType, RenderHook
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from specdemo.cli.signals import on_interrupt
from specdemo.experiments.report import Report, write
from specdemo.experiments.report import Table as Listed
from specdemo.files import write_json
from specdemo.records import Comparison, Model, Run
from specdemo.summary import Figure, PieceKind, pieces, prompt_of, summarise
from specdemo.text import printable

STYLES: dict[PieceKind, str] = {
    "accepted": "underline green",
    "rejected": "strike dark_orange",
    "own": "bold blue",
}

_INTERVAL = "95 % interval"
_MORE = "--explain says why, with formulas."


class _Printable:
    """Whatever it holds, rendered with control characters and reordering marks of foreign text as escapes."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._content, options):
            yield Segment(text if control else printable(text, lines=True), style, control)


class _Hook(RenderHook):
    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_Printable(each) for each in renderables]


def safe_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that shows text as it is: neither markup such as [red], nor :emoji:, nor escape sequences."""
    made = Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)
    made.push_render_hook(_Hook())
    return made


def print_comparison(console: Console, comparison: Comparison, *, explained: bool = False) -> None:
    """Print both texts, the speculative one coloured, the conclusion and the figures; `explained` adds why."""
    prompt = Text(prompt_of(comparison), "dim")
    console.print(Panel(prompt + Text(comparison.plain.text), title="plain", title_align="left"))
    console.print(Panel(prompt + coloured(comparison.speculative), title="speculative", title_align="left"))
    console.print(legend(comparison))
    found = summarise(comparison)
    console.print(Text(found.line, style="bold"), Text(found.sentence))
    if found.certain:
        console.print(Text(found.certain))
    console.print(Text(f"{found.agreement.capitalize()}."))
    console.print(table(found.figures, formulas=explained))
    if explained:
        for paragraph in found.why:
            console.print(Text(paragraph))
    elif found.warnings:
        console.print(Text(found.warnings[0].reason, "dark_orange"))
    for note in (found.made_by, *(found.notes if explained else [_MORE])):
        console.print(Text(note, "dim"))


def coloured(run: Run) -> Text:
    """Return the run's text with each token in the style of its outcome, including rejected proposals."""
    text = Text()
    for piece in (piece for step in (run.prefill, *run.rounds) for piece in pieces(step)):
        crossed = piece.kind == "rejected"  # not every terminal can strike through
        text.append(f"~{piece.text}~" if crossed else piece.text, STYLES[piece.kind])
    return text


def legend(comparison: Comparison) -> Text:
    """Explain the styles, and name the source of the proposals."""
    text = Text.assemble(
        ("accepted proposal", STYLES["accepted"]), "  ", ("correction or bonus", STYLES["own"]), "  ",
        ("~rejected proposal~", STYLES["rejected"]),
    )  # fmt: skip
    return text.append(f"  (proposals: {comparison.trace_source})", "dim")


def print_report(console: Console, report: Report) -> None:
    """Print an experiment's conclusion, its tables and notes."""
    for sentence in report.opening:
        console.print(Text(sentence))
    for number, table in enumerate(report.tables.values()):
        console.print(_table(table if number else table._replace(title=report.title)))
    for note in report.notes:
        console.print(Text(note, "dim"))


def print_result(report: Report, path: Path | None, *, as_json: bool) -> None:
    """Print a report and its headline as JSON, or all of it as JSON. Write its files, if there is a path."""
    if as_json:
        write_json(report.data(), "-", indent=None)
    else:
        print_report(safe_console(), report)
        write_json(report.headline, "-", indent=None)
    if path is not None:
        write(report, path)


def _table(listed: Listed) -> Table:
    """Return a table whose title states once what all intervals are, since terminals are narrow."""
    columns = [Column(name, overflow="fold") for name in listed.columns]
    intervals = any(_INTERVAL in cell for row in listed.rows for cell in row)
    title = f"{listed.title} ({_INTERVAL}s in brackets)" if intervals else listed.title
    rows = Table(*columns, padding=(0, 1, 0, 0), box=None, header_style="bold", title=title)
    for row in listed.rows:
        rows.add_row(*(Text(cell.replace(f"{_INTERVAL} ", "")) for cell in row))
    return rows


def table(figures: Sequence[Figure], *, formulas: bool) -> Table:
    """Return every figure of the comparison, with formulas if requested."""
    result = Table("figure", "plain", "speculative", *["formula"] * formulas, box=None, header_style="bold")
    for figure in figures:
        row = (figure.name, figure.plain, figure.speculative)
        result.add_row(*row, *[Text(figure.formula, "dim")] * formulas)
    return result


_LINE_SECONDS = 10.0  # between two lines of progress if standard error is not a terminal, which is a log's pace


class Announce(Protocol):
    """Function that announces the current activity; a change of `detail` alone prints no new line."""

    def __call__(self, doing: str, detail: str = "") -> None:
        """Announce an activity."""


Show = Callable[[str, int, int | None, float | None], None]
"""Function that shows the current activity, finished runs, the total, and the estimated seconds left, if known."""


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that checks if Ctrl+C was pressed. The first press asks to stop; the second stops at once."""
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
    """Show the current activity on standard error: in a status line, or one line each if it is not a terminal."""
    shown = safe_console(stderr=True)
    if shown.is_terminal:
        with shown.status(Text(doing)) as status:
            yield lambda doing, detail="": status.update(Text(f"{doing}{detail}"))
        return
    last = ""

    def announce(doing: str, detail: str = "") -> None:
        nonlocal last
        if doing != last:
            print(f"specdemo: {printable(doing + detail)}", file=sys.stderr, flush=True)
        last = doing

    announce(doing)
    yield announce


def show_conversion(converting: Iterator[tuple[Model, float]]) -> None:
    """Show a conversion that yields the current model and its seconds."""
    for model, _ in converting:
        with announced(f"converting {model.name}, once") as announce:
            for model, seconds in converting:
                announce(f"converting {model.name}, once", f" ({seconds:.0f} s)")


@contextmanager
def progress_bar() -> Iterator[Show]:
    """Show a bar that disappears at the end, or occasional lines if standard error is not a terminal."""
    shown = safe_console(stderr=True)
    if not shown.is_terminal:
        yield _lines()
        return
    doing, left = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[left]"))
    columns = (doing, BarColumn(), MofNCompleteColumn(), left)
    with Progress(*columns, console=shown, transient=True) as progress:
        bar = progress.add_task("", total=None, left="")

        def show(doing: str, done: int, total: int | None, seconds: float | None) -> None:
            progress.update(bar, description=doing, completed=done, total=total, left=_left(seconds))

        yield show


def _lines() -> Show:
    """Return a function that prints a line for each new activity, otherwise at most every `_LINE_SECONDS`."""
    last, due = "", 0.0

    def show(doing: str, done: int, total: int | None, seconds: float | None) -> None:
        nonlocal last, due
        if doing == last and monotonic() < due:
            return
        last, due = doing, monotonic() + _LINE_SECONDS
        count = "" if total is None else f", {done} of {total}"
        left = "" if seconds is None else f", {_left(seconds)}"
        print(f"specdemo: {printable(doing)}{count}{left}", file=sys.stderr, flush=True)

    return show


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds // 60:.0f}:{seconds % 60:02.0f} left"
