"""Step costs, and what they predict, as a board."""

from collections.abc import Iterator
from typing import NamedTuple

import plotly.graph_objects as go
from markupsafe import Markup

from specdemo.analysis import metrics
from specdemo.analysis.metrics import FORMULAS
from specdemo.analysis.predict import AS_MEASURED, Imagined, predict
from specdemo.experiments.sweep import curves
from specdemo.presentation.figures import number, percent
from specdemo.presentation.plotting import base_figure, plain_line
from specdemo.records import Costs, ModelPair, Spread
from specdemo.strategies import ENGINES, EngineName
from specdemo.ui.boards.report import board
from specdemo.ui.html.parts import table_html

_COLOURS = ("--sd-own", "--sd-rejected", "--sd-accepted", "--sd-plain")
_BANDWIDTH = (
    "Twice the memory bandwidth is assumed to double v(n) − 1: plain and draft steps then take half as long, but the "
    "arithmetic of more tokens takes as long as before."
)
_STEPS = ("context tokens", "plain step, ms", "draft step, ms", "first of a round, ms", "c")


def caption(pair: ModelPair, engine: EngineName) -> str:
    """What a board's figures are about."""
    return str(Markup("<p>{}</p>").format(f"{pair.name} · {ENGINES[engine].words}"))


class KnownCosts(NamedTuple):
    """Step costs, and the pair and engine they belong to."""

    pair: ModelPair
    engine: EngineName
    costs: Costs

    def richer_than(self, other: "KnownCosts") -> bool:
        """Whether these are of the same pair and engine, for more context lengths."""
        same = (self.pair, self.engine) == (other.pair, other.engine)
        return same and len(self.costs.contexts) > len(other.costs.contexts)


def prediction_board(known: KnownCosts, acceptance: float, what_if: Imagined = AS_MEASURED) -> str:
    """The part that depends on acceptance, and on what is imagined of the costs."""
    html, figure = _expectation(known.costs, acceptance, what_if)
    return board({"expectation": html}, {"prediction": figure}, whole=False)


def costs_board(known: KnownCosts, acceptance: float, what_if: Imagined = AS_MEASURED) -> str:
    """Measured step costs, and the speedups they predict for the draft model at this acceptance."""
    html, figure = _expectation(known.costs, acceptance, what_if)
    texts = {
        "caption": caption(known.pair, known.engine),
        "steps": str(table_html(_STEPS, _steps(known.costs))),
        "steps-remark": str(Markup.escape(f"c: {FORMULAS['draft_cost']}.")),
        "verify-remark": str(Markup.escape(f"v(n): {FORMULAS['verify_cost']}.")),
        "expectation": html,
        "change": _length_change(known.costs),
    }
    return board(texts, {"verify": _verify_figure(known.costs), "prediction": figure})


def _steps(costs: Costs) -> Iterator[tuple[str, ...]]:
    """Single steps after texts of each length, as texts under `_STEPS`."""
    for steps in costs.contexts:
        plain, draft = steps.passes[0], steps.draft
        cost = None if draft is None else draft.middle / plain.middle
        yield (str(steps.context), _quartiles(plain), _quartiles(draft), _quartiles(steps.first_draft), number(cost))


def _quartiles(seconds: Spread | None) -> str:
    """The median in milliseconds, with both quartiles in parentheses."""
    if seconds is None:
        return "–"
    low, middle, high = (f"{value * 1000:.2f}" for value in (seconds.low, seconds.middle, seconds.high))
    return f"{middle} ({low}–{high})"


def _length_change(costs: Costs) -> str:
    if not costs.length_change:
        return ""
    share = percent(costs.length_change / costs.plain_step)
    return str(
        Markup(
            "A pass takes {} ms longer ({} of a plain step) if the one before it had a different length, since every "
            "operation is prepared anew. Policies that vary the lookahead pay for that; the traced engine pads a "
            "pass to the previous length where padding costs less."
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
            name=f"after {steps.context} tokens: v(1) is {one * 1000:.2f} ms",
            mode="lines+markers",
            line={"color": f"var({colour})"},
            hovertemplate="v(%{x}) = %{y:.2f}",
        )
    figure.update_xaxes(title="tokens n per pass")
    figure.update_yaxes(title="v(n)")
    return figure


def _expectation(costs: Costs, acceptance: float, what_if: Imagined) -> tuple[str, go.Figure | None]:
    prediction = predict(costs, acceptance)
    if prediction is None:
        return str(
            Markup("<p>{}</p>").format("This pair's draft cost is unknown, so nothing can be predicted.")
        ), None
    figure = base_figure()
    curves(figure, prediction)
    imagined = _imagined(costs, acceptance, what_if, figure)
    plain_line(figure)
    figure.update_xaxes(title="lookahead γ")
    figure.update_yaxes(title="predicted speedup")
    best, textbook = prediction.best, prediction.textbook_best
    given = f"At an acceptance of {acceptance:.2f}"
    if best:
        sentence = f"{given} the best lookahead is {best}, predicted {prediction.predicted[best - 1]:.2f}×"
    else:
        sentence = f"{given} no lookahead is predicted to beat plain decoding"
    by_book = f"with v = 1 it would be {textbook}" if textbook else "nor with v = 1"
    length = f"τ = {FORMULAS['expected_length']}, where a is this acceptance"
    formula = f"Predicted, not measured: {FORMULAS['predicted_speedup']}, with {length}."
    return str(Markup("<p><b>{}</b>; {}. {}</p>").format(sentence, by_book, formula) + imagined), figure


def _imagined(costs: Costs, acceptance: float, what_if: Imagined, figure: go.Figure) -> Markup:
    """What would be predicted with other costs, as a sentence; adds its curve."""
    other = what_if.of(costs)
    prediction = predict(other, acceptance)
    if what_if == AS_MEASURED or prediction is None:
        return Markup("")
    figure.add_scatter(
        x=list(range(1, len(prediction.predicted) + 1)),
        y=list(prediction.predicted),
        name="what if",
        mode="lines",
        line={"color": "var(--sd-accepted)", "dash": "dash"},
        hovertemplate="%{y:.2f}×",
    )
    tokens, best = len(costs.verify), prediction.best
    outcome = (
        f"the best lookahead would be {best}, predicted {prediction.predicted[best - 1]:.2f}×"
        if best
        else "no lookahead would be predicted to beat plain decoding"
    )
    values = (
        f"c = {number(metrics.draft_cost(other))} (measured {number(metrics.draft_cost(costs))}) and "
        f"v({tokens}) = {number(metrics.verify_cost(other, tokens))} "
        f"(measured {number(metrics.verify_cost(costs, tokens))})"
    )
    bandwidth = "" if what_if.growth == 1 else f" {_BANDWIDTH}"
    return Markup("<p><b>What if</b>: with {}, {}.{}</p>").format(values, outcome, bandwidth)
