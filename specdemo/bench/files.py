"""Reports as files: Markdown, CSV, JSON, and one small HTML file that opens offline, light or dark."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import plotly.graph_objects as go
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from specdemo.errors import UsageError, quoted
from specdemo.output import write_json, write_text
from specdemo.presentation.scripts import bundle
from specdemo.resources import ASSETS, colours

_TEMPLATE = ASSETS / "report.html"
_BESIDE = (".md", ".csv", ".html")


class Chart(NamedTuple):
    """A figure with its title."""

    title: str
    figure: go.Figure


class Table(NamedTuple):
    """A further table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Report:
    """What a measurement found, in words, figures and charts, for every kind of file and for the terminal.

    `opening` are the sentences above the table, `notes` those below it. `data` makes everything measured and derived,
    JSON-serialisable; `figures` are the table's rows unrounded, all with the same keys; `more` are further
    tables by the place that a page has for them.
    """

    title: str
    opening: Sequence[str]
    charts: Mapping[str, Chart]
    columns: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str]
    data: Callable[[], Mapping[str, Any]]
    figures: Sequence[Mapping[str, Any]]
    more: Mapping[str, Table] = field(default_factory=dict)


def to_markdown(report: Report) -> str:
    """The table, and what else was measured, in sentences."""
    begin = "\n\n".join(report.opening)
    more = [line for each in report.more.values() for line in (f"## {each.title}", "", *_table(each), "")]
    lines = [*_table(Table(report.title, report.columns, report.rows)), "", *more]
    return "\n".join([f"# {report.title}", "", begin, "", *lines, *report.notes]) + "\n"


def _table(table: Table) -> Iterator[str]:
    yield "| " + " | ".join(table.columns) + " |"
    yield "|---" * len(table.columns) + "|"
    for row in table.rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def to_csv(report: Report) -> str:
    """The table's figures unrounded, one row per line."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(report.figures[0]) if report.figures else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(report.figures)
    return out.getvalue()


def to_html(report: Report) -> str:
    """One self-contained file with plots, table and notes."""
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return page.render(
        title=report.title,
        light=colours(),
        dark=colours(dark=True),
        script=Markup(bundle("sketch.js")),
        opening=report.opening,
        plots=[(chart.title, name, _plot(chart.figure)) for name, chart in report.charts.items()],
        tables=[Table("", report.columns, report.rows), *report.more.values()],
        notes=filter(None, report.notes),
    )


def _plot(figure: go.Figure) -> Markup:
    """A figure as JSON that may stand in a script."""
    return Markup(json.dumps(figure.to_plotly_json()).replace("<", "\\u003c"))


def write(report: Report, path: Path) -> list[Path]:
    """Write all four files, the JSON at this path, the others `beside` it; return their paths.

    Raises:
        SpecdemoError: one cannot be written.
    """
    write_json(report.data(), path, indent=1)
    texts = {".md": to_markdown(report), ".csv": to_csv(report), ".html": to_html(report)}
    for ending, text in texts.items():
        write_text(text, beside(path, ending))
    return [path, *(beside(path, ending) for ending in texts)]


def beside(path: Path, ending: str) -> Path:
    """The path of a file that accompanies the JSON at `path`: `.json` is replaced by another ending, or one is added.

    Only `.json` is replaced, so that `run.v1` and `run.v2` do not share a file.

    Raises:
        UsageError: the JSON's name is that of another kind of file written beside it.
    """
    if path.suffix.lower() in _BESIDE:
        raise UsageError(
            f"A file like {quoted(path.name)} is written beside the JSON; choose a path that ends in .json."
        )
    return path.with_name(path.name.removesuffix(".json") + ending)
