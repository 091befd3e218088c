"""The load run: plain and speculative decoding of the same requests, with more and more of them in flight.

Finished blocks are kept in a journal, so that a run that was stopped or crashed resumes with the orders it would have
had.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import perf_counter

from specdemo.bench.journal import Journal
from specdemo.bench.load.plan import LoadPlan
from specdemo.bench.load.results import Load, LoadLine, LoadRow
from specdemo.bench.run import check_environment, completed
from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.engines.batch import BatchEngine
from specdemo.measure.hardware import Loader, measure_memory
from specdemo.measure.load import Prompted, able, decode_at_once, serve, shuffled
from specdemo.progress import Progress
from specdemo.records import SIDES, Request
from specdemo.records.load import Block
from specdemo.strategies import EngineName

_WARM_UP_TOKENS = 8


def load_run(
    load: Callable[[EngineName], Engine],
    plan: LoadPlan,
    *,
    journal: Journal | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Progress[Load]]:
    """Measure the blocks that the journal does not hold yet; yield a state before the first and after each.

    Once `stop` returns True, the unfinished block is dropped.

    Raises:
        FileError: the journal holds a different run, or one from another machine.
        PairError, SettingsError: the pair cannot be decoded so, or the engine serves one request at a time.
        SpecdemoError: a prompt cannot be run, or the engine failed.
    """
    plan.check()
    state = plan.begun(journal.open(plan.header, LoadLine) if journal is not None else [])
    yield Progress(len(state.rows), state.total, None, state, "starting")
    finished = {row.key for row in state.rows}
    missing = [key for key in plan.order() if key not in finished]
    if not missing or stop():
        return
    yield Progress(len(state.rows), state.total, None, state, f"loading {plan.settings.engine}")
    with closing(load(plan.settings.engine)) as engine:
        if state.environment is not None:
            check_environment(state.environment, engine.environment)
        elif journal is not None:
            journal.append(LoadLine(environment=engine.environment))
        state = state.model_copy(update={"environment": engine.environment})
        began, crowd = perf_counter(), _Crowd(able(engine), plan, stop)
        for number, (repeat, level, method) in enumerate(missing, 1):
            block = crowd.block(repeat, level, method)
            if block is None:
                return
            row = LoadRow(method=method, repeat=repeat, block=block)
            if journal is not None:
                journal.append(LoadLine(row=row))
            state = state.model_copy(update={"rows": (*state.rows, row)})
            left = (perf_counter() - began) / number * (len(missing) - number)
            yield Progress(len(state.rows), state.total, left, state, f"{method}, {level} at once")


def load_and_memory(
    load: Callable[[EngineName], Engine], plan: LoadPlan, *, journal: Journal | None = None, stop: Callable[[], bool]
) -> Iterator[Progress[Load]]:
    """`load_run`, and `with_memory` once every block is there."""
    yield from completed(load_run(load, plan, journal=journal, stop=stop), "memory", partial(with_memory, stop=stop))


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

    def __init__(self, engine: BatchEngine, plan: LoadPlan, stop: Callable[[], bool]) -> None:
        self._engine = engine
        self._prompts = {task.name: task.prompt for task in plan.tasks}
        self._plain = Request.of("", plan.settings).plain
        self._requests = {name: Request.of("", each) for name, each in plan.variants.items()}
        self._least = max(plan.requests, len(plan.tasks))
        self._seed = plan.seed
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
        with closing(self._engine.batch(request.strategy)) as batch:
            return serve(batch, requests, level, number, self._stop)
