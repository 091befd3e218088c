"""Reports as boards: charts, tables, and what they are based on."""

from collections.abc import Sequence

from markupsafe import Markup

from specdemo.bench.files import Report
from specdemo.ui.boards.sweep import board
from specdemo.ui.html.tables import table_html


def report_board(report: Report | None) -> str:
    """What was found so far; an empty board before the first result."""
    if report is None:
        return board({}, {})
    html = {
        "opening": _paragraphs(report.opening),
        "table": str(table_html(report.columns, report.rows)),
        "notes": _paragraphs([note for note in report.notes if note]),
    }
    html |= {place: str(table_html(table.columns, table.rows)) for place, table in report.more.items()}
    return board(html, {place: chart.figure for place, chart in report.charts.items()})


def _paragraphs(lines: Sequence[str]) -> str:
    return str(Markup("").join(Markup("<p>{}</p>").format(line) for line in lines))
