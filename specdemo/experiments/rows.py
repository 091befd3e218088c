"""Run a plan row by row, and average the rows of each variant.

A row is a trial: a speculative run between two plain runs of the same prompt. A warmer or busier machine affects
neighbours almost equally, so they are compared, never distant runs. With several requests at once, it is two blocks.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from statistics import fmean
from time import perf_counter

import numpy as np

from specdemo.capabilities import EngineName
from specdemo.engines.base import Engine
from specdemo.errors import PromptError, RunError
from specdemo.experiments.concurrent import run_blocks
from specdemo.experiments.plan import Group, Plan, Stage, Variant
from specdemo.experiments.prompts import Task
from specdemo.racing.costs import known_costs, load_costs
from specdemo.racing.race import run_alone
from specdemo.racing.trials import can_run, trials, warm_up_variants
from specdemo.racing.warm_up import WARM_UP_PROMPT
from specdemo.records import Costs, Environment, ModelPair, Progress, Record, Request, Run, Trial, Turn
from specdemo.results import metrics
from specdemo.results.estimate import Speedup, of_trials
from specdemo.results.metrics import answer
from specdemo.settings import GenerationSettings
from specdemo.text import counted

MIN_TRIALS = 2  # of each setting, before its runs are shortened: a second run shows how much the first says
MIN_TOKENS = 8  # of a shortened run: in fewer, neither side settles
COSTS_SHARE = 0.2  # of a time limit, at most, for step costs: trying the settings is what is asked for
WARM_UP_SHARE = 0.2  # of the time left, for rounds of each setting beforehand, which compile what it needs

LoadEngine = Callable[[EngineName, ModelPair], Engine]
Stop = Callable[[], bool]

_NO_COSTS = "It needs step costs, which are unknown for this pair."
_NO_TEXT = "The text ended at its first token."


class Row(Record):
    """One trial of a variant; without it, `problem` gives the reason. A block of several requests at once has no
    prompt; its `ttft` and `tpot` are the seconds of every request, plain and speculative.
    """

    variant: str
    task: str
    prompt: str
    repeat: int
    trial: Trial | None
    ttft: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    tpot: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    problem: str | None = None


class EngineFacts(Record):
    """Facts shared by all rows of an engine. `costs` are its step costs, if they can be measured."""

    environment: Environment
    costs: Costs | None = None


class Result(Record):
    """Rows of an experiment, finished or not. `settings` are those that do not vary. `total` rows make it complete; a
    time limit lowers it at the end. `engines` holds facts by engine.
    """

    pair: ModelPair
    settings: GenerationSettings
    variants: dict[str, Variant]
    tasks: tuple[Task, ...]
    date: str
    total: int
    engines: dict[str, EngineFacts]
    rows: tuple[Row, ...]

    @property
    def complete(self) -> bool:
        return len(self.rows) >= self.total

    @property
    def measured(self) -> bool:
        return any(row.trial is not None for row in self.rows)


class Latency(Record):
    """In seconds, over requests."""

    mean: float
    p50: float
    p95: float
    p99: float


class Point(Record):
    """Figures of one variant, over all its rows or a `part` of them, such as a task.

    τ and α are ratios of sums; None if the engine does not report rounds or proposals. Tokens per second are those of
    the speculative runs and of their plain neighbours. `ttft` and `tpot` are those of all requests of its blocks,
    plain and speculative.
    """

    variant: str
    part: str = ""
    speedup: Speedup
    mean_acceptance_length: float | None
    acceptance_rate: float | None
    runs: int
    identical_runs: int
    sampled: bool = False
    tokens_per_second: float
    plain_tokens_per_second: float
    ttft: tuple[Latency, Latency] | None = None
    tpot: tuple[Latency, Latency] | None = None

    @property
    def outputs(self) -> str:
        """In words; draws of both sides differ by chance."""
        if self.sampled:
            return "outputs sampled"
        if self.identical_runs == self.runs:
            return "outputs identical"
        return f"outputs identical in {self.identical_runs} of {self.runs}"


def points(result: Result, *, part: Callable[[Row], str] = lambda row: "") -> list[Point]:
    """Every variant with a trial, in order, by part. The intervals of all points hold together, so the best of them
    may be named.
    """
    grouped: dict[tuple[str, str], list[tuple[Row, Trial]]] = {}
    for row in result.rows:
        if row.trial is not None:
            grouped.setdefault((row.variant, part(row)), []).append((row, row.trial))
    order = [*result.variants]
    keys = sorted(grouped, key=lambda key: order.index(key[0]))
    sampled = {name: variant.settings.do_sample for name, variant in result.variants.items()}
    return [_point(*key, grouped[key], tried=len(keys), sampled=sampled[key[0]]) for key in keys]


def _point(name: str, part: str, done: Sequence[tuple[Row, Trial]], *, tried: int, sampled: bool) -> Point:
    rows, trials = zip(*done, strict=True)
    prompts: list[Hashable] = [row.prompt for row in rows]
    tokens = sum(trial.tokens for trial in trials)
    counts = ([getattr(trial, kind) for trial in trials] for kind in ("accepted", "proposed", "passes"))
    accepted, proposed, passes = (None if None in column else sum(column) for column in counts)
    return Point(
        variant=name,
        part=part,
        sampled=sampled,
        speedup=of_trials(trials, prompts, tried=tried),
        mean_acceptance_length=sum(trial.run_tokens for trial in trials) / passes if passes else None,
        acceptance_rate=accepted / proposed if accepted is not None and proposed else None,
        runs=len(trials),
        identical_runs=sum(trial.identical for trial in trials),
        tokens_per_second=tokens / sum(trial.seconds for trial in trials),
        plain_tokens_per_second=tokens / sum(trial.plain_seconds for trial in trials),
        ttft=_latencies([row.ttft for row in rows]),
        tpot=_latencies([row.tpot for row in rows]),
    )


def _latencies(rows: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[Latency, Latency] | None:
    """Return both sides' latencies over all requests; None if there are none."""
    plain, speculative = ([seconds for row in rows for seconds in row[side]] for side in (0, 1))
    if not plain or not speculative:
        return None
    return _latency(plain), _latency(speculative)


def _latency(seconds: Sequence[float]) -> Latency:
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99)).tolist()
    return Latency(mean=fmean(seconds), p50=p50, p95=p95, p99=p99)


def fastest(candidates: Iterable[Point]) -> Point | None:
    """Return the point with the greatest speedup, the first of near-equal ones; None if there is none."""
    return max(candidates, key=lambda point: round(point.speedup.ratio, 3), default=None)


def measure(
    plan: Plan,
    load: LoadEngine,
    *,
    keep: bool = False,
    stop: Stop = lambda: False,
    began: float | None = None,
    known: Costs | None = None,
) -> Iterator[Progress[Result]]:
    """Measure, yielding progress at the start and after every row, until `stop` returns True.

    `began`: when it was asked for, by `perf_counter`, whose times all processes share; now, if None. `known`: step
    costs, which are not measured again. Closes engines
    that `load` returned, unless `keep`. SpecdemoError: an engine failed, or nothing could be measured.
    """
    state, loaded = _Measurement(plan, stop, began), ""
    yield state.progress("starting")
    with ExitStack() as engines:
        for stage in plan.stages():
            if stop():
                return
            if state.rows and state.over(stage.until):  # while the engine of another was loaded
                continue
            if loaded != stage.engine:
                yield state.progress(f"loading {stage.engine}")
                engines.close()
                engine, loaded = load(stage.engine, plan.pair), stage.engine
                if not keep:
                    engines.callback(engine.close)
                yield state.progress("measuring step costs")
                costs = known or state.costs(engine)
            state.facts[stage.engine] = EngineFacts(environment=engine.environment, costs=costs)
            yield state.progress("warming up")
            for _ in state.run(stage, engine, costs):
                yield state.progress(f"measuring {state.reach}".rstrip())
    if stop():
        return
    result = state.result()
    problem = next((row.problem for row in result.rows if row.problem is not None), None)
    if problem is not None and not result.measured:
        raise RunError(f"Nothing could be measured: {problem}")
    if not result.complete:  # the time is over
        result = result.model_copy(update={"total": len(result.rows)})
    yield Progress(len(result.rows), result.total, 0.0, result, "finished", plan.minutes and plan.minutes * 60)


def _of_task(settings: GenerationSettings, task: Task) -> GenerationSettings:
    """Use the task's system prompt, if it has one, instead of the plan's."""
    return settings.model_copy(update={"system_prompt": task.system_prompt}) if task.system_prompt else settings


class _Measurement:
    """The rows so far, facts about engines, and the clock. `reach` says what the time allows, once that is known."""

    def __init__(self, plan: Plan, stop: Stop, began: float | None = None) -> None:
        self.plan, self.stop, self.reach = plan, stop, ""
        self.rows: list[Row] = []
        self.facts: dict[str, EngineFacts] = {}
        self.began = perf_counter() if began is None else began
        self.warm: tuple[str, str] | None = None  # engine and drafter of what was warmed up last
        self.answers: dict[tuple[str, ...], str] = {}  # the target's own, by system prompt and all turns so far

    def run(self, stage: Stage, engine: Engine, costs: Costs | None) -> Iterator[Row]:
        def over() -> bool:  # not before the first row of all
            return self.stop() or (bool(self.rows) and self.over(stage.until))

        kind = stage.engine, self.plan.variants[stage.groups[0].order[0]].settings.drafter
        if stage.groups[0].task is not None and kind != self.warm:
            self.warm = kind
            candidates = (self.plan.variants[name].settings for name in sorted(stage.groups[0].order))
            runnable = [settings for settings in candidates if can_run(engine.pair, settings, costs)]
            left = None if self.plan.minutes is None else stage.until * self.plan.minutes * 60 - self.seconds
            plain = warm_up_variants(
                engine, WARM_UP_PROMPT, runnable, costs, over, None if left is None else WARM_UP_SHARE * left
            )
            if plain is not None and left is not None and not self.reach:
                self.fit(plain)
        for group in stage.groups:
            if over():
                return
            concurrent = group.task is None
            for row in self.blocks(engine, group, over) if concurrent else self.trials(engine, costs, group, over):
                self.rows.append(row)
                yield row

    def costs(self, engine: Engine) -> Costs | None:
        """Within a time limit they are measured only for policies that depend on them, and shorter."""
        if self.plan.minutes is None:
            return known_costs(engine, stop=self.stop)
        if not any(variant.settings.strategy.needs_costs for variant in self.plan.variants.values()):
            return load_costs(engine.name, engine.pair)
        return known_costs(engine, stop=self.stop, seconds=COSTS_SHARE * self.plan.minutes * 60)

    def fit(self, plain: Run) -> None:
        """Shorten runs until the time allows `MIN_TRIALS` of each variant, by the pace of a plain run."""
        plan, number = self.plan, len(self.plan.variants)
        tokens, engines = plan.settings.max_new_tokens, len({each.settings.engine for each in plan.variants.values()})
        left = (plan.minutes or 0) * 60 - self.seconds * engines  # each takes as long to load
        step = metrics.decode_seconds(plain) / max(len(plain.rounds), 1)

        def trials_for(tokens: int) -> float:  # a trial is a speculative run and a plain one
            return left / (2 * (plain.prefill.seconds + tokens * step)) / number

        while trials_for(tokens) < MIN_TRIALS and tokens > MIN_TOKENS:
            tokens -= 1
        update = {"max_new_tokens": tokens}
        shorter = {
            name: variant.model_copy(update={"settings": variant.settings.model_copy(update=update)})
            for name, variant in plan.variants.items()
        }
        self.plan = replace(plan, settings=plan.settings.model_copy(update=update), variants=shorter)
        most = min(max(int(trials_for(tokens)), 1), plan.repeats * len(plan.tasks))
        each = f"each about {most} times" if most > 1 else "most of them once"
        self.reach = f"{counted(number, 'setting')}, {each}, at most {tokens} tokens a run"

    def trials(self, engine: Engine, costs: Costs | None, group: Group, stop: Stop) -> Iterator[Row]:
        """Yield a row for each variant of a group, with its trial or the reason why there is none."""
        task = group.task
        assert task is not None
        row = partial(Row, task=task.task, prompt=task.name, repeat=group.repeat)
        able = [name for name in group.order if can_run(engine.pair, self.plan.variants[name].settings, costs)]
        yield from (row(variant=name, trial=None, problem=_NO_COSTS) for name in group.order if name not in able)
        left = [*able]
        try:
            history = self.history(engine, task)
            settings = [_of_task(self.plan.settings_of(name, group.repeat), task) for name in able]
            for trial in trials(engine, task.prompt, settings, costs, stop, history):
                problem = None if trial is not None else _NO_TEXT
                yield row(variant=left.pop(0), trial=trial, problem=problem)
        except PromptError as error:
            yield from (row(variant=name, trial=None, problem=str(error)) for name in left)

    def history(self, engine: Engine, task: Task) -> tuple[Turn, ...]:
        """The turns before a prompt, with the target's greedy answers, decoded untimed."""
        greedy = _of_task(self.plan.settings.model_copy(update={"do_sample": False}), task)
        history: tuple[Turn, ...] = ()
        for index, prompt in enumerate(task.before, 1):
            turns = (task.system_prompt, *task.before[:index])
            if turns not in self.answers:
                response = run_alone(engine.decoder(Request.of(prompt, greedy, history).plain), stop=self.stop)
                self.answers[turns] = answer(response.text)
            history = (*history, Turn(prompt=prompt, answer=self.answers[turns]))
        return history

    def blocks(self, engine: Engine, group: Group, stop: Stop) -> Iterator[Row]:
        """Yield a row for each variant; every second repeat reverses the order, so that drift favours no side."""
        variants = [self.plan.variants[name] for name in group.order]
        concurrency = variants[0].concurrency or 1
        requests = {"": Request.of("", variants[0].settings).plain}
        requests |= {variant.name: Request.of("", variant.settings) for variant in variants}
        if group.repeat % 2 == 0:
            requests = dict(reversed(requests.items()))
        measured = run_blocks(engine, requests, self.plan.tasks, concurrency, f"{group.repeat} {concurrency}", stop)
        if measured is None:
            return
        plain, row = measured[""], partial(Row, task="", prompt="", repeat=group.repeat)
        for name in group.order:
            block = measured[name]
            latencies = {"ttft": (plain.ttft, block.ttft), "tpot": (plain.tpot, block.tpot)}
            yield row(variant=name, trial=block.against(plain), **latencies)

    @property
    def seconds(self) -> float:
        return perf_counter() - self.began

    def over(self, share: float) -> bool:
        return self.plan.minutes is not None and self.seconds > share * self.plan.minutes * 60

    def result(self) -> Result:
        return Result(
            pair=self.plan.pair,
            settings=self.plan.settings,
            variants=dict(self.plan.variants),
            tasks=tuple(self.plan.tasks),
            date=datetime.now(UTC).date().isoformat(),
            total=self.plan.total,
            engines=dict(self.facts),
            rows=tuple(self.rows),
        )

    def progress(self, doing: str) -> Progress[Result]:
        done, total, left = len(self.rows), self.plan.total, None
        limit = self.plan.minutes and self.plan.minutes * 60
        if limit:
            left = max(limit - self.seconds, 0.0)
        elif done:
            left = self.seconds / done * max(total - done, 0)
        return Progress(done, max(total, done), left, self.result(), doing, limit)
