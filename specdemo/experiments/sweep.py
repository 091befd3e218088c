"""The sweep: which setting decodes fastest here, for these prompts, and with what certainty.

Every setting runs on every prompt several times, in an order that is reshuffled each time, each run between two plain
ones. So neither a drifting machine nor a setting's neighbours favour any of them. The fastest of many is partly the
luckiest, so it runs again, and only these fresh runs are quoted. The result is one recommendation, which may be plain
decoding.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any, Literal

import plotly.graph_objects as go

from specdemo.analysis import metrics, predict
from specdemo.analysis.estimates import Summary, summarise
from specdemo.analysis.predict import Prediction
from specdemo.engines.base import Engine
from specdemo.errors import SettingsError
from specdemo.experiments.checkpoint import EngineFacts
from specdemo.experiments.plan import Loaded, Result, Session, Stop, never, run
from specdemo.experiments.report import Chart, Report, Table, times, whiskers
from specdemo.experiments.suites import Task
from specdemo.experiments.trials import Group, TrialPlan, TrialRow
from specdemo.measure.race import run_alone
from specdemo.measure.step_costs import MAX_LOOKAHEAD
from specdemo.measure.trials import can_run
from specdemo.presentation.charts import base_figure, plain_line
from specdemo.presentation.figures import milliseconds, number, percent
from specdemo.presentation.warnings import doubts_of
from specdemo.presentation.wording import shared_words
from specdemo.progress import Progress
from specdemo.records import Costs, Environment, ModelPair, Record, Request
from specdemo.settings import GenerationSettings
from specdemo.strategies import STRATEGIES, Strategy, pair_refusal, strategies

THRESHOLDS = (0.2, 0.4, 0.6, 0.8)
LOOKAHEADS = tuple(range(1, MAX_LOOKAHEAD + 1))
REPEATS = 3
FRESH = 8  # fresh runs of the fastest setting, at least, equally many per prompt
COLUMNS = ("setting", "speedup", "predicted", "τ", "α", "draft", "verify", "other", "outputs", "runs")
_ORDER = ("lookahead", "threshold", "policy")
_TRYING = 0.6  # of a limited time; the rest is for fresh runs
_NAMED = 4  # of the settings within measurement error
_PASSES = (2, 5, 17)  # tokens per pass: at the shortest lookahead, the default, and the longest
_NONE = "This pair supports none of the settings to be tried; choose another engine or drafter."


class Candidate(Record):
    """A setting to try: a lookahead, a confidence threshold, or a policy without a value."""

    kind: Literal["lookahead", "threshold", "policy"]
    name: str
    value: float | None
    settings: GenerationSettings


class Point(Summary):
    """The results of one candidate; one speedup per finished trial."""

    candidate: Candidate


class Recommendation(Record):
    """What to do, in a sentence. `candidate` is the best; None where no setting clearly beats plain decoding."""

    candidate: Candidate | None
    sentence: str


class Sweep(Result):
    """Everything measured so far. `prediction` is not measured: it follows from `costs` and `acceptance`.

    `acceptance` is accepted / judged over all trials of lookaheads. Nothing is predicted for prompt lookup, which
    finds something only in some rounds, nor without a KV cache, since the costs were measured with one. `fresh` holds
    the runs of the fastest setting after all others.
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
        """Number of runs when it is complete."""
        return self.planned

    @property
    def row_count(self) -> int:
        """Number of runs so far, those of the fastest setting after all others included."""
        return self.runs

    @property
    def so_far(self) -> str | None:
        """The fastest setting so far."""
        best = self.fresh or max(self.points, key=_speedup, default=None)
        return None if best is None else f"best so far {best.candidate.name}, {best.speedup.middle:.2f}×"

    def report(self) -> Report:
        """The sweep as a report."""
        return _report(self)


def candidates(
    pair: ModelPair,
    settings: GenerationSettings,
    lookaheads: Sequence[int] = LOOKAHEADS,
    thresholds: Sequence[float] = THRESHOLDS,
) -> list[Candidate]:
    """What can be tried with this pair, engine and drafter, policies without a number of their own included.

    Raises:
        SettingsError: a lookahead or a threshold is out of its range, or there is nothing to try.
    """
    given = {"num_assistant_tokens": lookaheads, "assistant_confidence_threshold": thresholds}
    for name, values in given.items():
        for value in values:
            GenerationSettings.checked(**{name: value})
    able = [
        strategy
        for strategy in strategies(settings.engine, pair.draft_kind, settings.drafter)
        if _has(strategy, settings)
    ]
    if not able:
        raise SettingsError(pair_refusal(settings.strategy, pair.draft_kind, settings.engine) or _NONE)
    found: list[Candidate] = []
    for strategy in able:
        changed = partial(_candidate, settings, policy=strategy.policy.name)
        if "num_assistant_tokens" in strategy.parameters():
            least = settings.tree_depth  # a tree's lookahead is at least its depth
            found += [changed("lookahead", n, num_assistant_tokens=n) for n in lookaheads if n >= least]
        elif "assistant_confidence_threshold" in strategy.parameters():
            found += [changed("threshold", value, assistant_confidence_threshold=value) for value in thresholds]
        else:
            found.append(changed("policy", None))
    numbers = {name for strategy in able for name in strategy.parameters()} & set(given)
    if not found or (numbers and not lookaheads and not thresholds):
        raise SettingsError(_nothing(settings, numbers))
    return sorted(found, key=lambda candidate: _ORDER.index(candidate.kind))


def _has(strategy: type[Strategy], settings: GenerationSettings) -> bool:
    """Whether such strategies may be tried: with a depth only trees, without a KV cache none that need step costs."""
    switched = strategy.switch is not None and bool(getattr(settings, strategy.switch))
    others = any(other.switch is not None and getattr(settings, other.switch) for other in STRATEGIES.values())
    fits = switched if strategy.switch is not None else not others
    return fits and not (strategy.needs_costs and settings.kv_cache == "off")


def _nothing(settings: GenerationSettings, numbers: Collection[str]) -> str:
    """What to give, if nothing can be tried with these settings, of which these numbers may vary."""
    if settings.tree_depth:
        return f"A tree of depth {settings.tree_depth} needs a lookahead of at least {settings.tree_depth}; give one."
    if "assistant_confidence_threshold" in numbers:
        return "There is nothing to try; give at least one lookahead or threshold."
    return "There is nothing to try, since thresholds have no effect here; give at least one lookahead."


def _candidate(
    settings: GenerationSettings,
    kind: Literal["lookahead", "threshold", "policy"],
    value: float | None,
    **changes: Any,
) -> Candidate:
    changed = GenerationSettings.checked(**{**settings.model_dump(), **changes})
    name = f"{kind} {changed.policy if value is None else format(value, 'g')}"
    return Candidate(kind=kind, name=name, value=value, settings=changed)


@dataclass
class _Clock:
    """Seconds since the first run."""

    began: float | None = None

    def start(self) -> None:
        if self.began is None:
            self.began = perf_counter()

    @property
    def seconds(self) -> float:
        return 0.0 if self.began is None else perf_counter() - self.began


@dataclass(frozen=True)
class SweepPlan(TrialPlan[Sweep]):
    """Every prompt with each of the settings `tried`; repeats beyond `repeats` are fresh runs of the fastest.

    With `seconds`, it takes about so long from its first run on: the fastest of those settings that could be tried in
    part of it runs again in the rest.
    """

    tried: Sequence[Candidate] = ()
    seconds: float | None = None
    _clock: _Clock = field(default_factory=_Clock, compare=False)

    @cached_property
    def variants(self) -> dict[str, GenerationSettings]:
        """The settings to try, by name."""
        return {f"{each.settings.engine} {each.name}": each.settings for each in self.tried}

    @property
    def again(self) -> int:
        """Fresh runs of the fastest setting on each prompt."""
        return -(-FRESH // len(self.tasks))

    def covers(self, row: TrialRow) -> bool:
        """Whether the row is of one of the repeats, or a fresh run."""
        return row.repeat < self.repeats + self.again

    def fitted(self, engine: Engine, costs: Costs | None) -> "SweepPlan":
        """Without the settings that the pair turns out not to support.

        Raises:
            SettingsError: it supports none of them.
        """
        tried = [each for each in self.tried if can_run(engine.pair, each.settings, costs)]
        if not tried:
            raise SettingsError(_NONE)
        return replace(self, tried=tried)

    def missing(self, rows: Sequence[TrialRow]) -> list[Session[Group]]:
        """What is left to run; after that, fresh runs of the fastest setting."""
        finished = {row.key for row in rows}
        left = [] if self._over(_TRYING) else self.sessions(finished, range(self.repeats), list(self.variants))
        if left:
            return left
        best, again = self.fastest(rows), any(row.repeat >= self.repeats for row in rows)
        fresh = range(self.repeats, self.repeats + (0 if again and self._over(1) else self.again))
        return [] if best is None else self.sessions(finished, fresh, [f"{best.settings.engine} {best.name}"])

    def _over(self, share: float) -> bool:
        """Whether this share of the time has passed."""
        return self.seconds is not None and self._clock.seconds > share * self.seconds

    def seconds_left(self) -> float | None:
        """What is left of the time, if it is limited."""
        return None if self.seconds is None else max(self.seconds - self._clock.seconds, 0.0)

    def ended(self, found: Sweep) -> Sweep:
        """The sweep, which is complete though not every run fitted into the time."""
        return found if found.complete or self.seconds is None else found.model_copy(update={"planned": found.runs})

    def fastest(self, rows: Sequence[TrialRow]) -> Candidate | None:
        """The fastest setting, fresh runs aside; among equals, the one named first. None if nothing was timed."""
        best = max(self.points(rows), key=_speedup, default=None)
        return best.candidate if best is not None else None

    def points(self, rows: Sequence[TrialRow], *, fresh: bool = False) -> list[Point]:
        """What was measured of each setting."""
        found = []
        for candidate in self.tried:
            mine = [
                (row.prompt, row.trial)
                for row in rows
                if row.method == candidate.name and row.trial is not None and (row.repeat >= self.repeats) == fresh
            ]
            if mine:
                prompts, done = zip(*mine, strict=True)
                found.append(Point(candidate=candidate, **summarise(done, prompts).model_dump()))
        return found

    def measure(self, engine: Engine, costs: Costs | None, steps: Sequence[Group], stop: Stop) -> Iterator[TrialRow]:
        """Run the groups, after a check that every prompt can be run.

        Raises:
            PromptError: one is empty, or too long.
        """
        self._clock.start()
        share = 1.0 if any(step.repeat >= self.repeats for step in steps) else _TRYING
        for task in self.tasks:
            run_alone(engine.decoder(Request.of(task.prompt, self.settings).plain), 1, stop)
        rows: list[TrialRow] = []  # at least one, however long it takes
        for row in super().measure(engine, costs, steps, lambda: stop() or (bool(rows) and self._over(share))):
            rows.append(row)
            yield row

    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[TrialRow]) -> Sweep:
        """The sweep with these rows."""
        points, fresh = self.points(rows), next(iter(self.points(rows, fresh=True)), None)
        known = next(iter(facts.values()), None)
        costs = known.costs if known is not None else None
        lookaheads = {point.candidate.name for point in points if point.candidate.kind == "lookahead"}
        constant = [
            row.trial
            for row in rows
            if row.method in lookaheads and row.trial is not None and row.repeat < self.repeats
        ]
        acceptance = summarise(constant).token_acceptance if constant else None
        predictable = self.settings.strategy.drafter.sources == ("model",) and self.settings.kv_cache == "on"
        prediction = None
        if costs is not None and acceptance is not None and predictable:
            prediction = predict.predict(costs, acceptance)
        return Sweep(
            pair=self.pair,
            prompts=tuple(task.prompt for task in self.tasks),
            settings=self.settings,
            environment=known.environment if known is not None else None,
            costs=costs,
            points=tuple(points),
            acceptance=acceptance,
            prediction=prediction,
            fresh=fresh,
            recommendation=recommend(points, fresh),
            runs=len(rows),
            planned=(self.repeats * len(self.tried) + self.again) * len(self.tasks),
        )


def prompts_as_tasks(prompts: Sequence[str]) -> list[Task]:
    """Prompts that were typed, as tasks."""
    return [Task(name=f"prompt {number}", task="prompts", prompt=prompt) for number, prompt in enumerate(prompts, 1)]


def sweep(
    engine: Engine,
    prompts: Sequence[str],
    settings: GenerationSettings,
    tried: Sequence[Candidate],
    *,
    repeats: int = REPEATS,
    costs: Costs | None = None,
    seed: int = 0,
    seconds: float | None = None,
    stop: Callable[[], bool] = never,
) -> Iterator[Progress[Sweep]]:
    """Measure the candidates with a loaded engine, then the fastest again; yield a state first, and after each trial.

    Candidates that this pair does not support are left out. `seconds` limits it as `SweepPlan` says. Once `stop`
    returns True, finished results stand.

    Raises:
        SpecdemoError: a prompt or the settings cannot be run, or the engine failed.
    """
    plan = SweepPlan(engine.pair, prompts_as_tasks(prompts), settings, tried, seconds, repeats=repeats, seed=seed)
    yield from run(plan, loaded=Loaded(engine, costs), stop=stop)


# What it comes to.


def recommend(points: Sequence[Point], fresh: Point | None = None) -> Recommendation:
    """The fastest setting, if its fresh runs clearly beat plain decoding; it may be one of several as good."""
    if not points:
        return Recommendation(candidate=None, sentence="Nothing has been measured yet.")
    best = fresh or max(points, key=_speedup)
    name, runs = best.candidate.name, len(best.speedups)
    evidence = f"{best.speedup} in {runs} {'fresh ' if fresh else ''}run{'s' if runs > 1 else ''}"
    outputs = "outputs identical" if best.identical else "but outputs differ"
    if fresh is None or best.speedup.low is None:
        sentence = f"Too few runs to be sure: the fastest so far is {name}, {evidence}, {outputs}."
        return Recommendation(candidate=None, sentence=sentence)
    if best.speedup.wide or best.speedup.impossible:
        sentence = (
            f"Not settled: the runs of the fastest setting, {name}, differ too much ({best.speedup.ends} in {runs} "
            "fresh runs). Close other programs and sweep again."
        )
        return Recommendation(candidate=None, sentence=sentence)
    if best.speedup.call != "faster":
        clearly = "clearly " if best.speedup.middle > 1 else ""
        sentence = f"No setting {clearly}beats plain decoding here: the best, {name}, reached {evidence}, {outputs}."
        return Recommendation(candidate=None, sentence=sentence)
    equals = _equals([point for point in points if point.candidate.name != name], best.speedup.low)
    if not equals:
        return Recommendation(candidate=best.candidate, sentence=f"Choose {name}: {evidence}, {outputs}.")
    sentence = f"No clear winner: any of {name}, {equals}. For {name}: {evidence}, {outputs}."
    return Recommendation(candidate=best.candidate, sentence=sentence)


def within_error(point: Point, speedup: float) -> bool:
    """Whether a setting may reach this speedup: by its interval, or by its best run if there is none."""
    return (point.speedup.high or max(point.speedups)) >= speedup


def _equals(others: Sequence[Point], speedup: float) -> str:
    """The settings that may be as fast, fastest first; empty if there are none."""
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
    """What the figures were made with, and which of them to doubt."""
    device = "" if sweep.environment is None else f" on {sweep.environment.device}"
    yield f"{sweep.pair.name}{device}: {shared_words(sweep.settings)}."
    if sweep.fresh is not None:
        yield from (doubt.reason for doubt in doubts_of(sweep.fresh))
    for point in sweep.points:
        for doubt in doubts_of(point):
            if doubt.kind == "above τ":
                yield f"{point.candidate.name.capitalize()}: {doubt.reason}"


def notes(sweep: Sweep) -> Iterator[str]:
    """What steps cost, and how predictions follow from that."""
    if not sweep.complete:
        yield f"Unfinished: {sweep.runs} of {times(sweep.planned, 'run')}."
    costs = sweep.costs
    if costs is not None:
        steps = f"Step costs: plain step {milliseconds(costs.plain_step)}"
        if costs.draft_step is not None:
            steps += f", draft step {milliseconds(costs.draft_step)}, c = {number(metrics.draft_cost(costs))}"
        passes = {n: metrics.verify_cost(costs, n) for n in _PASSES}
        yield ", ".join([steps, *(f"v({n}) = {cost:.2f}" for n, cost in passes.items() if cost is not None)]) + "."
    if sweep.prediction is not None:
        yield (
            f"Predicted: {metrics.FORMULAS['predicted_speedup']} with these step costs and a = "
            f"{metrics.FORMULAS['token_acceptance']} of all runs."
        )


def table(sweep: Sweep) -> Iterator[tuple[str, ...]]:
    """Every setting tried, as texts under `COLUMNS`."""
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
    """Speedups and acceptance by lookahead, policies, and where the time goes."""
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
    """A speedup means little without whether the outputs were identical."""
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


def _speedup(point: Point) -> float:
    """What points are compared by: rounding makes no difference, so that among equals the first one is the best."""
    return round(point.speedup.middle, 3)
