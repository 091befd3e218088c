"""The benchmark: suites of tasks × decoding strategies, each speculative run between two plain runs of its engine.

Finished rows are kept in a journal beside the output, so that a run that was stopped or crashed resumes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from specdemo.bench.journal import Journal
from specdemo.bench.plan import Batch, BenchPlan
from specdemo.bench.results import Bench, EngineFacts, JournalLine, Row
from specdemo.bench.suites import Task
from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.errors import FileError, PromptError
from specdemo.measure.hardware import Loader, measure_bound, measure_memory
from specdemo.measure.race import WARM_UP_PROMPT
from specdemo.measure.step_costs import measure_costs
from specdemo.measure.trials import can_run, rehearse, trials
from specdemo.progress import Progress
from specdemo.records import SIDES, Costs, Environment, Trial
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName


def bench(
    load: Callable[[EngineName], Engine],
    plan: BenchPlan,
    *,
    journal: Journal | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Progress[Bench]]:
    """Run what the journal does not hold yet; yield a state before the first trial of an engine and after each trial.

    Once `stop` returns True, finished results stand.

    Raises:
        FileError: the journal holds a different benchmark, or one from another machine.
        SettingsError: there is no such method for this pair.
        SpecdemoError: an engine failed. A prompt that cannot be run is not an error, but a row that says so.
    """
    state = plan.begun(journal.open(plan.header, JournalLine) if journal is not None else [])
    spent, new = 0.0, 0
    yield Progress(len(state.rows), state.total, None, state, "starting")
    for name, batches in plan.missing(state.rows).items():
        if stop():
            return
        yield Progress(len(state.rows), state.total, None, state, f"loading {name}")
        with closing(load(name)) as engine:
            if (begun := state.engines.get(name)) is not None:
                check_environment(begun.environment, engine.environment)
            costs = measure_costs(engine, stop=stop)
            if stop():
                return
            facts = EngineFacts(environment=engine.environment, costs=costs)
            state = state.model_copy(update={"engines": {**state.engines, name: facts}})
            if journal is not None:
                journal.append(JournalLine(engine=name, facts=facts))
            began = perf_counter()
            for row in _rows(engine, plan.ways_of(name), batches, costs, stop):
                if journal is not None:
                    journal.append(JournalLine(row=row))
                state = state.model_copy(update={"rows": (*state.rows, row)})
                new, spent, began = new + 1, spent + perf_counter() - began, perf_counter()
                left = spent / new * (state.total - len(state.rows))
                yield Progress(len(state.rows), state.total, left, state, f"{name}: {row.prompt}")


def bench_and_hardware(
    load: Callable[[EngineName], Engine], plan: BenchPlan, *, journal: Journal | None = None, stop: Callable[[], bool]
) -> Iterator[Progress[Bench]]:
    """`bench`, and `with_hardware` once every row is there."""
    yield from completed(
        bench(load, plan, journal=journal, stop=stop), "memory and bandwidth", partial(with_hardware, stop=stop)
    )


def completed(steps: Iterator[Progress[Any]], doing: str, more: Callable[[Any], Any]) -> Iterator[Progress[Any]]:
    """These steps, and `more` of what they found if that is complete."""
    last = None
    for last in steps:
        yield last
    if last is not None and last.found.complete:
        yield replace(last, doing=doing, seconds_left=None)
        yield replace(last, found=more(last.found))


def check_environment(begun: Environment, here: Environment) -> None:
    """Check that a run goes on where it was begun.

    Raises:
        FileError: its rows so far were measured elsewhere.
    """
    if begun != here:
        raise FileError(
            "The rows so far were measured with other versions or settings of OpenVINO; choose another "
            "output path, or delete the file that ends in .rows.jsonl."
        )


def with_hardware(result: Bench, load: Loader = load_engine, *, stop: Callable[[], bool] = lambda: False) -> Bench:
    """The same with memory use on every engine that ran, and the limit that memory bandwidth sets.

    Once `stop` returns True, the result is unchanged.

    Raises:
        SpecdemoError: a model cannot be loaded, or a child process died.
    """
    pair, uses = result.header.pair, []
    if pair.target.server is not None:  # nothing of it is on this machine
        return result
    drafter = "model" if pair.draft is not None else "lookup"
    ran = {row.prompt for row in result.rows if row.trial is not None}
    prompt = next((task.prompt for task in result.tasks if task.name in ran), WARM_UP_PROMPT)
    for engine in result.engines:
        settings = result.header.settings.model_copy(
            update={"engine": engine, "policy": "constant", "drafter": drafter}
        )
        uses += [measure_memory(pair, prompt, settings, side, load, stop) for side in SIDES]
    if stop():
        return result
    facts = next(iter(result.engines.values()), None)
    middle = result.header.settings.max_new_tokens // 2
    bound = measure_bound(pair, facts.environment, middle) if facts is not None else None
    return result.model_copy(update={"memory": tuple(filter(None, uses)), "bound": bound})


def _rows(
    engine: Engine,
    strategies: dict[str, GenerationSettings],
    batches: Sequence[Batch],
    costs: Costs | None,
    stop: Callable[[], bool],
) -> Iterator[Row]:
    """Run the batches; yield each finished row."""
    able = {strategy: settings for strategy, settings in strategies.items() if can_run(engine.pair, settings, costs)}
    for batch in batches:
        used = sorted({strategy for _, _, order in batch for strategy in order} & able.keys())
        rehearse(engine, WARM_UP_PROMPT, [able[strategy] for strategy in used], costs, stop)
        for repeat, task, order in batch:
            for strategy, trial, problem in _tried(engine, task, order, able, costs, stop):
                yield Row(
                    engine=strategies[strategy].engine,
                    method=strategy.partition(" ")[2],
                    task=task.task,
                    prompt=task.name,
                    repeat=repeat,
                    trial=trial,
                    problem=problem,
                )
            if stop():
                return


def _tried(
    engine: Engine,
    task: Task,
    order: Sequence[str],
    able: dict[str, GenerationSettings],
    costs: Costs | None,
    stop: Callable[[], bool],
) -> Iterator[tuple[str, Trial | None, str | None]]:
    """Every method with its trial, or with why it has none."""
    ran, done = [strategy for strategy in order if strategy in able], 0
    yield from (
        (strategy, None, "It needs step costs, which are unknown for this pair.")
        for strategy in order
        if strategy not in able
    )
    try:
        for trial in trials(engine, task.prompt, [able[strategy] for strategy in ran], costs, stop):
            done += 1
            yield ran[done - 1], trial, None if trial is not None else "The text ended at its first token."
    except PromptError as error:
        yield from ((strategy, None, str(error)) for strategy in ran[done:])
