"""The sweep: find the fastest setting for these prompts on this machine, and how certain that is.

Every setting runs on every prompt several times, in an order reshuffled each time and between two plain runs, so that
neither drift nor a setting's neighbours favour any of them. The fastest of many is partly the luckiest, so it runs
again, and only these fresh runs are quoted.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any, Literal, Self

from specdemo.engines import Engine
from specdemo.errors import SettingsError
from specdemo.estimate import summarise
from specdemo.experiments.checkpoint import EngineFacts, Header
from specdemo.experiments.plan import LoadedEngine, Session, Stop, never, run
from specdemo.experiments.suites import Task
from specdemo.experiments.sweep_result import Candidate, Point, Sweep, recommend, rounded_speedup
from specdemo.experiments.trials import Group, TrialPlan, TrialRow
from specdemo.measure import MAX_LOOKAHEAD, can_run, run_alone
from specdemo.metrics import predict
from specdemo.records import Costs, ModelPair, Progress, Request
from specdemo.settings import GenerationSettings
from specdemo.strategies import STRATEGIES, Strategy, pair_refusal, strategies

THRESHOLDS = (0.2, 0.4, 0.6, 0.8)
LOOKAHEADS = tuple(range(1, MAX_LOOKAHEAD + 1))
REPEATS = 3
FRESH = 8  # minimum fresh runs of the fastest setting, equally many per prompt
_ORDER = ("lookahead", "threshold", "policy")
_TRYING = 0.6  # share of a time limit for trying settings; the rest is for fresh runs
_NONE = "This pair supports none of the settings to be tried; choose another engine or drafter."


def candidates(
    pair: ModelPair,
    settings: GenerationSettings,
    lookaheads: Sequence[int] = LOOKAHEADS,
    thresholds: Sequence[float] = THRESHOLDS,
) -> list[Candidate]:
    """Return the settings to try with this pair, engine and drafter, including policies without a number.

    Raises:
        SettingsError: a lookahead or threshold is out of range, or there is nothing to try.
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
    """Check if a strategy fits: only trees with a tree depth; none that needs step costs without a KV cache."""
    switched = strategy.switch is not None and bool(getattr(settings, strategy.switch))
    others = any(other.switch is not None and getattr(settings, other.switch) for other in STRATEGIES.values())
    fits = switched if strategy.switch is not None else not others
    return fits and not (strategy.needs_costs and settings.kv_cache == "off")


def _nothing(settings: GenerationSettings, numbers: Collection[str]) -> str:
    """Advise what to choose if nothing can be tried, given the settings that may vary."""
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


class SweepHeader(Header):
    """Identity of a sweep. `repeats` tell fresh runs from those that choose the fastest setting."""

    repeats: int

    def differences(self, earlier: Self) -> list[str]:
        same = self.repeats == earlier.repeats
        return super().differences(earlier) + ["another number of repeats"] * (not same)


@dataclass(frozen=True)
class SweepPlan(TrialPlan[Sweep]):
    """Every prompt with each of the settings `tried`; repeats beyond `repeats` are fresh runs of the fastest.

    `seconds` is an approximate time limit, counted from the first run: settings are tried for part of it, and the
    fastest one runs again for the rest.
    """

    tried: Sequence[Candidate] = ()
    seconds: float | None = None
    _clock: _Clock = field(default_factory=_Clock, compare=False)

    @cached_property
    def variants(self) -> dict[str, GenerationSettings]:
        """Settings to try, by name."""
        return {f"{each.settings.engine} {each.name}": each.settings for each in self.tried}

    @cached_property
    def header(self) -> SweepHeader:
        return SweepHeader(**dict(super().header), repeats=self.repeats)

    @property
    def again(self) -> int:
        """Number of fresh runs of the fastest setting on each prompt."""
        return -(-FRESH // len(self.tasks))

    def covers(self, row: TrialRow) -> bool:
        return row.repeat < self.repeats + self.again

    def fitted(self, engine: Engine, costs: Costs | None) -> "SweepPlan":
        """Leave out the settings that the loaded pair does not support.

        Raises:
            SettingsError: it supports none of them.
        """
        tried = [each for each in self.tried if can_run(engine.pair, each.settings, costs)]
        if not tried:
            raise SettingsError(_NONE)
        return replace(self, tried=tried)

    def missing(self, rows: Sequence[TrialRow]) -> list[Session[Group]]:
        """Return the remaining runs; after those, fresh runs of the fastest setting."""
        finished = {row.key for row in rows}
        left = [] if self._over(_TRYING) else self.sessions(finished, range(self.repeats), list(self.variants))
        if left:
            return left
        best, again = self.fastest(rows), any(row.repeat >= self.repeats for row in rows)
        fresh = range(self.repeats, self.repeats + (0 if again and self._over(1) else self.again))
        return [] if best is None else self.sessions(finished, fresh, [f"{best.settings.engine} {best.name}"])

    def _over(self, share: float) -> bool:
        """Check if this share of the time limit has passed."""
        return self.seconds is not None and self._clock.seconds > share * self.seconds

    def seconds_left(self) -> float | None:
        return None if self.seconds is None else max(self.seconds - self._clock.seconds, 0.0)

    def ended(self, found: Sweep) -> Sweep:
        """Mark the sweep as complete, even if the time limit left out some runs."""
        return found if found.complete or self.seconds is None else found.model_copy(update={"planned": found.runs})

    def fastest(self, rows: Sequence[TrialRow]) -> Candidate | None:
        """Return the fastest setting, ignoring fresh runs; the first among equals. None if nothing was timed."""
        best = max(self.points(rows), key=rounded_speedup, default=None)
        return best.candidate if best is not None else None

    def points(self, rows: Sequence[TrialRow], *, fresh: bool = False) -> list[Point]:
        """Summarise the trials of each setting."""
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
        """Run the groups, after checking that every prompt can be run.

        Raises:
            PromptError: a prompt is empty or too long.
        """
        self._clock.start()
        share = 1.0 if any(step.repeat >= self.repeats for step in steps) else _TRYING
        for task in self.tasks:
            run_alone(engine.decoder(Request.of(task.prompt, self.settings).plain), 1, stop)
        rows: list[TrialRow] = []  # measure at least one, however long it takes
        for row in super().measure(engine, costs, steps, lambda: stop() or (bool(rows) and self._over(share))):
            rows.append(row)
            yield row

    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[TrialRow]) -> Sweep:
        points, best = self.points(rows), self.fastest(rows)
        fresh = next((point for point in self.points(rows, fresh=True) if point.candidate == best), None)
        first = next(iter(facts.values()), None)
        costs = first.costs if first is not None else None
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
            prediction = predict(costs, acceptance)
        return Sweep(
            pair=self.pair,
            prompts=tuple(task.prompt for task in self.tasks),
            settings=self.settings,
            environment=first.environment if first is not None else None,
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
    """Return typed prompts as tasks."""
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
    """Measure the candidates with a loaded engine, then the fastest again; yield progress first and after each trial.

    Candidates that this pair does not support are left out. `seconds` is the time limit of `SweepPlan`. Once `stop`
    returns True, the sweep ends with the results so far.

    Raises:
        SpecdemoError: a prompt or the settings cannot be run, or the engine failed.
    """
    plan = SweepPlan(engine.pair, prompts_as_tasks(prompts), settings, tried, seconds, repeats=repeats, seed=seed)
    yield from run(plan, loaded=LoadedEngine(engine, costs), stop=stop)
