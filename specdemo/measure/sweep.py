"""The sweep: which setting decodes fastest here, for these prompts, and with what certainty.

Every setting runs on every prompt several times, in an order that is reshuffled each time, each run between two plain
ones. So neither a drifting machine nor a setting's neighbours favour any of them. The fastest of many is partly the
luckiest, so it runs again, and only these fresh runs are quoted. The result is one recommendation, which may be plain
decoding.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from random import Random
from time import perf_counter
from typing import Any, Literal

from specdemo.analysis.intervals import summarise
from specdemo.analysis.predict import Prediction, predict
from specdemo.engines.base import Engine
from specdemo.errors import SettingsError
from specdemo.measure.race import run_alone
from specdemo.measure.recommend import Candidate, Point, Recommendation, recommend
from specdemo.measure.step_costs import MAX_LOOKAHEAD
from specdemo.measure.trials import can_run, rehearse, trials
from specdemo.presentation.figures import number, percent
from specdemo.presentation.warnings import doubts_of
from specdemo.presentation.wording import shared_words
from specdemo.progress import Progress
from specdemo.records import Costs, Environment, ModelPair, Record, Request, Trial
from specdemo.settings import GenerationSettings
from specdemo.strategies import STRATEGIES, Strategy, pair_refusal, strategies

THRESHOLDS = (0.2, 0.4, 0.6, 0.8)
LOOKAHEADS = tuple(range(1, MAX_LOOKAHEAD + 1))
REPEATS = 3
_ORDER = ("lookahead", "threshold", "policy")
_NONE = "This pair supports none of the settings to be tried; choose another engine or drafter."
FRESH = 8  # fresh runs of the fastest setting, at least, equally many per prompt


class Sweep(Record):
    """Everything measured so far. `prediction` is not measured: it follows from `costs` and `acceptance`.

    `acceptance` is accepted / judged over all trials of lookaheads. Nothing is predicted for prompt lookup, which
    finds something only in some rounds, nor without a KV cache, since the costs were measured with one. `fresh` holds
    the runs of the fastest setting after all others.
    """

    pair: ModelPair
    prompts: tuple[str, ...]
    settings: GenerationSettings
    environment: Environment
    costs: Costs | None
    points: tuple[Point, ...] = ()
    acceptance: float | None = None
    prediction: Prediction | None = None
    fresh: Point | None = None
    recommendation: Recommendation


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
    """Whether such ways may be tried: with a depth only trees, without a KV cache none that need step costs."""
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


def sweep(
    engine: Engine,
    prompts: Sequence[str],
    settings: GenerationSettings,
    tried: Sequence[Candidate],
    *,
    repeats: int = REPEATS,
    costs: Costs | None = None,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Progress[Sweep]]:
    """Measure the candidates on the prompts, then the fastest again; yield a state first, and after each trial.

    Candidates that this pair does not support are left out. Once `stop` returns True, finished results stand.

    Raises:
        SpecdemoError: a prompt or the settings cannot be run, or the engine failed.
    """
    tried = [candidate for candidate in tried if can_run(engine.pair, candidate.settings, costs)]
    if not tried:
        raise SettingsError(_NONE)
    random, results = Random(seed), _Results(engine, tuple(prompts), settings, costs, list(tried))
    again = -(-FRESH // len(prompts))
    total, done, spent = (repeats * len(tried) + again) * len(prompts), 0, 0.0
    yield Progress(0, total, None, results.sweep())
    for prompt in prompts[1:]:
        # refuse what cannot be run before anything is
        run_alone(engine.decoder(Request.of(prompt, settings).plain), 1, stop)
    rehearse(engine, prompts[0], [candidate.settings for candidate in tried], costs, stop)
    for repeat in range(repeats + again):
        if repeat == repeats:
            fastest = results.fastest()
            if fastest is None:  # every text ended at its first token
                return
            tried = [fastest]
        for prompt in random.sample(prompts, len(prompts)):
            order = random.sample(tried, len(tried))
            began = perf_counter()
            variants = [candidate.settings for candidate in order]
            for candidate, trial in zip(order, trials(engine, prompt, variants, costs, stop), strict=False):
                done, spent, began = done + 1, spent + perf_counter() - began, perf_counter()
                if trial is not None:
                    results.add(candidate, trial, fresh=repeat >= repeats)
                yield Progress(done, total, spent / done * (total - done), results.sweep())
            if stop():
                return


def remarks(sweep: Sweep) -> Iterator[str]:
    """What the figures were made with, and which of them to doubt."""
    yield f"{sweep.pair.name} on {sweep.environment.device}: {shared_words(sweep.settings)}."
    if sweep.fresh is not None:
        yield from (doubt.reason for doubt in doubts_of(sweep.fresh))
    for point in sweep.points:
        for doubt in doubts_of(point):
            if doubt.kind == "above τ":
                yield f"{point.candidate.name.capitalize()}: {doubt.reason}"


COLUMNS = ("setting", "speedup", "predicted", "τ", "α", "draft", "verify", "other", "outputs", "runs")


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


class _Results:
    """Trials by candidate, and what follows from them."""

    def __init__(
        self,
        engine: Engine,
        prompts: tuple[str, ...],
        settings: GenerationSettings,
        costs: Costs | None,
        tried: Sequence[Candidate],
    ) -> None:
        self._known: dict[str, Any] = {
            "pair": engine.pair,
            "prompts": prompts,
            "settings": settings,
            "environment": engine.environment,
            "costs": costs,
        }
        self._predicted = (
            costs if settings.strategy.drafter.sources == ("model",) and settings.kv_cache == "on" else None
        )
        self._trials: dict[str, list[Trial]] = {candidate.name: [] for candidate in tried}
        self._candidates = {candidate.name: candidate for candidate in tried}
        self._points: dict[str, Point] = {}
        self._again: list[Trial] = []
        self._fresh: Point | None = None

    def add(self, candidate: Candidate, trial: Trial, *, fresh: bool) -> None:
        done = self._again if fresh else self._trials[candidate.name]
        done.append(trial)
        point = Point(candidate=candidate, **summarise(done).model_dump())
        if fresh:
            self._fresh = point
        else:
            self._points[candidate.name] = point

    def fastest(self) -> Candidate | None:
        """Among equals, the one named first, whatever the order of the runs."""
        best = max(self._measured(), key=lambda point: point.speedup.middle, default=None)
        return best.candidate if best is not None else None

    def sweep(self) -> Sweep:
        points = self._measured()
        constant = [trial for point in points if point.candidate.kind == "lookahead" for trial in self._of(point)]
        acceptance = summarise(constant).token_acceptance if constant else None
        costs = self._predicted
        return Sweep(
            **self._known,
            points=tuple(points),
            acceptance=acceptance,
            prediction=predict(costs, acceptance) if costs and acceptance is not None else None,
            fresh=self._fresh,
            recommendation=recommend(points, self._fresh),
        )

    def _measured(self) -> list[Point]:
        return [self._points[name] for name in self._candidates if name in self._points]

    def _of(self, point: Point) -> list[Trial]:
        return self._trials[point.candidate.name]


def _candidate(
    settings: GenerationSettings,
    kind: Literal["lookahead", "threshold", "policy"],
    value: float | None,
    **changes: Any,
) -> Candidate:
    changed = GenerationSettings.checked(**{**settings.model_dump(), **changes})
    name = f"{kind} {changed.policy if value is None else format(value, 'g')}"
    return Candidate(kind=kind, name=name, value=value, settings=changed)
