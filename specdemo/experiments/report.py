"""Reports, the same for every experiment: on the page, in the terminal and as files.

The files are Markdown, CSV, JSON and one small HTML file that opens offline, light or dark.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import plotly.graph_objects as go
from jinja2 import Environment as Jinja
from jinja2 import StrictUndefined
from markupsafe import Markup

from specdemo.errors import UsageError, quoted
from specdemo.estimate import Interval
from specdemo.files import ASSETS, colours, write_json, write_text
from specdemo.measure import MEBIBYTE, MemoryUse, draft_extra
from specdemo.presentation.charts import base_figure, colour, plain_line
from specdemo.presentation.share import bundle
from specdemo.records import Environment

_TEMPLATE = ASSETS / "report.html"
_REACH = 2  # times the largest value: how far error bars may stretch an axis
_BESIDE = (".md", ".csv", ".html")


class Chart(NamedTuple):
    """A figure with its title and a sentence on how to read it."""

    title: str
    figure: go.Figure
    remark: str = ""


class Table(NamedTuple):
    """A table of strings."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    remark: str = ""


@dataclass(frozen=True)
class Report:
    """Findings of an experiment, for the page, the terminal and every file format.

    `opening` holds the sentences above the first table, the conclusion first; `notes` those below the last one.
    `data` returns everything measured and derived, JSON-serialisable; `headline` holds its main figures. `figures`
    are the first table's rows unrounded, all with the same keys. The page places charts and tables by name.
    """

    title: str
    opening: Sequence[str]
    charts: Mapping[str, Chart]
    tables: Mapping[str, Table]
    notes: Sequence[str]
    data: Callable[[], Mapping[str, Any]]
    headline: Mapping[str, Any]
    figures: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def to_markdown(report: Report) -> str:
    """Return the report as Markdown, without charts."""
    lines: list[str] = []
    for number, table in enumerate(report.tables.values()):
        lines += [*([f"## {table.title}", ""] if number else []), *_markdown(table), ""]
    begin = "\n\n".join(report.opening)
    return "\n".join([f"# {report.title}", "", begin, "", *lines, *report.notes]) + "\n"


def _markdown(table: Table) -> Iterator[str]:
    yield "| " + " | ".join(table.columns) + " |"
    yield "|---" * len(table.columns) + "|"
    for row in table.rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def to_csv(report: Report) -> str:
    """Return the first table's unrounded figures as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(report.figures[0]) if report.figures else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(report.figures)
    return out.getvalue()


def to_html(report: Report) -> str:
    """Return a self-contained HTML file with plots, tables and notes."""
    page = Jinja(autoescape=True, undefined=StrictUndefined).from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return page.render(
        title=report.title,
        light=colours(),
        dark=colours(dark=True),
        script=Markup(bundle("sketch.js")),
        opening=report.opening,
        plots=[(chart.title, name, _plot(chart.figure), chart.remark) for name, chart in report.charts.items()],
        tables=report.tables.values(),
        notes=filter(None, report.notes),
    )


def _plot(figure: go.Figure) -> Markup:
    """Return a figure as JSON that is safe inside a script."""
    return Markup(json.dumps(figure.to_plotly_json()).replace("<", "\\u003c"))


def write(report: Report, path: Path) -> list[Path]:
    """Write the JSON to this path and the other three files `beside` it; return all paths.

    Raises:
        SpecdemoError: a file cannot be written.
    """
    write_json(report.data(), path, indent=1)
    texts = {".md": to_markdown(report), ".csv": to_csv(report), ".html": to_html(report)}
    for ending, text in texts.items():
        write_text(text, beside(path, ending))
    return [path, *(beside(path, ending) for ending in texts)]


def beside(path: Path, ending: str) -> Path:
    """Return the path of a file next to the JSON at `path`, with `.json` replaced or the ending appended.

    Only `.json` is replaced, so that `run.v1` and `run.v2` do not share a file.

    Raises:
        UsageError: the JSON has the file extension of another report format.
    """
    if path.suffix.lower() in _BESIDE:
        raise UsageError(
            f"A file like {quoted(path.name)} is written beside the JSON; choose a path that ends in .json."
        )
    return path.with_name(path.name.removesuffix(".json") + ending)


# Shared by all reports.


def times(number: int, noun: str) -> str:
    """Return a count with its noun, such as "1 prompt" or "3 prompts"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def measured_on(date: str, environment: Environment | None) -> Iterator[str]:
    """Yield a sentence on the date, device and version of a measurement."""
    if environment is None:
        return
    threads = "" if environment.threads is None else f", {times(environment.threads, 'thread')}"
    version = "" if environment.remote else f", with OpenVINO GenAI {environment.openvino_genai}"
    yield f"Measured{f' on {date}' if date else ''} on {environment.device}{threads}{version}."


def memory_notes(uses: Sequence[MemoryUse]) -> Iterator[str]:
    """Yield the memory that each side takes, and the extra memory for speculation."""
    for use in uses:
        yield (
            f"Memory, {use.engine} {use.side}{f', {use.at_once} requests at once' if use.at_once > 1 else ''}: "
            f"{use.resident / MEBIBYTE:.0f} MiB resident, peak {use.peak / MEBIBYTE:.0f} MiB, beyond its size before "
            "loading, in a separate process that loads only what this side decodes with."
        )
    for engine in dict.fromkeys(use.engine for use in uses):
        extra = draft_extra(uses, engine, "resident")
        if extra is not None:
            yield (
                f"Speculation takes {extra / MEBIBYTE:.0f} MiB more resident memory than plain decoding with "
                f"{engine}; each process holds the target once."
            )


class Line(NamedTuple):
    """A line of a chart: its points, their intervals and hover texts."""

    name: str
    x: Sequence[Any]
    y: Sequence[Interval]
    hover: Sequence[str] = ()


def whiskers(values: Sequence[Interval], **style: Any) -> dict[str, Any] | None:
    """Return error bars from intervals; None if any of them has too few runs.

    Zero-height bars would suggest that there is no uncertainty.
    """
    if not values or not all(value.has_interval for value in values):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [(value.high or 0) - value.middle for value in values],
        "arrayminus": [value.middle - (value.low or 0) for value in values],
        "thickness": 1.5,
        **style,
    }


def fit_axis(figure: go.Figure) -> None:
    """Limit the y axis to twice the largest value if an interval reaches further, so that values stay readable.

    A long error bar then leaves the chart; hovering shows the whole interval.
    """
    marks = [trace for trace in figure.data if trace.error_y.array is not None]
    ends = [value + up for trace in marks for value, up in zip(trace.y, trace.error_y.array, strict=True)]
    most = _REACH * max((value for trace in marks for value in trace.y), default=0)
    if ends and max(ends) > most:
        figure.update_yaxes(range=[0, most])


def speedup_lines(lines: Sequence[Line], x_title: str, *, y_title: str = "speedup", plain: bool = True) -> go.Figure:
    """Plot `lines` with error bars, and a reference line for plain decoding."""
    figure = base_figure(hovermode="closest", showlegend=len(lines) > 1)
    for number, line in enumerate(lines):
        figure.add_scatter(
            x=list(line.x),
            y=[value.middle for value in line.y],
            text=list(line.hover or map(str, line.y)),
            name=line.name,
            mode="lines+markers",
            line={"color": colour(number)},
            error_y=whiskers(line.y, color=colour(number)),
            hovertemplate="%{x}: %{text}",
        )
    figure.update_xaxes(title=x_title)
    figure.update_yaxes(title=y_title)
    if plain:
        plain_line(figure)
    fit_axis(figure)
    return figure
