"""Boards: the content of each place, as HTML or Plotly figures; and reports of experiments as boards."""

import json
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from markupsafe import Markup

from specdemo.experiments.plan import Result
from specdemo.experiments.report import Report
from specdemo.ui.html.parts import table_html

_CARD = Markup(
    '<section class="card"><h2 data-place="{name}-title" hidden></h2>'
    '<div class="{kind}" data-place="{name}" hidden></div>'
    '<p class="remark" data-place="{name}-remark" hidden></p></section>'
)
_TEXT = Markup('<section class="card"><h2>{title}</h2><div data-place="{name}" hidden></div></section>')
_BOARD = Markup('<div class="board race">{opening}<div class="charts">{charts}</div>{tables}{notes}</div>')


def board(html: Mapping[str, str], charts: Mapping[str, go.Figure | None], *, whole: bool = True) -> str:
    """A board's update as JSON. A `whole` one empties the places it does not name."""
    figures = {place: figure.to_plotly_json() for place, figure in charts.items() if figure is not None}
    return json.dumps({"html": html, "charts": figures, "whole": whole}, ensure_ascii=False)


def report_template(charts: Sequence[str], tables: Sequence[str]) -> str:
    """A board with places for these charts and tables of a report, its conclusion above and its notes below."""

    def cards(names: Sequence[str], kind: str) -> Markup:
        return Markup("").join(_CARD.format(name=name, kind=kind) for name in names)

    return _BOARD.format(
        opening=_TEXT.format(title="Conclusion", name="opening"),
        charts=cards(charts, "chart"),
        tables=cards(tables, "scroll"),
        notes=_TEXT.format(title="About these figures", name="notes"),
    )


EMPTY = board({}, {})


def result_board(found: Result) -> str:
    """What an experiment found so far; an empty board before its first row."""
    return report_board(found.report()) if found.measured else EMPTY


def report_board(report: Report) -> str:
    """A report as a board."""
    html = {"opening": _paragraphs(report.opening), "notes": _paragraphs(report.notes)}
    for name, table in report.tables.items():
        html |= _around(name, table.title, table.remark)
        html[name] = str(table_html(table.columns, table.rows))
    for name, chart in report.charts.items():
        html |= _around(name, chart.title, chart.remark)
    return board(html, {name: chart.figure for name, chart in report.charts.items()})


def _around(name: str, title: str, remark: str) -> dict[str, str]:
    return {f"{name}-title": str(Markup.escape(title)), f"{name}-remark": str(Markup.escape(remark))}


def _paragraphs(lines: Sequence[str]) -> str:
    return str(Markup("").join(Markup("<p>{}</p>").format(line) for line in lines if line))
