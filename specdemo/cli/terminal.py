"""Comparisons, sweeps and benchmarks for a terminal: the page's colours, with rich."""

from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from specdemo.experiments.report import Report, write
from specdemo.experiments.report import Table as Listed
from specdemo.files import write_json
from specdemo.presentation import explain
from specdemo.presentation.figures import figures
from specdemo.presentation.verdict import verdict
from specdemo.presentation.wording import PieceKind, pieces_of, prompt_of
from specdemo.records import Comparison, Run

STYLES: dict[PieceKind, str] = {
    "accepted": "underline green",
    "rejected": "strike dark_orange",
    "own": "bold blue",
}
_SAME = ("target", "draft")  # in every row of a report, and in its title

_MORE = "--explain says why, with formulas."


def print_comparison(console: Console, comparison: Comparison, *, explained: bool = False) -> None:
    """Both texts, the speculative one coloured, the conclusion, and the figures; `explained`: why, with formulas."""
    prompt = Text(prompt_of(comparison), "dim")
    console.print(Panel(prompt + Text(comparison.plain.text), title="plain", title_align="left"))
    console.print(Panel(prompt + coloured(comparison.speculative), title="speculative", title_align="left"))
    console.print(legend(comparison))
    conclusion = verdict(comparison)
    beside = filter(None, (conclusion.difference, conclusion.ceiling))
    console.print(
        Text(conclusion.headline + ".", style="bold"), Text(conclusion.sentence), *(f"({each})" for each in beside)
    )
    if comparison.both:
        console.print(Text(f"{explain.agreement(comparison).capitalize()}."))
    console.print(table(comparison, formulas=explained))
    if explained:
        for paragraph in conclusion.why:
            console.print(Text(paragraph))
    elif conclusion.doubt is not None:
        console.print(Text(conclusion.doubt, "dark_orange"))
    for note in (explain.made_by(comparison), *(explain.notes(comparison) if explained else [_MORE])):
        console.print(Text(note, "dim"))


def coloured(run: Run) -> Text:
    """The run's text with each token in the style of its verdict; rejected proposals stand in their place."""
    text = Text()
    for piece in pieces_of(run):
        crossed = piece.kind == "rejected"  # not every terminal strikes through
        text.append(f"~{piece.text}~" if crossed else piece.text, STYLES[piece.kind])
    return text


def legend(comparison: Comparison) -> Text:
    """What the styles mean, and where the proposals come from."""
    text = Text.assemble(
        ("accepted draft", STYLES["accepted"]), "  ", ("target's own", STYLES["own"]), "  ",
        ("~rejected draft~", STYLES["rejected"]),
    )  # fmt: skip
    return text.append(f"  (proposals: {comparison.trace_source})", "dim")


def print_report(console: Console, report: Report) -> None:
    """What an experiment found: its conclusion, its tables, and what they are based on."""
    for sentence in report.opening:
        console.print(Text(sentence))
    for number, table in enumerate(report.tables.values()):
        shown = [index for index, column in enumerate(table.columns) if column not in _SAME]
        rows = [tuple(row[index] for index in shown) for row in table.rows]
        title = table.title if number else report.title
        console.print(_table(Listed(title, [table.columns[index] for index in shown], rows)))
    for note in report.notes:
        console.print(Text(note, "dim"))


def print_result(report: Report, path: Path | None, *, as_json: bool) -> None:
    """Print a report, and its headline as JSON; or all of it as JSON. Write its files, if there is a path."""
    if as_json:
        write_json(report.data(), "-", indent=None)
    else:
        print_report(Console(), report)
        write_json(report.headline, "-", indent=None)
    if path is not None:
        write(report, path)


def _table(listed: Listed) -> Table:
    columns = [Column(name, overflow="fold") for name in listed.columns]
    rows = Table(*columns, padding=(0, 1, 0, 0), box=None, header_style="bold", title=listed.title)
    for row in listed.rows:
        rows.add_row(*map(Text, row))
    return rows


def table(comparison: Comparison, *, formulas: bool) -> Table:
    """Every figure of the comparison, with its formula if they are wanted."""
    result = Table("figure", "plain", "speculative", *["formula"] * formulas, box=None, header_style="bold")
    for figure in figures(comparison):
        result.add_row(*figure[:3], *[Text(figure.formula, "dim")] * formulas)
    return result
