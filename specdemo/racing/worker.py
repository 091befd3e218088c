"""The engine's process and its jobs.

A GenAI pipeline holds Python's global lock during each step. In the server's process it would stall every visitor's
page, and answering visitors would disturb the clocks. In a process of its own, a crash in a driver or a lack of
memory ends one job instead of the server, and loading can be interrupted.
"""

import errno
import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from threading import Event as ThreadEvent
from threading import Lock, Thread
from time import monotonic
from typing import Any

from specdemo.capabilities import EngineName, live_parameters
from specdemo.child import Child, Failure, Sign, send_all
from specdemo.engines.base import Engine
from specdemo.errors import ENGINE_FAILED, EngineError, SettingsError, SpecdemoError
from specdemo.models.catalogue import pair_settings
from specdemo.models.checks import check_strategy
from specdemo.models.converted import convert_pair
from specdemo.racing.costs import MAX_SECONDS, load_costs, measure_costs
from specdemo.racing.race import LiveSettings, RaceEvent, race
from specdemo.racing.warm_up import WARM_UP_PROMPT, warm_up
from specdemo.records import Costs, ModelPair, Phase, Request, Turn
from specdemo.settings import GenerationSettings

_JOB_FAILURE = Failure(EngineError, ENGINE_FAILED, "run again")
_PROCESS_FAILURE = Failure(EngineError, "The engine's process failed", "run again, and another one starts")
_POLL_SECONDS = 0.05  # how soon a Stop reaches the child
TICK_SECONDS = 1.0  # between reports that there is no news
_LOADING_GRACE = 0.5  # seconds after a Stop: only ending the process stops OpenVINO while it compiles a model
GRACE = 30.0  # seconds after a Stop: longer than a round takes

EngineFactory = Callable[[EngineName, ModelPair], Engine]
Job = Callable[["Engines"], Iterator[Any]]  # runs in the child, such as `race_job`; picklable


class Engines:
    """The child's engine, at most one, since each holds copies of the models; and measured step costs."""

    def __init__(
        self,
        factory: EngineFactory,
        stop: Callable[[], bool],
        live_settings: Callable[[], LiveSettings] = dict,
    ) -> None:
        self.factory, self.stop, self.live_settings = factory, stop, live_settings
        self._name: tuple[EngineName, ModelPair] | None = None
        self._engine: Engine | None = None
        self._costs: dict[tuple[EngineName, ModelPair], Costs | None] = {}

    def using(
        self, engine: EngineName, pair: ModelPair, *, calibrate: bool = True, seconds: float = MAX_SECONDS
    ) -> Generator[Phase, None, tuple[Engine, Costs | None]]:
        """Load this pair in this engine, freeing any other first; measure its step costs once, if requested."""
        name = (engine, pair)
        if self._engine is None or self._name != name:
            yield from conversion_phases(pair)
            yield Phase("loading")
            self.close()
            self._engine, self._name = self.factory(engine, pair), name
        costs = load_costs(engine, pair) or self._costs.get(name)
        if calibrate and costs is None:
            yield Phase("calibrating")
            costs = self._costs[name] = measure_costs(self._engine, stop=self.stop, seconds=seconds)
        return self._engine, costs

    def has(self, engine: EngineName, pair: ModelPair) -> bool:
        return self._engine is not None and self._name == (engine, pair)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = self._name = None


@dataclass(frozen=True)
class WithEngine:
    """Work with a pair in one engine: `work(engine, stop=…, costs=…)`, after measuring step costs if `calibrate`."""

    engine: EngineName
    pair: ModelPair
    work: Callable[..., Iterator[Any]]
    calibrate: bool = True
    seconds: float = MAX_SECONDS  # of measuring step costs

    def __call__(self, engines: Engines) -> Iterator[Any]:
        engine, costs = yield from engines.using(
            self.engine, self.pair, calibrate=self.calibrate, seconds=self.seconds
        )
        if not engines.stop():
            yield from self.work(engine, stop=engines.stop, costs=costs)


@dataclass(frozen=True)
class Preload:
    """Load and warm up for a race with these settings; without any, with initial ones, then measure step costs."""

    engine: EngineName
    pair: ModelPair
    settings: GenerationSettings | None = None

    def __call__(self, engines: Engines) -> Iterator[Any]:
        settings = self.settings
        with suppress(SettingsError):  # the run itself reports the error
            settings = settings or pair_settings(self.pair, engine=self.engine)
        first = settings is not None and settings.strategy.needs_costs
        engine, costs = yield from engines.using(self.engine, self.pair, calibrate=first)
        if engine.local and settings is not None and not engines.stop():
            request = Request.of(WARM_UP_PROMPT, settings)
            with suppress(SpecdemoError):  # the race will report it
                yield from warm_up(engine, {"plain": request.plain, "speculative": request}, costs, engines.stop)
        if self.settings is None and not first and not engines.stop():
            yield from engines.using(self.engine, self.pair)


def race_job(
    engines: Engines, pair: ModelPair, prompt: str, settings: GenerationSettings, history: tuple[Turn, ...]
) -> Iterator[Any]:
    """A race whose settings can be changed while it runs; see `Worker.update_settings`."""
    check_strategy(pair, settings.engine, settings.strategy, settings.sampling)  # before loading, which takes a while
    work = partial(race, prompt=prompt, settings=settings, history=history, live_settings=engines.live_settings)
    yield from WithEngine(settings.engine, pair, work, calibrate=settings.strategy.needs_costs)(engines)


def with_loader(engines: Engines, pair: ModelPair, work: Callable[..., Iterator[Any]]) -> Iterator[Any]:
    """Work with a pair in several engines, which it loads and closes itself: `work(load, stop=…)`.

    `load(name)` loads this pair; `load(name, pair)` the same pair with other runtime settings.
    """
    engines.close()
    yield from conversion_phases(pair)

    def load(name: EngineName, pair: ModelPair = pair) -> Engine:
        return engines.factory(name, pair)

    yield from work(load, stop=engines.stop)


def if_loaded(engines: Engines, job: WithEngine | Preload) -> Iterator[Any]:
    if engines.has(job.engine, job.pair):
        yield from job(engines)


def conversion_phases(pair: ModelPair) -> Iterator[Phase]:
    for _, share in convert_pair(pair):
        yield Phase("converting", round(100 * share), 100)


def run_jobs(
    connection: Connection, factory: EngineFactory, stop: Event, names: Sequence[str], values: Sequence[float]
) -> None:
    """Run jobs. `values` of the live settings with these `names` are shared with the parent; NaN: not changed."""

    def live_settings() -> LiveSettings:
        return {name: value for name, value in zip(names, values, strict=True) if not math.isnan(value)}

    engines = Engines(factory, stop.is_set, live_settings)
    while True:
        send_all(connection, _JOB_FAILURE, _guarded, connection.recv(), engines)


def _guarded(job: Job, engines: Engines) -> Iterator[Any]:
    """Run the job; after an unexpected error, load the engine anew for the next one."""
    try:
        yield from job(engines)
    except SpecdemoError:
        raise
    except Exception:
        engines.close()
        raise


@contextmanager
def _starting() -> Iterator[None]:
    """Raise an `EngineError` where the system refuses memory, a file descriptor or a thread."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        what = "The engine's process cannot be started"
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.ENOENT):
            raise EngineError.of(error, f"{what}: shared memory is not writable", "make /dev/shm writable") from error
        raise EngineError.of(error, what) from error


class Worker:
    """Runner of one job at a time in a child process, which is restarted if it dies."""

    def __init__(self, load: EngineFactory, first: Job | None = None) -> None:
        """`load` is called in the child and must be picklable; `first` is a job to begin with."""
        self._factory = load
        self._busy, self._live_lock = Lock(), Lock()  # the other: a job's settings change only while it is current
        self._waiting = list[ThreadEvent]()  # jobs waiting for the current one to end
        self._current: ThreadEvent | None = None
        self._start()
        if first is not None:
            self._busy.acquire()
            Thread(target=_drain, args=(self._do_idle(first, ThreadEvent()),), daemon=True).start()

    def compare(
        self,
        pair: ModelPair,
        prompt: str,
        settings: GenerationSettings,
        cancelled: ThreadEvent | None = None,
        history: Sequence[Turn] = (),
    ) -> Iterator[RaceEvent | None]:
        job = partial(race_job, pair=pair, prompt=prompt, settings=settings, history=tuple(history))
        return self.run(job, cancelled)

    def update_settings(self, cancelled: ThreadEvent, settings: GenerationSettings) -> None:
        with self._live_lock:
            if self._current is cancelled:
                self._live_settings[:] = [getattr(settings, name) for name in self._live_names]

    def run(self, job: Job, cancelled: ThreadEvent | None = None) -> Iterator[Any]:
        """Yield what the job yields; while a `Phase` lasts, repeat it every second.

        Any other second without news yields None, so that the caller can close this generator once its visitor has
        left. While another job runs first, its phases are yielded: this job probably needs what that one loads.
        Setting `cancelled` or closing this generator stops the job or aborts loading, and does not wait.
        SpecdemoError: the job raised it, or the child died or had to be ended.
        """
        cancelled = cancelled or ThreadEvent()
        self._waiting.append(cancelled)
        try:
            while not self._busy.acquire(timeout=TICK_SECONDS):
                yield self._phase
        finally:
            self._waiting.remove(cancelled)
        yield from self._do(job, cancelled, cancelled.is_set)

    def run_idle(self, job: Job, cancelled: ThreadEvent | None = None) -> Iterator[Any]:
        """Like `run`, but only while no other job runs or waits. Loading is finished: a waiting job may need it."""
        cancelled = cancelled or ThreadEvent()
        if not self._waiting and self._busy.acquire(blocking=False):
            yield from self._do_idle(job, cancelled)

    def _do_idle(self, job: Job, cancelled: ThreadEvent) -> Iterator[Any]:
        yield from self._do(job, cancelled, lambda: cancelled.is_set() or bool(self._waiting))

    def _do(self, job: Job, cancelled: ThreadEvent, unwanted: Callable[[], bool]) -> Iterator[Any]:
        abandoned = False
        try:
            if not self._child.process.is_alive():
                self.close()
                self._start()
            self._stop.clear()
            with self._live_lock:
                self._live_settings[:] = [math.nan] * len(self._live_names)
                self._current = cancelled
            with _starting():
                self._child.send(job)
            messages = self._messages(cancelled, unwanted)
            try:
                for message in messages:  # noqa: UP028 (`yield from` would close them, too)
                    yield message
            except GeneratorExit:
                abandoned = True
                cancelled.set()
                # in another thread: Gradio closes generators on its event loop, and this may take until GRACE is over
                Thread(target=self._finish, args=(messages,), daemon=True).start()
                raise
        finally:
            if not abandoned:
                self._busy.release()

    def _finish(self, messages: Iterator[Any]) -> None:
        try:
            _drain(messages)
        finally:
            self._busy.release()

    def close(self) -> None:
        self._child.end()

    @_starting()
    def _start(self) -> None:
        context = get_context("spawn")
        self._stop = context.Event()
        self._live_names = live_parameters()
        self._live_settings = context.RawArray("d", [math.nan] * len(self._live_names))
        shared = self._stop, self._live_names, self._live_settings
        self._child = Child(run_jobs, self._factory, *shared, name="specdemo engine")
        self._phase: Phase | None = Phase("loading")  # of the current job

    def _messages(self, cancelled: ThreadEvent, unwanted: Callable[[], bool]) -> Iterator[Any]:
        """Yield the child's messages until its job is done; after a second without any, the phase again, or None."""
        began = ticked = reported = monotonic()
        cancelled_at: float | None = None
        if self._phase is not None:
            yield self._phase
        while True:
            message, now = self._receive(), monotonic()
            if message is Sign.END:
                self._phase = None
                return
            if message is not Sign.SILENCE:
                reported = ticked = now
                before, self._phase = self._phase, message if isinstance(message, Phase) else None
                if before is None or self._phase is None or before.name != self._phase.name:
                    began = now
                yield message
            elif now - ticked >= TICK_SECONDS:
                ticked = now
                if self._phase is not None:
                    self._phase = replace(self._phase, seconds=now - began)
                yield self._phase
            if not unwanted():
                continue
            self._stop.set()
            cancelled_at = cancelled_at or now
            if self._phase is not None and self._phase.name in ("converting", "loading"):
                if cancelled.is_set() and now - cancelled_at > _LOADING_GRACE:
                    self.close()
                    return
            elif now - max(cancelled_at, reported) > GRACE:
                self.close()
                raise _PROCESS_FAILURE.error(f"it did not stop within {GRACE:g} s and was ended")

    def _receive(self) -> Any:
        try:
            message = self._child.receive(_POLL_SECONDS)
        except EOFError:
            error = _PROCESS_FAILURE.error(self._child.exit_reason)
            self.close()
            raise error from None
        if isinstance(message, SpecdemoError):
            self._phase = None
            message.log()
            raise message
        return message


def _drain(messages: Iterator[Any]) -> None:
    with suppress(SpecdemoError):  # the next job will report the error if it persists
        deque(messages, maxlen=0)
