"""Output of commands: results in the page's colours, and progress on standard error."""

import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from time import monotonic
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderHook
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from specdemo.cli.signals import on_signal
from specdemo.experiments.report import Part, Report
from specdemo.files import colours
from specdemo.records import SIDES, Comparison, Model
from specdemo.results.estimate import INTERVAL
from specdemo.results.summary import summarise
from specdemo.results.words import PieceKind, pieces, prompt_of
from specdemo.text import printable

_COLOURS = colours(dark=True)  # the page's; readable on light backgrounds, too
STYLES: dict[PieceKind, str] = {
    "accepted": f"underline {_COLOURS['accepted']}",
    "rejected": f"strike {_COLOURS['rejected']}",
    "target": f"bold {_COLOURS['target']}",
    "plain": "",
}
_LINE_SECONDS = 10.0  # between lines of progress in a log, if standard error is not a terminal
_REDRAW_SECONDS = 0.1  # between changes of the line in a terminal


class _Printable:
    """Shows control characters and reordering marks in foreign text as escapes, after layout."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._content, options):
            yield Segment(text if control else printable(text, lines=True), style, control)


class _Hook(RenderHook):
    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_Printable(renderable) for renderable in renderables]


def safe_console() -> Console:
    """Return a console that prints text literally: no markup such as [red], no :emoji:, no escape sequences."""
    console = Console(markup=False, emoji=False, highlight=False)
    console.push_render_hook(_Hook())
    return console


def print_race(console: Console, comparison: Comparison) -> None:
    for side in SIDES:
        run = comparison.side(side)
        text = Text.assemble((f"{side}: ", "bold"), (prompt_of(comparison), "dim"))
        for step in (run.prefill, *run.rounds):
            for piece in pieces(step, side):
                # not every terminal can strike through
                text.append(f"~{piece.text}~" if piece.kind == "rejected" else piece.text, STYLES[piece.kind])
        console.print(text, soft_wrap=not console.is_terminal)
    legend = Text.assemble(
        ("accepted proposal", STYLES["accepted"]), "  ", ("correction or bonus", STYLES["target"]), "  ",
        ("~rejected proposal~", STYLES["rejected"]), (f"  (proposals: {comparison.trace_source})", "dim"),
    )  # fmt: skip
    console.print(legend)
    console.print(Text(summarise(comparison).line, "bold"), soft_wrap=True)


def print_figures(console: Console, comparison: Comparison, *, explained: bool = False) -> None:
    summary = summarise(comparison)
    agreement = f"{summary.agreement.capitalize()}."
    for sentence in filter(None, (summary.sentence, summary.certain, agreement)):
        console.print(Text(sentence))
    table = Table("figure", "plain", "speculative", *["formula"] * explained, box=None, header_style="bold")
    for figure in summary.figures:
        table.add_row(figure.name, figure.plain, figure.speculative, *[Text(figure.formula, "dim")] * explained)
    console.print(table)
    for paragraph in summary.why if explained else ():
        console.print(Text(paragraph))
    if summary.warnings and not explained:
        console.print(Text(summary.warnings[0].reason, "dark_orange"))
    for note in (summary.made_by, *(summary.notes if explained else ["--explain says why, with formulas."])):
        console.print(Text(note, "dim"))


def print_report(report: Report) -> None:
    console = safe_console()
    for sentence in report.opening:
        console.print(Text(sentence))
    for table in report.tables:
        console.print(_table(table))
    for note in report.notes:
        console.print(Text(note, "dim"))


def _table(content: Part) -> Table:
    """Return a table whose title explains the brackets, instead of each cell: terminals are narrow."""
    columns = [Column(name, overflow="fold") for name in content.columns]
    intervals = any(INTERVAL in cell for row in content.rows for cell in row)
    title = f"{content.title} ({INTERVAL}s in brackets)" if intervals else content.title
    table = Table(*columns, padding=(0, 1, 0, 0), box=None, header_style="bold", title=title)
    for row in content.rows:
        table.add_row(*(Text(cell.replace(f"{INTERVAL} ", "")) for cell in row))
    return table


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that checks for Ctrl+C or SIGTERM. The first asks to stop; the second stops at once."""
    received, before = Event(), dict[signal.Signals, Any]()

    def restore() -> None:
        for number, handler in before.items():
            on_signal(number, handler)

    def stop(*_: Any) -> None:
        restore()
        received.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = on_signal(number, stop)
    try:
        yield received.is_set
    finally:
        restore()


@contextmanager
def progress(doing: str) -> Iterator[Callable[..., None]]:
    """Yield a function that shows the current activity, and details of it, on standard error: a line that changes, or
    lines if it is not a terminal. Nothing is drawn in a thread, which would cost time on the clocks.
    """
    terminal, last, due = sys.stderr.isatty(), "", 0.0

    def show(doing: str, details: str = "") -> None:
        nonlocal last, due
        if doing == last and monotonic() < due:
            return
        last, due = doing, monotonic() + (_REDRAW_SECONDS if terminal else _LINE_SECONDS)
        text = printable(doing + details)
        if terminal:
            text = text[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)  # erases the line first
        else:
            print(f"specdemo: {text}", file=sys.stderr, flush=True)

    show(doing)
    try:
        yield show
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def show_conversion(converting: Iterator[tuple[Model, float]]) -> None:
    for first, _ in converting:
        with progress(f"converting {first.name}, once") as show:
            for model, share in converting:
                show(f"converting {model.name}, once", f", {share:.0%}")
