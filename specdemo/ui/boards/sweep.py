"""Sweeps as boards: the content of each place, as HTML or Plotly figures."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from specdemo.analysis.predict import Prediction
from specdemo.measure.recommend import Point
from specdemo.measure.sweep import COLUMNS, Sweep, remarks, table
from specdemo.presentation.plotting import base_figure, plain_line
from specdemo.records import ModelPair
from specdemo.strategies import ENGINES, EngineName
from specdemo.ui.html.tables import table_html


def board(html: Mapping[str, str], charts: Mapping[str, go.Figure | None], *, whole: bool = True) -> str:
    """A board's update as JSON. A `whole` one empties the places it does not name."""
    figures = {place: figure.to_plotly_json() for place, figure in charts.items() if figure is not None}
    return json.dumps({"html": html, "charts": figures, "whole": whole}, ensure_ascii=False)


def sweep_board(sweep: Sweep) -> str:
    """Everything a sweep has found so far; an empty board before its first result."""
    if not sweep.points:
        return board({}, {})
    constant = [point for point in sweep.points if point.candidate.kind == "lookahead"]
    others = [point for point in sweep.points if point.candidate.kind != "lookahead"]
    timed = any(point.draft_share is not None for point in sweep.points)
    html = {
        "recommendation": str(Markup("<p><b>{}</b></p>").format(sweep.recommendation.sentence)),
        "caption": str(Markup("").join(Markup("<p>{}</p>").format(remark) for remark in remarks(sweep))),
        "table": str(table_html(COLUMNS, table(sweep))),
    }
    charts = {
        "speedup": _speedup_figure(constant, sweep.prediction) if constant else None,
        "policies": _policies_figure(others) if others else None,
        "acceptance": _acceptance_figure(constant) if constant else None,
        "shares": _shares_figure(sweep.points) if timed else None,
    }
    return board(html, charts)


def caption(pair: ModelPair, engine: EngineName) -> str:
    """What a board's figures are about."""
    return str(Markup("<p>{}</p>").format(f"{pair.name} · {ENGINES[engine].words}"))


def _intervals(points: Sequence[Point], **style: Any) -> dict[str, Any] | None:
    """Error bars from the bootstrap intervals; none while there are too few runs for one of them.

    Bars of no height would claim that there is no uncertainty.
    """
    ends = [(point.speedup.low, point.speedup.middle, point.speedup.high) for point in points]
    above = [high - middle for _, middle, high in ends if high is not None]
    below = [middle - low for low, middle, _ in ends if low is not None]
    if len(above) < len(points):
        return None
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5, **style}


def _hover(points: Sequence[Point]) -> list[str]:
    """A speedup means little without whether the outputs were identical."""
    return [f"{point.speedup}, outputs {'identical' if point.identical else 'differ'}" for point in points]


def _speedup_figure(points: Sequence[Point], prediction: Prediction | None) -> go.Figure:
    figure = base_figure(hovermode="closest")
    if prediction is not None:
        curves(figure, prediction)
    figure.add_scatter(
        x=[point.candidate.value for point in points],
        y=[point.speedup.middle for point in points],
        error_y=_intervals(points),
        text=_hover(points),
        name="measured",
        mode="markers",
        marker={"color": "var(--sd-accepted)", "size": 9},
        hovertemplate="lookahead %{x}: %{text}",
    )
    plain_line(figure)
    figure.update_xaxes(title="lookahead γ")
    figure.update_yaxes(title="speedup")
    return figure


def curves(figure: go.Figure, prediction: Prediction) -> None:
    """Add the predicted speedups and the textbook's."""
    for name, values, dash in (
        ("predicted", prediction.predicted, "solid"),
        ("textbook, v = 1", prediction.textbook, "dot"),
    ):
        line = {"color": "var(--sd-own)" if dash == "solid" else "var(--sd-plain)", "dash": dash}
        lookaheads = list(range(1, len(values) + 1))
        figure.add_scatter(
            x=lookaheads, y=list(values), name=name, mode="lines", line=line, hovertemplate="%{y:.2f}×"
        )


def _policies_figure(points: Sequence[Point]) -> go.Figure:
    figure = base_figure(showlegend=False, hovermode="closest")
    figure.add_bar(
        x=[point.candidate.name for point in points],
        y=[point.speedup.middle for point in points],
        error_y=_intervals(points, color="var(--sd-ink)"),
        marker_color="var(--sd-own)",
        text=_hover(points),
        textposition="none",
        hovertemplate="%{x}: %{text}<extra></extra>",
    )
    plain_line(figure)
    figure.update_yaxes(title="speedup")
    return figure


def _acceptance_figure(points: Sequence[Point]) -> go.Figure:
    figure = base_figure()
    lookaheads = [point.candidate.value for point in points]
    style: dict[str, Any] = {"mode": "lines+markers"}
    rates = [point.acceptance_rate for point in points]
    lengths = [point.mean_accepted_length for point in points]
    figure.add_scatter(x=lookaheads, y=lengths, name="τ", line={"color": "var(--sd-accepted)"}, **style)
    figure.add_scatter(x=lookaheads, y=rates, name="α", line={"color": "var(--sd-own)", "dash": "dot"}, **style)
    figure.update_xaxes(title="lookahead γ")
    return figure


def _shares_figure(points: Sequence[Point]) -> go.Figure:
    figure = base_figure(barmode="stack", hovermode="x")
    names = [point.candidate.name.removeprefix("lookahead ") for point in points]
    for name, colour, shares in (
        ("draft", "--sd-refused", [point.draft_share for point in points]),
        ("verify", "--sd-accepted", [point.verify_share for point in points]),
        ("other", "--sd-plain", [point.other_share for point in points]),
    ):
        figure.add_bar(x=names, y=shares, name=name, marker_color=f"var({colour})", hovertemplate="%{y:.0%}")
    figure.update_xaxes(type="category")
    figure.update_yaxes(tickformat=".0%", range=[0, 1])
    return figure
