"""The result of a sweep, and its report: one recommendation, which may be plain decoding."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from specdemo import metrics
from specdemo.estimate import Summary
from specdemo.experiments.plan import Result
from specdemo.experiments.report import Chart, Report, Table, fit_axis, times, whiskers
from specdemo.metrics import Prediction
from specdemo.presentation.charts import base_figure, plain_line
from specdemo.presentation.figures import milliseconds, number, percent
from specdemo.presentation.warnings import warnings_of
from specdemo.presentation.wording import shared_words
from specdemo.records import Costs, Environment, ModelPair, Record
from specdemo.settings import GenerationSettings

COLUMNS = ("setting", "speedup", "predicted", "τ", "α", "draft", "verify", "other", "outputs", "runs")
_NAMED = 4  # of the settings within measurement error
_PASSES = (2, 5, 17)  # tokens per pass: at the shortest lookahead, the default, and the longest


class Candidate(Record):
    """A setting to try: a lookahead, a confidence threshold, or a policy without a value."""

    kind: Literal["lookahead", "threshold", "policy"]
    name: str
    value: float | None
    settings: GenerationSettings


class Point(Summary):
    """Results of one candidate, with one speedup per finished trial."""

    candidate: Candidate


class Recommendation(Record):
    """A recommendation in a sentence. `candidate` is the best; None if no setting clearly beats plain decoding."""

    candidate: Candidate | None
    sentence: str


class Sweep(Result):
    """Everything measured so far. `prediction` is not measured but computed from `costs` and `acceptance`.

    `acceptance` is accepted / judged over all trials at constant lookaheads. Nothing is predicted for prompt
    lookup, which proposes only in some rounds, nor without a KV cache, since the costs were measured with one.
    `fresh` holds the later runs of the fastest setting.
    """

    pair: ModelPair
    prompts: tuple[str, ...]
    settings: GenerationSettings
    environment: Environment | None
    costs: Costs | None
    points: tuple[Point, ...] = ()
    acceptance: float | None = None
    prediction: Prediction | None = None
    fresh: Point | None = None
    recommendation: Recommendation
    runs: int = 0
    planned: int = 0

    @property
    def total(self) -> int:
        """Number of runs when complete."""
        return self.planned

    @property
    def row_count(self) -> int:
        """Number of runs so far, including the fresh ones of the fastest setting."""
        return self.runs

    @property
    def so_far(self) -> str | None:
        """Fastest setting so far."""
        best = self.fresh or max(self.points, key=rounded_speedup, default=None)
        return None if best is None else f"best so far {best.candidate.name}, {best.speedup.middle:.2f}×"

    def report(self) -> Report:
        return _report(self)


# Conclusions.


def recommend(points: Sequence[Point], fresh: Point | None = None) -> Recommendation:
    """Recommend the fastest setting if its fresh runs clearly beat plain decoding; others may be as good."""
    if not points:
        return Recommendation(candidate=None, sentence="Nothing has been measured yet.")
    best = fresh or max(points, key=rounded_speedup)
    name, runs = best.candidate.name, len(best.speedups)
    evidence = f"{best.speedup} in {runs} {'fresh ' if fresh else ''}run{'s' if runs > 1 else ''}"
    outputs = "outputs identical" if best.identical else "but outputs differ"
    if fresh is None or best.speedup.low is None:
        sentence = f"Too few runs to be sure: the fastest so far is {name}, {evidence}, {outputs}."
        return Recommendation(candidate=None, sentence=sentence)
    if best.speedup.impossible or (best.speedup.wide and best.speedup.includes_one):
        sentence = (
            f"Inconclusive: the runs of the fastest setting, {name}, differ too much ({best.speedup.ends} in {runs} "
            "fresh runs). Close other programs and sweep again."
        )
        return Recommendation(candidate=None, sentence=sentence)
    if best.speedup.call != "faster":
        clearly = "clearly " if best.speedup.middle > 1 else ""
        sentence = f"No setting {clearly}beats plain decoding here: the best, {name}, reached {evidence}, {outputs}."
        return Recommendation(candidate=None, sentence=sentence)
    size = " How much faster is uncertain: its runs differ widely." if best.speedup.wide else ""
    equals = _equals([point for point in points if point.candidate.name != name], best.speedup.low)
    if not equals:
        return Recommendation(candidate=best.candidate, sentence=f"Choose {name}: {evidence}, {outputs}.{size}")
    sentence = f"No clear winner: any of {name}, {equals}. For {name}: {evidence}, {outputs}.{size}"
    return Recommendation(candidate=best.candidate, sentence=sentence)


def within_error(point: Point, speedup: float) -> bool:
    """Check if a setting may reach this speedup: by its interval, or by its best run if there is none."""
    return (point.speedup.high or max(point.speedups)) >= speedup


def _equals(others: Sequence[Point], speedup: float) -> str:
    """Name the settings that may be as fast, fastest first; empty if there are none."""
    reaching = [point for point in others if within_error(point, speedup)]
    names = [point.candidate.name for point in sorted(reaching, key=lambda point: -point.speedup.middle)]
    if not names:
        return ""
    shown, more = names[:_NAMED], len(names) - _NAMED
    return f"{', '.join(shown)}{f' and {more} more' if more > 0 else ''}"


# The report.


def _report(sweep: Sweep) -> Report:
    return Report(
        title=f"Sweep of {sweep.pair.name}",
        opening=[sweep.recommendation.sentence, *remarks(sweep)],
        charts=charts(sweep),
        tables={"table": Table("Every setting", COLUMNS, list(table(sweep)))},
        notes=list(notes(sweep)),
        data=lambda: sweep.model_dump(mode="json"),
        headline={"recommendation": sweep.recommendation.sentence, "complete": sweep.complete},
        figures=[_figures(point) for point in sweep.points],
    )


def remarks(sweep: Sweep) -> Iterator[str]:
    """Yield the pair, device and settings measured, and warnings about the figures."""
    device = "" if sweep.environment is None else f" on {sweep.environment.device}"
    yield f"{sweep.pair.name}{device}: {shared_words(sweep.settings)}."
    if sweep.fresh is not None:
        yield from (warning.reason for warning in warnings_of(sweep.fresh))
    for point in sweep.points:
        for warning in warnings_of(point):
            if warning.kind == "above τ":
                yield f"{point.candidate.name.capitalize()}: {warning.reason}"


def notes(sweep: Sweep) -> Iterator[str]:
    """Yield the step costs, and how predictions follow from them."""
    if not sweep.complete:
        yield f"Unfinished: {sweep.runs} of {times(sweep.planned, 'run')}."
    costs = sweep.costs
    if costs is not None:
        steps = f"Step costs: plain step {milliseconds(costs.plain_step)}"
        if costs.draft_step is not None:
            steps += f", draft step {milliseconds(costs.draft_step)}, c = {number(metrics.draft_cost(costs))}"
            if costs.first_draft_step is not None:
                steps += f", a round's first {milliseconds(costs.first_draft_step)}"
        passes = {n: metrics.verify_cost(costs, n) for n in _PASSES}
        yield ", ".join([steps, *(f"v({n}) = {cost:.2f}" for n, cost in passes.items() if cost is not None)]) + "."
    if sweep.prediction is not None:
        yield (
            f"Predicted: {metrics.FORMULAS['predicted_speedup']} with these step costs and a = "
            f"{metrics.FORMULAS['token_acceptance']} of all runs."
        )


def table(sweep: Sweep) -> Iterator[tuple[str, ...]]:
    """Yield every setting tried, as strings under `COLUMNS`."""
    predicted = sweep.prediction.predicted if sweep.prediction is not None else ()
    for point in sweep.points:
        value = point.candidate.value if point.candidate.kind == "lookahead" else None
        expected = predicted[int(value) - 1] if value is not None and value <= len(predicted) else None
        shares = (point.draft_share, point.verify_share, point.other_share)
        yield (
            point.candidate.name,
            str(point.speedup),
            number(expected, "×"),
            number(point.mean_accepted_length),
            number(point.acceptance_rate),
            *("–" if share is None else percent(share) for share in shares),
            "identical" if point.identical else "differ",
            str(len(point.speedups)),
        )


def _figures(point: Point) -> dict[str, Any]:
    speedup = point.speedup
    figures = point.model_dump(exclude={"speedup", "speedups", "candidate"})
    return {
        "setting": point.candidate.name,
        **figures,
        "median": speedup.middle,
        "low": speedup.low,
        "high": speedup.high,
    }


def charts(sweep: Sweep) -> dict[str, Chart]:
    """Return charts of speedup and acceptance by lookahead, of policies, and of where the time goes."""
    constant = [point for point in sweep.points if point.candidate.kind == "lookahead"]
    others = [point for point in sweep.points if point.candidate.kind != "lookahead"]
    shown = {}
    if constant:
        shown["speedup"] = Chart(
            "Speedup by lookahead",
            _speedup_figure(constant, sweep.prediction),
            f"Dots are measured, with 95 % intervals. Lines are predicted: {metrics.FORMULAS['predicted_speedup']}, "
            "and the same with v = 1, as in textbooks.",
        )
    if others:
        shown["policies"] = Chart(
            "Thresholds and policies", _policies_figure(others), "Measured, with 95 % intervals."
        )
    if constant:
        shown["acceptance"] = Chart(
            "Acceptance",
            _acceptance_figure(constant),
            f"α = {metrics.FORMULAS['acceptance_rate']}; τ = {metrics.FORMULAS['mean_accepted_length']}.",
        )
    if any(point.draft_share is not None for point in sweep.points):
        shown["shares"] = Chart(
            "Where the time goes",
            _shares_figure(sweep.points),
            "Shares of the speculative runs' time. GenAI does not report them.",
        )
    return shown


def _hover(points: Sequence[Point]) -> list[str]:
    """Return hover texts: each speedup, and whether the outputs were identical, without which it means little."""
    return [f"{point.speedup}, outputs {'identical' if point.identical else 'differ'}" for point in points]


def _speedup_figure(points: Sequence[Point], prediction: Prediction | None) -> go.Figure:
    figure = base_figure(hovermode="closest")
    if prediction is not None:
        curves(figure, prediction)
    figure.add_scatter(
        x=[point.candidate.value for point in points],
        y=[point.speedup.middle for point in points],
        error_y=whiskers([point.speedup for point in points]),
        text=_hover(points),
        name="measured",
        mode="markers",
        marker={"color": "var(--sd-accepted)", "size": 9},
        hovertemplate="lookahead %{x}: %{text}",
    )
    plain_line(figure)
    figure.update_xaxes(title="lookahead γ")
    figure.update_yaxes(title="speedup")
    fit_axis(figure)
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
        error_y=whiskers([point.speedup for point in points], color="var(--sd-ink)"),
        marker_color="var(--sd-own)",
        text=_hover(points),
        textposition="none",
        hovertemplate="%{x}: %{text}<extra></extra>",
    )
    plain_line(figure)
    figure.update_yaxes(title="speedup")
    fit_axis(figure)
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


def rounded_speedup(point: Point) -> float:
    """Return the speedup to compare points by, rounded so that the first of near-equal ones is the best."""
    return round(point.speedup.middle, 3)
