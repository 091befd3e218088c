"""The benchmark: suites of tasks × ways of decoding, each speculative run between two plain runs of its engine.

Rows are kept as they come, in a journal beside the output, so that a run that is stopped or crashes goes on where it
was.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from time import perf_counter
from typing import Any

from specdemo.costs import measure_costs
from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.errors import SettingsError
from specdemo.hardware import SIDES, Loader, measure_bound, measure_memory
from specdemo.journal import Journal
from specdemo.records import ModelPair
from specdemo.results import Bench, EngineFacts, Entry, Header, Row
from specdemo.settings import EngineName, GenerationSettings
from specdemo.tasks import Task
from specdemo.trials import can_run, trials, warm_up

METHODS: dict[str, dict[str, Any]] = {
    "constant": {"policy": "constant"},
    "heuristic": {"policy": "heuristic"},
    "confidence": {"policy": "confidence"},
    "auto": {"policy": "auto"},
    "lookup": {"drafter": "lookup", "policy": "constant"},
}
ENGINES: tuple[EngineName, ...] = ("genai", "traced")
REPEATS = 3


@dataclass(frozen=True)
class BenchProgress:
    """A state of the benchmark. `seconds_left` is an estimate from the rows of this session."""

    doing: str
    done: int
    total: int
    seconds_left: float | None
    bench: Bench


def available(pair: ModelPair, settings: GenerationSettings) -> dict[str, GenerationSettings]:
    """Every way of decoding this pair, by a name such as `traced auto`."""
    ways = {}
    for engine in ENGINES:
        for method, changes in METHODS.items():
            if pair.draft is None and changes.get("drafter") != "lookup":
                continue
            base: dict[str, Any] = settings.model_dump() | {"policy": "constant", "drafter": "model"}
            if engine == "genai":
                base.pop("max_assistant_tokens")  # it knows no cap
            try:
                chosen = GenerationSettings.checked(**{**base, **changes, "engine": engine})
            except SettingsError:  # this engine cannot
                continue
            ways[f"{engine} {method}"] = chosen
    return ways


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
) -> Iterator[BenchProgress]:
    """Run what the journal does not hold yet; yield a state before the first trial of an engine and after each trial.

    Once `stop` says True, what is finished stands.

    Raises:
        FileError: the journal holds another benchmark.
        SettingsError: there is no such method for this pair.
        SpecdemoError: a prompt cannot be run, or an engine failed.
    """
    ways = available(pair, settings)
    chosen = tuple(ways) if methods is None else tuple(methods)
    unknown = next((name for name in chosen if name not in ways), None)
    if unknown is not None or not chosen:
        raise SettingsError(f"There is no method {unknown!r} for this pair; choose among {', '.join(ways)}.")
    header = Header.of(pair, settings, chosen, tasks)
    entries = journal.open(header, Entry) if journal is not None else []
    rows = [entry.row for entry in entries if entry.row is not None and entry.row.repeat < repeats]
    finished = {_key(row): row for row in rows}
    engines = {entry.engine: entry.facts for entry in entries if entry.engine is not None and entry.facts is not None}
    state = Bench(header=header, tasks=tuple(tasks), repeats=repeats, engines=engines, rows=tuple(finished.values()))
    total, spent, new, random = len(tasks) * repeats * len(chosen), 0.0, 0, Random(seed)
    yield BenchProgress("starting", len(state.rows), total, None, state)
    for name in ENGINES:
        mine = {way: ways[way] for way in chosen if ways[way].engine == name}
        todo = _todo(name, mine, tasks, repeats, finished, random)
        if not todo or stop():
            continue
        yield BenchProgress(f"loading {name}", len(state.rows), total, None, state)
        engine = load(name)
        try:
            costs = measure_costs(engine, stop=stop)
            facts = EngineFacts(environment=engine.environment, costs=costs)
            if stop():
                return
            state = state.model_copy(update={"engines": {**state.engines, name: facts}})
            if journal is not None:
                journal.append(Entry(engine=name, facts=facts))
            able = {way: values for way, values in mine.items() if can_run(values, costs)}
            warm_up(engine, tasks[0].prompt, list(able.values()), costs)
            for repeat, task, order in todo:
                began = perf_counter()
                unable = [way for way in order if way not in able]
                ran = [way for way in order if way in able]
                done = trials(engine, task.prompt, [able[way] for way in ran], costs, stop)
                for way, trial in chain(((way, None) for way in unable), zip(ran, done, strict=False)):
                    row = Row(
                        engine=name, method=_method(way), task=task.task, prompt=task.name, repeat=repeat, trial=trial
                    )
                    if journal is not None:
                        journal.append(Entry(row=row))
                    state = state.model_copy(update={"rows": (*state.rows, row)})
                    new, spent, began = new + 1, spent + perf_counter() - began, perf_counter()
                    left = spent / new * (total - len(state.rows))
                    yield BenchProgress(f"{name}: {task.name}", len(state.rows), total, left, state)
                if stop():
                    return
        finally:
            engine.close()


def with_hardware(result: Bench, load: Loader = load_engine) -> Bench:
    """The same with memory use on every engine that ran, and the bound that memory's bandwidth sets.

    Raises:
        SpecdemoError: a model cannot be loaded, or a child process died.
    """
    pair, uses = result.header.pair, []
    drafter = "model" if pair.draft is not None else "lookup"
    prompt = result.tasks[0].prompt
    for engine in result.engines:
        settings = result.header.settings.model_copy(
            update={"engine": engine, "policy": "constant", "drafter": drafter}
        )
        uses += [measure_memory(pair, prompt, settings, side, load) for side in SIDES]
    facts = next(iter(result.engines.values()), None)
    middle = result.header.settings.max_new_tokens // 2
    bound = measure_bound(pair, facts.environment, middle) if facts is not None else None
    return result.model_copy(update={"memory": tuple(uses), "bound": bound})


def _todo(
    engine: EngineName,
    ways: dict[str, GenerationSettings],
    tasks: Sequence[Task],
    repeats: int,
    finished: dict[tuple[Any, ...], Row],
    random: Random,
) -> list[tuple[int, Task, list[str]]]:
    """Repeats, prompts and methods that are not finished, in the order in which to run them."""
    todo = []
    for repeat in range(repeats):
        for task in random.sample(tasks, len(tasks)):
            order = random.sample(sorted(ways), len(ways))
            missing = [way for way in order if (engine, _method(way), task.name, repeat) not in finished]
            if missing:
                todo.append((repeat, task, missing))
    return todo


def _key(row: Row) -> tuple[Any, ...]:
    return row.engine, row.method, row.prompt, row.repeat


def _method(way: str) -> str:
    return way.partition(" ")[2]
