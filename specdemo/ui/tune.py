"""Sweeps, step costs and predictions as boards: what stands in each place, as HTML and as Plotly figures."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from specdemo.figures import percent
from specdemo.predict import FORMULAS, Prediction, predict
from specdemo.recommendation import Point
from specdemo.records import Costs
from specdemo.settings import Drafter
from specdemo.sweep import COLUMNS, Sweep, table
from specdemo.ui.charts import base_figure
from specdemo.ui.tables import table_html

_SENTENCE = Markup("<p><b>{}</b></p>")
_COLOURS = ("--sd-own", "--sd-rejected", "--sd-accepted", "--sd-plain")


def board(html: Mapping[str, str], charts: Mapping[str, go.Figure | None]) -> str:
    """A board's update as JSON; charts that are None keep what they show."""
    figures = {place: figure.to_plotly_json() for place, figure in charts.items() if figure is not None}
    return json.dumps({"html": html, "charts": figures}, ensure_ascii=False)


def sweep_board(sweep: Sweep) -> str:
    """All that a sweep has found so far."""
    constant = [point for point in sweep.points if point.candidate.kind == "lookahead"]
    others = [point for point in sweep.points if point.candidate.kind != "lookahead"]
    html = {
        "recommendation": str(Markup("<p><b>{}</b></p>").format(sweep.recommendation.sentence))
        if sweep.points
        else "",
        "table": str(table_html(COLUMNS, table(sweep))) if sweep.points else "",
    }
    charts = {
        "speedup": _speedup_figure(constant, sweep.prediction) if constant else None,
        "policies": _policies_figure(others) if others else None,
        "acceptance": _acceptance_figure(constant) if constant else None,
        "shares": _shares_figure(sweep.points)
        if any(point.draft_share is not None for point in sweep.points)
        else None,
    }
    return board(html, charts)


def _intervals(points: Sequence[Point]) -> dict[str, Any]:
    """Error bars from the bootstrap intervals."""
    above = [(point.speedup.high or point.speedup.middle) - point.speedup.middle for point in points]
    below = [point.speedup.middle - (point.speedup.low or point.speedup.middle) for point in points]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5}


def _speedup_figure(points: Sequence[Point], prediction: Prediction | None) -> go.Figure:
    figure = base_figure(hovermode="closest")
    if prediction is not None:
        _curves(figure, prediction)
    figure.add_scatter(
        x=[point.candidate.value for point in points],
        y=[point.speedup.middle for point in points],
        error_y=_intervals(points),
        text=[f"{point.speedup}, outputs {'identical' if point.identical else 'differ'}" for point in points],
        name="measured",
        mode="markers",
        marker={"color": "var(--sd-accepted)", "size": 9},
        hovertemplate="lookahead %{x}: %{text}",
    )
    _plain_line(figure)
    figure.update_xaxes(title="lookahead γ")
    figure.update_yaxes(title="speedup")
    return figure


def _curves(figure: go.Figure, prediction: Prediction) -> None:
    for name, values, dash in (
        ("predicted", prediction.predicted, "solid"),
        ("textbook, v = 1", prediction.textbook, "dot"),
    ):
        line = {"color": "var(--sd-own)" if dash == "solid" else "var(--sd-plain)", "dash": dash}
        lookaheads = list(range(1, len(values) + 1))
        figure.add_scatter(
            x=lookaheads, y=list(values), name=name, mode="lines", line=line, hovertemplate="%{y:.2f}×"
        )


def _plain_line(figure: go.Figure) -> None:
    figure.add_hline(y=1, line={"color": "var(--sd-ink)", "dash": "dash", "width": 1})


def _policies_figure(points: Sequence[Point]) -> go.Figure:
    figure = base_figure(showlegend=False, hovermode="closest")
    figure.add_bar(
        x=[point.candidate.name for point in points],
        y=[point.speedup.middle for point in points],
        error_y=_intervals(points),
        marker_color="var(--sd-own)",
        hovertemplate="%{x}: %{y:.2f}×",
    )
    _plain_line(figure)
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


def _shares_figure(points: Sequence[Point]) -> go.Figure | None:
    if not points:
        return None
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


def prediction_board(costs: Costs, acceptance: float, drafter: Drafter) -> str:
    """Only what depends on the acceptance."""
    html, figure = _expectation(costs, acceptance, drafter)
    return board({"expectation": html}, {"prediction": figure})


def costs_board(costs: Costs, acceptance: float, drafter: Drafter) -> str:
    """Measured step costs, and what they let one expect at this acceptance."""
    html, figure = _expectation(costs, acceptance, drafter)
    texts = {"expectation": html, "change": _length_change(costs)}
    return board(texts, {"verify": _verify_figure(costs), "prediction": figure})


def _length_change(costs: Costs) -> str:
    if not costs.length_change:
        return ""
    share = percent(costs.length_change / costs.plain_step)
    return str(
        Markup(
            "A pass takes {} ms more ({} of a plain step) if the one before it had another length, since every "
            "operation is prepared anew. Policies that vary the lookahead pay that; the traced engine keeps a length "
            "where superfluous tokens cost less."
        ).format(f"{costs.length_change * 1000:.2f}", share)
    )


def _verify_figure(costs: Costs) -> go.Figure:
    figure = base_figure()
    for steps, colour in zip(costs.contexts, _COLOURS, strict=False):
        one = steps.passes[0].middle
        middles = [spread.middle / one for spread in steps.passes]
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [(spread.high - spread.middle) / one for spread in steps.passes],
            "arrayminus": [(spread.middle - spread.low) / one for spread in steps.passes],
            "thickness": 1,
        }
        figure.add_scatter(
            x=list(range(1, len(middles) + 1)),
            y=middles,
            error_y=bars,
            name=f"after {steps.context} tokens: 1 takes {one * 1000:.2f} ms",
            mode="lines+markers",
            line={"color": f"var({colour})"},
            hovertemplate="v(%{x}) = %{y:.2f}",
        )
    figure.update_xaxes(title="tokens n in a pass")
    figure.update_yaxes(title="v(n)")
    return figure


def _expectation(costs: Costs, acceptance: float, drafter: Drafter) -> tuple[str, go.Figure | None]:
    prediction = predict(costs, acceptance, drafter)
    if prediction is None:
        return str(Markup("<p>{}</p>").format("This pair's draft cost is not known, so nothing is predicted.")), None
    figure = base_figure()
    _curves(figure, prediction)
    _plain_line(figure)
    figure.update_xaxes(title="lookahead γ")
    figure.update_yaxes(title="predicted speedup")
    best, textbook = prediction.best, prediction.textbook_best
    if best:
        sentence = (
            f"At α = {acceptance:.2f} the best lookahead is {best}, predicted {prediction.predicted[best - 1]:.2f}×"
        )
    else:
        sentence = f"At α = {acceptance:.2f} no lookahead is predicted to beat plain decoding"
    by_book = f"the textbook says {textbook}" if textbook else "so says the textbook"
    formula = f"Predicted, not measured: {FORMULAS['predicted_speedup']}, with τ = {FORMULAS['expected_length']}."
    return str(Markup("<p><b>{}</b>; {}. {}</p>").format(sentence, by_book, formula)), figure
