"""Output of commands: results in the page's colours and, while they run, progress on standard error."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from time import monotonic
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderableType, RenderHook
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from specdemo.cli.signals import on_interrupt
from specdemo.experiments.report import Report
from specdemo.experiments.report import Table as Listed
from specdemo.records import Comparison, Model, Run
from specdemo.results.summary import Figure, summarise
from specdemo.results.words import PieceKind, pieces, prompt_of
from specdemo.text import printable

STYLES: dict[PieceKind, str] = {
    "accepted": "underline green",
    "rejected": "strike dark_orange",
    "own": "bold blue",
}

_INTERVAL = "95 % interval"
_LINE_SECONDS = 10.0  # between two lines of progress if standard error is not a terminal, which is a log's pace
_MORE = "--explain says why, with formulas."


class _Printable:
    """Whatever it holds, with control characters and reordering marks of foreign text as escapes after layout."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._content, options):
            yield Segment(text if control else printable(text, lines=True), style, control)


class _Hook(RenderHook):
    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_Printable(each) for each in renderables]


def safe_console(*, stderr: bool = False) -> Console:
    """Return a console that shows text as it is: neither markup such as [red], nor :emoji:, nor escape sequences."""
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    made.push_render_hook(_Hook())
    return made


def print_comparison(console: Console, comparison: Comparison, *, explained: bool = False) -> None:
    prompt = Text(prompt_of(comparison), "dim")
    console.print(Panel(prompt + Text(comparison.plain.text), title="plain", title_align="left"))
    console.print(Panel(prompt + coloured(comparison.speculative), title="speculative", title_align="left"))
    console.print(legend(comparison))
    found = summarise(comparison)
    console.print(Text(found.line, style="bold"), Text(found.sentence))
    for sentence in filter(None, (found.certain, found.apart)):
        console.print(Text(sentence))
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
    text = Text.assemble(
        ("accepted proposal", STYLES["accepted"]), "  ", ("correction or bonus", STYLES["own"]), "  ",
        ("~rejected proposal~", STYLES["rejected"]),
    )  # fmt: skip
    return text.append(f"  (proposals: {comparison.trace_source})", "dim")


def print_report(report: Report) -> None:
    console = safe_console()
    for sentence in report.opening:
        console.print(Text(sentence))
    for number, table in enumerate(report.tables.values()):
        console.print(_table(table if number else table._replace(title=report.title)))
    for note in report.notes:
        console.print(Text(note, "dim"))


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
    result = Table("figure", "plain", "speculative", *["formula"] * formulas, box=None, header_style="bold")
    for figure in figures:
        row = (figure.name, figure.plain, figure.speculative)
        result.add_row(*row, *[Text(figure.formula, "dim")] * formulas)
    return result


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


class Show(Protocol):
    """Shows the current activity, what is done of the total, and the estimated seconds left."""

    def __call__(
        self, doing: str, done: int | None = None, total: int | None = None, left: float | None = None
    ) -> None: ...


@contextmanager
def progress(doing: str) -> Iterator[Show]:
    """Show progress on standard error: a bar that disappears at the end, or lines if it is not a terminal."""
    console = safe_console(stderr=True)
    if not console.is_terminal:
        show = _lines()
        show(doing)
        yield show
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task(doing, total=None)

        def update(doing: str, done: int | None = None, total: int | None = None, left: float | None = None) -> None:
            bars.update(bar, description=doing + _count(done, total, left), completed=done or 0, total=total)

        yield update


def _lines() -> Show:
    last, due = "", 0.0

    def show(doing: str, done: int | None = None, total: int | None = None, left: float | None = None) -> None:
        nonlocal last, due
        if doing == last and monotonic() < due:
            return
        last, due = doing, monotonic() + _LINE_SECONDS
        print(f"specdemo: {printable(doing)}{_count(done, total, left)}", file=sys.stderr, flush=True)

    return show


def _count(done: int | None, total: int | None, left: float | None) -> str:
    count = "" if done is None else f", {done} so far" if total is None else f", {done} of {total}"
    return count + ("" if left is None else f", {left // 60:.0f}:{left % 60:02.0f} left")


def show_conversion(converting: Iterator[tuple[Model, float]]) -> None:
    for model, _ in converting:
        with progress(f"converting {model.name}, once") as show:
            for model, _ in converting:
                show(f"converting {model.name}, once")
