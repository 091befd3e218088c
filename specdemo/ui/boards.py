"""Boards of reports: texts, tables and charts as data, which `board.js` draws."""

import json
from typing import Any

from specdemo.experiments import Report

BOARD = '<div class="board race"></div>'
EMPTY = "[]"

Part = dict[str, Any]
"""A part of a board: any of `title`, `paragraphs`, `columns` and `rows` of a table, `figure`, and `remark`."""


def board(*parts: Part) -> str:
    """Return a board's update: its parts as JSON, each shown on a card of its own."""
    return json.dumps(parts, ensure_ascii=False)


def report_board(report: Report) -> str:
    """Return a report as a board."""
    charts = [
        {"title": chart.title, "figure": chart.figure, "remark": chart.remark} for chart in report.charts.values()
    ]
    tables = [
        {"title": table.title, "columns": list(table.columns), "rows": list(table.rows), "remark": table.remark}
        for table in report.tables.values()
    ]
    notes = {"title": "About these figures", "paragraphs": list(filter(None, report.notes))}
    return board({"title": "Conclusion", "paragraphs": list(filter(None, report.opening))}, *charts, *tables, notes)
