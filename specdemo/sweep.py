"""The sweep: which lookahead or threshold decodes fastest here, for these prompts, with what certainty.

Every setting is run on every prompt several times, in an order that is shuffled anew each time, each run between two
plain ones. So neither a machine that warms up nor a setting's neighbours favour anyone. What comes out is one
recommendation; that no setting beats plain decoding is one, too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Any, Literal

from specdemo.costs import MAX_LOOKAHEAD
from specdemo.engines.base import Engine
from specdemo.errors import SettingsError
from specdemo.figures import number, percent
from specdemo.predict import Prediction, predict
from specdemo.records import Costs, Environment, ModelPair, Record
from specdemo.settings import GenerationSettings
from specdemo.trials import Summary, Trial, can_run, summarise, trials, warm_up

THRESHOLDS = (0.2, 0.4, 0.6, 0.8)
LOOKAHEADS = tuple(range(1, MAX_LOOKAHEAD + 1))
REPEATS = 3


class Candidate(Record):
    """A setting to try: a lookahead of so many tokens, a confidence threshold, or a policy without a number."""

    kind: Literal["lookahead", "threshold", "policy"]
    name: str
    value: float | None
    settings: GenerationSettings


class Point(Summary):
    """What the trials of one candidate gave; of the speedups there are as many as finished trials."""

    candidate: Candidate


class Recommendation(Record):
    """What to do, in a sentence. `candidate` is the best; None where no setting is sure to beat plain decoding."""

    candidate: Candidate | None
    sentence: str


class Sweep(Record):
    """Everything measured so far. `prediction` is not measured: it follows from `costs` and `acceptance`.

    `acceptance` is α as accepted / judged, over all trials with a draft model's lookahead.
    """

    pair: ModelPair
    prompts: tuple[str, ...]
    settings: GenerationSettings
    environment: Environment
    costs: Costs | None
    points: tuple[Point, ...] = ()
    acceptance: float | None = None
    prediction: Prediction | None = None
    recommendation: Recommendation


@dataclass(frozen=True)
class SweepProgress:
    """A state of the sweep. `seconds_left` is an estimate from the trials so far; None before there are any."""

    done: int
    total: int
    seconds_left: float | None
    sweep: Sweep


def candidates(
    settings: GenerationSettings,
    lookaheads: Sequence[int] = LOOKAHEADS,
    thresholds: Sequence[float] = THRESHOLDS,
) -> list[Candidate]:
    """What can be tried with this engine and drafter; the policies of the traced engine among it.

    Raises:
        SettingsError: a lookahead or a threshold is out of its range, or there is none.
    """
    if not lookaheads and not thresholds:
        raise SettingsError("There is nothing to try; name at least one lookahead or threshold.")
    found = [_candidate(settings, "lookahead", f"lookahead {n}", n, num_assistant_tokens=n) for n in lookaheads]
    if settings.drafter == "lookup":
        return found
    for threshold in thresholds:
        values = {"policy": "confidence", "assistant_confidence_threshold": threshold}
        found.append(_candidate(settings, "threshold", f"threshold {threshold:g}", threshold, **values))
    if settings.engine == "traced":
        found.append(_candidate(settings, "policy", "policy heuristic", None, policy="heuristic"))
        if settings.kv_cache == "on":
            found.append(_candidate(settings, "policy", "policy auto", None, policy="auto"))
    return found


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
) -> Iterator[SweepProgress]:
    """Measure the candidates on the prompts; yield a state before the first trial and after each.

    Once `stop` says True, what is finished stands.

    Raises:
        SpecdemoError: a prompt or the settings cannot be run, or the engine failed.
    """
    tried = [candidate for candidate in tried if can_run(candidate.settings, costs)]
    random, results = Random(seed), _Results(engine, tuple(prompts), settings, costs, list(tried))
    total, done, spent = repeats * len(prompts) * len(tried), 0, 0.0
    yield SweepProgress(0, total, None, results.sweep())
    for prompt in prompts[:1]:
        warm_up(engine, prompt, [candidate.settings for candidate in tried], costs)
    for _ in range(repeats):
        for prompt in random.sample(prompts, len(prompts)):
            order = random.sample(tried, len(tried))
            began = perf_counter()
            variants = [candidate.settings for candidate in order]
            for candidate, trial in zip(order, trials(engine, prompt, variants, costs, stop), strict=False):
                done, spent, began = done + 1, spent + perf_counter() - began, perf_counter()
                if trial is not None:
                    results.add(candidate, trial)
                yield SweepProgress(done, total, spent / done * (total - done), results.sweep())
            if stop():
                return


def recommend(points: Sequence[Point]) -> Recommendation:
    """The fastest of the settings whose intervals lie above 1."""
    if not points:
        return Recommendation(candidate=None, sentence="Nothing was measured yet.")
    sure = [point for point in points if point.speedup.low is not None and point.speedup.low > 1]
    best = max(sure or points, key=lambda point: point.speedup.middle)
    name, runs = best.candidate.name, len(best.speedups)
    evidence = f"{best.speedup} in {runs} run{'s' if runs > 1 else ''}"
    outputs = "outputs identical" if best.identical else "but outputs differ"
    if best.speedup.middle <= 1:
        sentence = f"No setting beats plain decoding here: the best, {name}, reached {evidence}, {outputs}."
        return Recommendation(candidate=None, sentence=sentence)
    if best.speedup.low is None:
        sentence = f"Too few runs to be sure: the fastest so far is {name}, {evidence}, {outputs}."
        return Recommendation(candidate=None, sentence=sentence)
    if best.speedup.low <= 1:
        sentence = f"No setting surely beats plain decoding here: the best, {name}, reached {evidence}, {outputs}."
        return Recommendation(candidate=None, sentence=sentence)
    equals = [p.candidate.name for p in points if p is not best and p.speedup.middle >= best.speedup.low]
    others = f" Not surely slower: {', '.join(equals)}." if equals else ""
    sentence = f"Choose {name}: {evidence}, {outputs}.{others}"
    return Recommendation(candidate=best.candidate, sentence=sentence)


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
        self._drafter = settings.drafter
        self._trials: dict[str, list[Trial]] = {candidate.name: [] for candidate in tried}
        self._candidates = {candidate.name: candidate for candidate in tried}
        self._points: dict[str, Point] = {}

    def add(self, candidate: Candidate, trial: Trial) -> None:
        self._trials[candidate.name].append(trial)
        summary = summarise(self._trials[candidate.name])
        self._points[candidate.name] = Point(candidate=candidate, **summary.model_dump())

    def sweep(self) -> Sweep:
        points = [self._points[name] for name in self._candidates if name in self._points]
        constant = [trial for point in points if point.candidate.kind == "lookahead" for trial in self._of(point)]
        acceptance = summarise(constant).token_acceptance if constant else None
        costs = self._known["costs"]
        return Sweep(
            **self._known,
            points=tuple(points),
            acceptance=acceptance,
            prediction=predict(costs, acceptance, self._drafter) if costs and acceptance is not None else None,
            recommendation=recommend(points),
        )

    def _of(self, point: Point) -> list[Trial]:
        return self._trials[point.candidate.name]


def _candidate(
    settings: GenerationSettings,
    kind: Literal["lookahead", "threshold", "policy"],
    name: str,
    value: float | None,
    **changes: Any,
) -> Candidate:
    changed = GenerationSettings.checked(**{**settings.model_dump(), "policy": "constant", **changes})
    return Candidate(kind=kind, name=name, value=value, settings=changed)
