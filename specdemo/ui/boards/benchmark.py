"""A benchmark as a board: charts, the table, and facts about the machine."""

import plotly.graph_objects as go
from markupsafe import Markup

from specdemo.bench import report
from specdemo.bench.results import Bench
from specdemo.ui.boards.sweep import board
from specdemo.ui.html.charts import base_figure, plain_line
from specdemo.ui.html.tables import table_html

_COLOURS = ("--sd-own", "--sd-accepted", "--sd-rejected", "--sd-plain", "--sd-refused", "--sd-mute", "--sd-ink")
_BARS = {"type": "data", "thickness": 1.5, "color": "var(--sd-ink)"}


def bench_board(result: Bench) -> str:
    """What a benchmark has found so far; an empty board before its first result."""
    if not result.rows:
        return board({}, {})
    lines = [note for note in report.notes(result) if note]
    html = {
        "table": str(table_html(report.COLUMNS, report.table(result))),
        "notes": str(Markup("").join(Markup("<p>{}</p>").format(line) for line in lines)),
    }
    speedups, lengths, *_ = report.charts(result)
    return board(html, {"speedup": _bars(speedups, "speedup"), "length": _bars(lengths, "τ")})


def _bars(chart: dict[str, object], title: str) -> go.Figure:
    figure = base_figure(barmode="group", hovermode="closest")
    series: list[dict[str, list[object]]] = chart["series"]  # type: ignore[assignment]
    for number, one in enumerate(series):
        figure.add_bar(
            x=one["x"],
            y=one["y"],
            name=one["name"],
            error_y=_BARS | {"array": one["spread"]} if "spread" in one else None,
            marker_color=f"var({_COLOURS[number % len(_COLOURS)]})",
            hovertext=one.get("text"),
        )
    plain_line(figure)
    figure.update_yaxes(title=title)
    return figure
