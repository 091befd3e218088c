"""The benchmark: suites of tasks × ways of decoding, each speculative run between two plain runs of its engine.

Finished rows are kept in a journal beside the output, so that a run that was stopped or crashed resumes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from random import Random
from time import perf_counter
from typing import Any

from specdemo.bench.journal import Journal
from specdemo.bench.methods import available
from specdemo.bench.results import Bench, EngineFacts, Header, JournalLine, Row
from specdemo.bench.suites import Task
from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.errors import FileError, PromptError, SettingsError, quoted
from specdemo.measure.hardware import Loader, measure_bound, measure_memory
from specdemo.measure.race import WARM_UP_PROMPT
from specdemo.measure.step_costs import measure_costs
from specdemo.measure.trials import can_run, rehearse, trials
from specdemo.progress import Progress
from specdemo.records import SIDES, Costs, Environment, ModelPair, Trial
from specdemo.settings import GenerationSettings
from specdemo.ways import ENGINES, EngineName

REPEATS = 3

Batch = list[tuple[int, Task, list[str]]]
"""Repeats, prompts, and the methods to run, in their order."""


def bench(
    load: Callable[[EngineName], Engine],
    pair: ModelPair,
    tasks: Sequence[Task],
    settings: GenerationSettings,
    *,
    methods: Sequence[str] | None = None,
    repeats: int = REPEATS,
    journal: Journal | None = None,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Progress[Bench]]:
    """Run what the journal does not hold yet; yield a state before the first trial of an engine and after each trial.

    Once `stop` returns True, finished results stand.

    Raises:
        FileError: the journal holds a different benchmark, or one from another machine.
        SettingsError: there is no such method for this pair.
        SpecdemoError: an engine failed. A prompt that cannot be run is not an error, but a row that says so.
    """
    ways = available(pair, settings)
    chosen = tuple(dict.fromkeys(ways if methods is None else methods))
    unknown = next((name for name in chosen if name not in ways), None)
    if unknown is not None or not chosen:
        raise SettingsError(f"There is no method {quoted(unknown)} for this pair; choose from {', '.join(ways)}.")
    header = Header.of(pair, settings, chosen, tasks)
    entries = journal.open(header, JournalLine) if journal is not None else []
    rows = [entry.row for entry in entries if entry.row is not None and entry.row.repeat < repeats]
    finished = {_key(row): row for row in rows}
    engines = {entry.engine: entry.facts for entry in entries if entry.engine is not None and entry.facts is not None}
    state = Bench(
        header=header,
        tasks=tuple(tasks),
        date=datetime.now(UTC).date().isoformat(),
        repeats=repeats,
        engines=engines,
        rows=tuple(finished.values()),
    )
    total, spent, new, random = len(tasks) * repeats * len(chosen), 0.0, 0, Random(seed)
    yield Progress(len(state.rows), total, None, state, "starting")
    for name in ENGINES:
        mine = {way: ways[way] for way in chosen if ways[way].engine == name}
        batches = _batches(name, mine, tasks, repeats, finished, random)
        if not batches or stop():
            continue
        yield Progress(len(state.rows), total, None, state, f"loading {name}")
        engine = load(name)
        try:
            check_environment(engines[name].environment if name in engines else None, engine.environment)
            costs = measure_costs(engine, stop=stop)
            if stop():
                return
            facts = EngineFacts(environment=engine.environment, costs=costs)
            state = state.model_copy(update={"engines": {**state.engines, name: facts}})
            if journal is not None:
                journal.append(JournalLine(engine=name, facts=facts))
            began = perf_counter()
            for row in _rows(engine, mine, batches, costs, stop):
                if journal is not None:
                    journal.append(JournalLine(row=row))
                state = state.model_copy(update={"rows": (*state.rows, row)})
                new, spent, began = new + 1, spent + perf_counter() - began, perf_counter()
                left = spent / new * (total - len(state.rows))
                yield Progress(len(state.rows), total, left, state, f"{name}: {row.prompt}")
            if stop():
                return
        finally:
            engine.close()


def bench_and_hardware(
    load: Callable[[EngineName], Engine], *arguments: Any, stop: Callable[[], bool], **options: Any
) -> Iterator[Progress[Bench]]:
    """`bench`, and `with_hardware` once every row is there."""
    yield from completed(
        bench(load, *arguments, stop=stop, **options), "memory and bandwidth", partial(with_hardware, stop=stop)
    )


def completed(steps: Iterator[Progress[Any]], doing: str, more: Callable[[Any], Any]) -> Iterator[Progress[Any]]:
    """These steps, and `more` of what they found if that is complete."""
    last = None
    for last in steps:
        yield last
    if last is not None and last.found.complete:
        yield replace(last, doing=doing, seconds_left=None)
        yield replace(last, found=more(last.found))


def check_environment(begun: Environment | None, here: Environment) -> None:
    """Check that a run goes on where it was begun; None: it was not.

    Raises:
        FileError: its rows so far were measured elsewhere.
    """
    if begun is not None and begun != here:
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


def _batches(
    engine: EngineName,
    ways: dict[str, GenerationSettings],
    tasks: Sequence[Task],
    repeats: int,
    finished: dict[tuple[Any, ...], Row],
    random: Random,
) -> list[Batch]:
    """Repeats, prompts and methods that are unfinished, in the order in which to run them.

    One batch per drafter: GenAI keeps one kind of speculative pipeline, and a new one starts cold.
    """
    batches = []
    for drafter in dict.fromkeys(settings.drafter for settings in ways.values()):
        mine, batch = sorted(way for way in ways if ways[way].drafter == drafter), Batch()
        for repeat in range(repeats):
            for task in random.sample(tasks, len(tasks)):
                order = random.sample(mine, len(mine))
                missing = [way for way in order if (engine, _method(way), task.name, repeat) not in finished]
                if missing:
                    batch.append((repeat, task, missing))
        if batch:
            batches.append(batch)
    return batches


def _rows(
    engine: Engine,
    ways: dict[str, GenerationSettings],
    batches: Sequence[Batch],
    costs: Costs | None,
    stop: Callable[[], bool],
) -> Iterator[Row]:
    """Run the batches; yield each finished row."""
    able = {way: settings for way, settings in ways.items() if can_run(engine.pair, settings, costs)}
    for batch in batches:
        used = sorted({way for _, _, order in batch for way in order} & able.keys())
        rehearse(engine, WARM_UP_PROMPT, [able[way] for way in used], costs, stop)
        for repeat, task, order in batch:
            for way, trial, problem in _tried(engine, task, order, able, costs, stop):
                name, method = ways[way].engine, _method(way)
                yield Row(
                    engine=name,
                    method=method,
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
    ran, done = [way for way in order if way in able], 0
    yield from (
        (way, None, "It needs step costs, which are unknown for this pair.") for way in order if way not in able
    )
    try:
        for trial in trials(engine, task.prompt, [able[way] for way in ran], costs, stop):
            done += 1
            yield ran[done - 1], trial, None if trial is not None else "The text ended at its first token."
    except PromptError as error:
        yield from ((way, None, str(error)) for way in ran[done:])


def _key(row: Row) -> tuple[Any, ...]:
    return row.engine, row.method, row.prompt, row.repeat


def _method(way: str) -> str:
    return way.partition(" ")[2]
