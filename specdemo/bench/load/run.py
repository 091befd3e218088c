"""The load run: plain and speculative decoding of the same requests, with more and more of them in flight.

In every repeat all levels come in another order, and at a level all ways of decoding one after the other, in an order
that is reversed in every second repeat, so that drift of the machine favours none. Finished blocks are kept in a
journal, so that a run that was stopped or crashed resumes with the orders it would have had.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from random import Random
from time import perf_counter
from typing import Any

from specdemo.analysis.wording import way_words
from specdemo.bench.journal import Journal
from specdemo.bench.load.results import PLAIN, Load, LoadHeader, LoadLine, LoadRow
from specdemo.bench.results import Header
from specdemo.bench.run import check_environment, completed
from specdemo.bench.suites import Task
from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.engines.batch import BatchEngine
from specdemo.errors import SettingsError
from specdemo.measure.hardware import Loader, measure_memory
from specdemo.measure.load import Prompted, able, decode_at_once, serve, shuffled
from specdemo.models.checks import check_way, compared
from specdemo.progress import Progress
from specdemo.records import SIDES, ModelPair, Request
from specdemo.records.load import MOST_IN_FLIGHT, Block
from specdemo.settings import GenerationSettings
from specdemo.ways import AT_ONCE, KINDS, EngineName

LEVELS = (1, 2, 4, 8, 16, 32)
REPEATS = 6
_WARM_UP_TOKENS = 8


def variants(settings: GenerationSettings, lookaheads: Sequence[int] = ()) -> dict[str, GenerationSettings]:
    """The speculative ways to compare, by name: these settings', or one for each lookahead.

    Raises:
        SettingsError: a lookahead is out of its range, or has no effect with these settings.
    """
    if lookaheads and not has_lookahead(settings):
        raise SettingsError("Only a constant policy has a lookahead to vary; choose that, or leave lookaheads out.")
    tried = [
        GenerationSettings.checked(**dict(settings) | {"num_assistant_tokens": lookahead}) for lookahead in lookaheads
    ]
    return {way_words(each.way): each for each in tried or [settings]}


def has_lookahead(settings: GenerationSettings) -> bool:
    """Whether these settings decode with a lookahead that can be varied."""
    return "num_assistant_tokens" in KINDS[type(settings.way)].settings


def header_of(
    pair: ModelPair,
    settings: GenerationSettings,
    methods: Sequence[str],
    levels: Sequence[int],
    requests: int,
    tasks: Sequence[Task],
    seed: int = 0,
) -> LoadHeader:
    """The header of a run of these; one request at a time is among the levels, to compare outputs with."""
    common = Header.of(pair, settings, (PLAIN, *methods), tasks)
    return LoadHeader(**dict(common), levels=tuple(sorted({1, *levels})), requests=requests, seed=seed)


def load_run(
    load: Callable[[EngineName], Engine],
    pair: ModelPair,
    tasks: Sequence[Task],
    settings: GenerationSettings,
    *,
    levels: Sequence[int] = LEVELS,
    lookaheads: Sequence[int] = (),
    repeats: int = REPEATS,
    requests: int = 0,
    journal: Journal | None = None,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Progress[Load]]:
    """Measure the blocks that the journal does not hold yet; yield a state before the first and after each.

    A block serves every prompt once, at least twice as many requests as are in flight, and at least `requests`.
    Once `stop` returns True, the unfinished block is dropped.

    Raises:
        FileError: the journal holds a different run, or one from another machine.
        PairError, SettingsError: the pair cannot be decoded so, or the engine serves one request at a time.
        SpecdemoError: a prompt cannot be run, or the engine failed.
    """
    _check(settings, levels)
    ways = variants(settings, lookaheads)
    for each in ways.values():
        check_way(compared(pair), each.engine, each.way, each.sampling)
    header = header_of(pair, settings, tuple(ways), levels, requests, tasks, seed)
    entries = journal.open(header, LoadLine) if journal is not None else []
    rows = {entry.row.key: entry.row for entry in entries if entry.row is not None and entry.row.repeat < repeats}
    known = next((entry.environment for entry in entries if entry.environment is not None), None)
    state = Load(
        header=header,
        variants=ways,
        tasks=tuple(tasks),
        date=datetime.now(UTC).date().isoformat(),
        repeats=repeats,
        environment=known,
        rows=tuple(rows.values()),
    )
    yield Progress(len(state.rows), state.total, None, state, "starting")
    missing = [key for key in _order(header, repeats) if key not in rows]
    if not missing or stop():
        return
    yield Progress(len(state.rows), state.total, None, state, f"loading {settings.engine}")
    with closing(load(settings.engine)) as engine:
        check_environment(known, engine.environment)
        state = state.model_copy(update={"environment": engine.environment})
        if journal is not None and known is None:
            journal.append(LoadLine(environment=engine.environment))
        began, crowd = perf_counter(), _Crowd(able(engine), tasks, settings, ways, requests, seed, stop)
        for number, key in enumerate(missing, 1):
            block = crowd.block(*key)
            if block is None:
                return
            row = LoadRow(method=key[2], repeat=key[0], block=block)
            if journal is not None:
                journal.append(LoadLine(row=row))
            state = state.model_copy(update={"rows": (*state.rows, row)})
            left = (perf_counter() - began) / number * (len(missing) - number)
            yield Progress(len(state.rows), state.total, left, state, f"{key[2]}, {key[1]} at once")


def load_and_memory(
    load: Callable[[EngineName], Engine], *arguments: Any, stop: Callable[[], bool], **options: Any
) -> Iterator[Progress[Load]]:
    """`load_run`, and `with_memory` once every block is there."""
    yield from completed(load_run(load, *arguments, stop=stop, **options), "memory", partial(with_memory, stop=stop))


def with_memory(result: Load, load: Loader = load_engine, *, stop: Callable[[], bool] = lambda: False) -> Load:
    """The same with the memory that each side takes with the most requests in flight, in processes of their own.

    Once `stop` returns True, the result is unchanged.

    Raises:
        SpecdemoError: a model cannot be loaded, or a child process died.
    """
    if result.header.pair.target.server is not None:  # nothing of it is on this machine
        return result
    level, prompt = max(result.header.levels), result.tasks[0].prompt
    settings, work = next(iter(result.variants.values())), partial(decode_at_once, level=level)
    uses = [
        measure_memory(result.header.pair, prompt, settings, side, load, stop, work=work, at_once=level)
        for side in SIDES
    ]
    return result if stop() else result.model_copy(update={"memory": tuple(filter(None, uses))})


class _Crowd:
    """Serves blocks, each of which has the same requests on all sides."""

    def __init__(
        self,
        engine: BatchEngine,
        tasks: Sequence[Task],
        settings: GenerationSettings,
        ways: dict[str, GenerationSettings],
        requests: int,
        seed: int,
        stop: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._prompts = {task.name: task.prompt for task in tasks}
        self._plain = Request.of("", settings).plain
        self._requests = {name: Request.of("", each) for name, each in ways.items()}
        self._least = max(requests, len(tasks))
        self._seed = seed
        self._stop = stop
        self._warm: set[tuple[str, int]] = set()

    def block(self, repeat: int, level: int, method: str) -> Block | None:
        """One block, after a warm-up if this is the first of its kind; None once it was stopped."""
        request = self._requests.get(method, self._plain)
        seed = f"{self._seed} {repeat} {level}"
        if (method, level) not in self._warm:  # the first passes of each shape compile kernels
            short = replace(request, max_new_tokens=min(_WARM_UP_TOKENS, request.max_new_tokens))
            if self._serve(short, seed, level, level) is None:
                return None
            self._warm.add((method, level))
        return self._serve(request, seed, level, max(self._least, 2 * level))

    def _serve(self, request: Request, seed: str, level: int, number: int) -> Block | None:
        names = shuffled(list(self._prompts), seed)
        requests = (Prompted(name, replace(request, prompt=self._prompts[name])) for name in names)
        with closing(self._engine.batch(request.way)) as batch:
            return serve(batch, requests, level, number, self._stop)


def _order(header: LoadHeader, repeats: int) -> Iterator[tuple[int, int, str]]:
    """Repeat, level and method of every block, in the order in which to measure them."""
    methods = Random(header.seed).sample(header.methods, len(header.methods))
    for repeat in range(repeats):
        for level in Random(f"{header.seed} {repeat}").sample(header.levels, len(header.levels)):
            for method in methods if repeat % 2 else reversed(methods):
                yield repeat, level, method


def _check(settings: GenerationSettings, levels: Sequence[int]) -> None:
    """Check that several requests can be served at once, with outputs to compare.

    Raises:
        SettingsError: they cannot.
    """
    if settings.engine not in AT_ONCE:
        raise SettingsError(
            f"The {settings.engine} engine serves one request at a time; choose the {AT_ONCE[0]} engine."
        )
    if settings.do_sample:
        raise SettingsError("Outputs under load are compared, so decoding must be greedy; switch sampling off.")
    if not levels or min(levels) < 1 or max(levels) > MOST_IN_FLIGHT:
        raise SettingsError(f"Requests in flight are from 1 to {MOST_IN_FLIGHT}; choose other numbers.")
