"""The engine in a separate process, its jobs, and a watchdog.

A GenAI pipeline holds Python's global lock during each step. In the server's own process it would stall every
visitor's page, and answering visitors would disturb the clocks. In a separate process, a crash inside a driver, or a
lack of memory, ends one job and not the server, and loading can be interrupted.

The parent sends a `Job`; the child returns what it yields, including `Phase` values, by `child.send_all`.

A process makes progress while its pulse goes on, while it computes, or while it reads. A thread beats the pulse,
which stops while a step holds Python's global lock; but then the step computes. A process that does none of these for
`PATIENCE` seconds is stopped (SIGSTOP) or hangs in a driver, and will never finish its job. The pulse may also go on
while a step waits for ever. So a job that neither reports nor computes for `SILENCE` seconds is considered hung, too.
"""

import errno
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from operator import attrgetter
from threading import Event as ThreadEvent
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any

import psutil

from specdemo.child import Child, Failure, Sign, send_all
from specdemo.costs import measure_costs, recall, start_settings
from specdemo.engines import Engine
from specdemo.errors import ENGINE_FAILED, EngineError, SettingsError, SpecdemoError
from specdemo.models.checks import check_strategy
from specdemo.models.converted import convert_pair
from specdemo.race import LiveSettings, RaceEvent, race
from specdemo.records import Costs, ModelPair, Phase, Turn
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.warm_up import prepare

_FAILED = Failure(EngineError, ENGINE_FAILED, "run again")
_ENDED = Failure(EngineError, "The engine's process failed", "run again, and another one starts")
PATIENCE = 20.0  # seconds: a busy machine may keep a process from its processor for some
SILENCE = 600.0  # seconds: longer than any server may be silent by default
_EVERY = 0.5  # seconds between two looks at the process
_BUSY = 0.02  # of a core: a waiting process uses less
_POLL_SECONDS = 0.05  # how soon a Stop reaches the child
TICK_SECONDS = 1.0  # between reports that there is no news
_LOADING_GRACE = 0.5  # seconds after a Stop: only ending the process stops OpenVINO while it compiles a model
GRACE = 30.0  # seconds after a Stop: longer than a round takes
_UNMOVED = (0.0, 0.0)  # a lookahead of 0 stands for no change


EngineFactory = Callable[[EngineName, ModelPair], Engine]
Job = Callable[["Engines"], Iterator[Any]]
"""Work for the child to do with its loaded engine, such as `Race`."""


class Engines:
    """The child's engine, at most one, since each holds copies of the models; and measured step costs."""

    def __init__(
        self,
        factory: EngineFactory,
        stop: Callable[[], bool],
        moved: Callable[[], LiveSettings | None] = lambda: None,
    ) -> None:
        self.factory = factory
        self.stop = stop
        self.moved = moved
        self._name: tuple[EngineName, ModelPair] | None = None
        self._engine: Engine | None = None
        self._costs: dict[tuple[EngineName, ModelPair], Costs | None] = {}

    def using(
        self, engine: EngineName, pair: ModelPair, *, calibrate: bool = True
    ) -> Generator[Phase, None, tuple[Engine, Costs | None]]:
        """Load this pair in this engine, freeing any other first; measure its step costs once, if requested."""
        name = (engine, pair)
        if self._engine is None or self._name != name:
            yield from converting(pair)
            yield Phase("loading")
            self.close()
            self._engine, self._name = self.factory(engine, pair), name
        if calibrate and self._costs.get(name) is None:
            yield Phase("calibrating")
            self._costs[name] = measure_costs(self._engine, stop=self.stop)
        return self._engine, self._costs.get(name) or recall(engine, pair)

    def has(self, engine: EngineName, pair: ModelPair) -> bool:
        return self._engine is not None and self._name == (engine, pair)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = self._name = None


@dataclass(frozen=True)
class WithEngine:
    """Work with a pair in one engine: `work(engine, stop=…, costs=…)`.

    Work that does not need step costs does not wait for them.
    """

    engine: EngineName
    pair: ModelPair
    work: Callable[..., Iterator[Any]]
    calibrate: bool = True

    def __call__(self, engines: Engines) -> Iterator[Any]:
        engine, costs = yield from engines.using(self.engine, self.pair, calibrate=self.calibrate)
        if not engines.stop():
            yield from self.work(engine, stop=engines.stop, costs=costs)


@dataclass(frozen=True)
class Prepare:
    """Preparation of a pair for a race with these settings, or its initial ones, so that the race starts at once.

    Loading and warm-up come first. Without settings, step costs follow, which most races do without; a job that
    arrives in the meantime may have to wait for one of their parts.
    """

    engine: EngineName
    pair: ModelPair
    settings: GenerationSettings | None = None

    def __call__(self, engines: Engines) -> Iterator[Any]:
        settings = self.settings
        with suppress(SettingsError):  # running it reports the error
            settings = settings or start_settings(self.pair, self.engine)
        first = settings is not None and needs_costs(settings)
        engine, costs = yield from engines.using(self.engine, self.pair, calibrate=first)
        if not engine.remote and settings is not None and not engines.stop():
            yield from prepare(engine, settings, costs, engines.stop)
        if self.settings is None and not first and not engines.stop():
            yield from engines.using(self.engine, self.pair)


def needs_costs(settings: GenerationSettings) -> bool:
    """Check if the strategy depends on step costs."""
    strategy = settings.strategy
    return strategy.needs_costs or strategy.fixed_lookahead is None


@dataclass(frozen=True)
class Race:
    """A race whose settings can be changed while it runs; see `Worker.move`."""

    pair: ModelPair
    prompt: str
    settings: GenerationSettings
    history: tuple[Turn, ...] = ()

    def __call__(self, engines: Engines) -> Iterator[Any]:
        """Load if necessary, measure step costs if the strategy depends on them, then race."""
        chosen = self.settings
        check_strategy(self.pair, chosen.engine, chosen.strategy, chosen.sampling)  # before loading, which takes long
        work = partial(race, prompt=self.prompt, settings=chosen, history=self.history, moved=engines.moved)
        yield from WithEngine(chosen.engine, self.pair, work, calibrate=needs_costs(chosen))(engines)


@dataclass(frozen=True)
class WithLoader:
    """Work with a pair in several engines, which the work loads and closes itself: `work(load, stop=…)`.

    `load(name)` loads this pair; `load(name, pair)` the same pair with other runtime settings.
    """

    pair: ModelPair
    work: Callable[..., Iterator[Any]]

    def __call__(self, engines: Engines) -> Iterator[Any]:
        engines.close()
        yield from converting(self.pair)

        def load(name: EngineName, pair: ModelPair = self.pair) -> Engine:
            return engines.factory(name, pair)

        yield from self.work(load, stop=engines.stop)


@dataclass(frozen=True)
class IfLoaded:
    """A job with a pair in one engine, done only if both are loaded already."""

    job: WithEngine | Prepare

    def __call__(self, engines: Engines) -> Iterator[Any]:
        if engines.has(self.job.engine, self.job.pair):
            yield from self.job(engines)


def converting(pair: ModelPair) -> Iterator[Phase]:
    """Convert a pair's GGUF models that are not ready to load."""
    for _, seconds in convert_pair(pair):
        yield Phase("converting", seconds=seconds)


def _beat(pulse: Any) -> None:
    """Beat this pulse, a shared number, for as long as the process runs."""
    while True:
        pulse.value += 1
        sleep(_EVERY)


def serve(
    connection: Connection,
    factory: EngineFactory,
    first: Job | None,
    stop: Event,
    ready: Event,
    controls: Sequence[float],
    pulse: Any,
) -> None:
    """Do jobs in the child until the parent is gone. What failed to load is retried."""
    Thread(target=_beat, args=(pulse,), daemon=True).start()

    def moved() -> LiveSettings | None:
        lookahead, threshold = controls
        return LiveSettings(int(lookahead), threshold) if lookahead else None

    engines = Engines(factory, stop.is_set, moved)
    if first is not None:
        with suppress(Exception):  # the job that needs it reports the error when loading is retried
            for name, phases in groupby(first(engines), attrgetter("name")):  # few, since nobody may be listening
                connection.send(next(phases))
                if name == "calibrating":  # a waiting job may do without
                    engines.stop = lambda: stop.is_set() or connection.poll()
        engines.stop = stop.is_set
    ready.set()
    while True:
        send_all(connection, _guarded(connection.recv(), engines), _FAILED)


def _guarded(job: Job, engines: Engines) -> Iterator[Any]:
    """Yield what the job yields, keeping the process alive for the next job whatever goes wrong."""
    try:
        yield from job(engines)
    except SpecdemoError:
        raise
    except Exception:
        engines.close()
        raise


def _work_of(process: psutil.Process) -> tuple[float, int]:
    """Return a process's seconds of CPU time and bytes read so far."""
    times, read = process.cpu_times(), 0
    with suppress(AttributeError, psutil.AccessDenied):  # not all systems report it
        read = process.io_counters().read_chars
    return times.user + times.system, read


class Watch:
    """Watchdog for one process, which it ends when it hangs."""

    def __init__(self, process_id: int, pulse: Any, end: Callable[[], None]) -> None:
        """Call `end`, once, when the process hangs."""
        self._process_id = process_id
        self._pulse = pulse
        self._end = end
        self._over = ThreadEvent()
        self._clock = self._alive = self._worked = 0.0
        self._job: float | None = None  # when a job last reported
        self.hung = False
        Thread(target=self._watch, name="specdemo watch", daemon=True).start()

    @property
    def responsive(self) -> bool:
        """True if the process has made progress in the last seconds."""
        return not self.hung and self._clock - self._alive < PATIENCE / 2

    def reported(self, *, over: bool = False) -> None:
        """Note that a job began, reported something, or is over."""
        self._job = None if over else self._clock

    def close(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        with suppress(psutil.Error):  # it is gone, as its readers will notice
            process = psutil.Process(self._process_id)
            at, beats, seconds, read = monotonic(), -1, 0.0, 0
            while not self._over.wait(_EVERY):
                before, at = at, monotonic()
                passed = min(at - before, 2 * _EVERY)  # more: this process was stopped or asleep, too
                self._clock += passed
                before_seconds, before_read = seconds, read
                seconds, read = _work_of(process)
                if seconds - before_seconds > _BUSY * passed or read > before_read:
                    self._alive = self._worked = self._clock
                elif self._pulse.value != beats:
                    self._alive = self._clock
                beats = self._pulse.value
                stuck = self._job is not None and self._clock - max(self._job, self._worked) > SILENCE
                if stuck or self._clock - self._alive > PATIENCE:
                    self.hung = True
                    self._end()
                    return


@contextmanager
def _starting() -> Iterator[None]:
    """Turn what the system refuses, such as memory, descriptors or a thread, into an `EngineError`."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        what = "The engine's process cannot be started"
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.ENOENT):
            raise EngineError.of(error, f"{what}: shared memory is not writable", "make /dev/shm writable") from error
        raise EngineError.of(error, what) from error


class Worker:
    """Runner of one job at a time in a child process, which is restarted if it dies."""

    def __init__(
        self,
        load: EngineFactory,
        first: Job | None = None,
    ) -> None:
        """Start the child. `load` is called there and must be picklable; `first` is a job to prepare with."""
        self._factory = load
        self._first = first
        self._busy = Lock()
        self._line = list[ThreadEvent]()  # jobs waiting for the current one to end
        self._current: ThreadEvent | None = None
        with _starting():
            self._start()

    def compare(
        self,
        pair: ModelPair,
        prompt: str,
        settings: GenerationSettings,
        cancelled: ThreadEvent | None = None,
        history: Sequence[Turn] = (),
    ) -> Iterator[RaceEvent | None]:
        """Run a `Race` in the child; see `run`."""
        return self.run(Race(pair, prompt, settings, tuple(history)), cancelled)

    def move(self, cancelled: ThreadEvent, moved: LiveSettings) -> None:
        """Change the settings of the job with this event from its next round on, if it is running and can follow."""
        if self._current is cancelled:
            self._moved[:] = moved

    def run(self, job: Job, cancelled: ThreadEvent | None = None) -> Iterator[Any]:
        """Yield what the job yields, including `Phase` values, which are repeated every second while one lasts.

        None follows any other second without news, also while waiting for another job to end, so that the caller can
        close this generator once its visitor has left.

        Once `cancelled` is set, the job is asked to stop; loading is aborted. Closing this generator sets the event,
        too, and does not wait for the job.

        Raises:
            SpecdemoError: the job raised it, or the child died or had to be ended.
        """
        cancelled = cancelled or ThreadEvent()
        self._line.append(cancelled)
        try:
            while not self._busy.acquire(timeout=TICK_SECONDS):
                yield None
        finally:
            self._line.remove(cancelled)
        yield from self._do(job, cancelled, cancelled.is_set)

    def run_idle(self, job: Job, cancelled: ThreadEvent | None = None) -> Iterator[Any]:
        """Do the same as `run`, but only while no other job is running or waiting.

        Loading is completed nevertheless, since the waiting job probably needs it.

        Raises:
            SpecdemoError: the job raised it, or the child died or had to be ended.
        """
        cancelled = cancelled or ThreadEvent()
        if not self._line and self._busy.acquire(blocking=False):
            yield from self._do(job, cancelled, lambda: cancelled.is_set() or bool(self._line))

    def _do(self, job: Job, cancelled: ThreadEvent, unwanted: Callable[[], bool]) -> Iterator[Any]:
        """Do a job, whose turn it is, until it is done or `unwanted`."""
        left = False
        try:
            if self._watch.hung or not self._child.process.is_alive():
                self.close()
                with _starting():
                    self._start()
            if self._ready.is_set():
                self._forget()
            self._stop.clear()
            self._moved[:] = _UNMOVED
            self._current = cancelled
            self._watch.reported()
            with _starting():
                self._child.send(job)
            messages = self._messages(cancelled, unwanted)
            try:
                for message in messages:  # noqa: UP028 (`yield from` would close them, too)
                    yield message
            except GeneratorExit:
                left = True
                cancelled.set()
                # in another thread: Gradio closes generators on its event loop, and this may take the whole grace
                Thread(target=self._finish, args=(messages,), daemon=True).start()
                raise
        finally:
            if not left:
                self._busy.release()

    def _finish(self, messages: Iterator[Any]) -> None:
        """Wait for a stopped job to end, then let the next one begin."""
        try:
            with suppress(SpecdemoError):
                deque(messages, maxlen=0)
        finally:
            self._busy.release()

    @property
    def process_id(self) -> int:
        return self._child.process.pid or 0

    @property
    def responsive(self) -> bool:
        """True if the child makes progress, or is gone and the next job will start another."""
        return self._watch.responsive or not self._child.process.is_alive()

    def close(self) -> None:
        self._watch.close()
        self._child.end()

    def _start(self) -> None:
        context = get_context("spawn")
        self._stop, self._ready = context.Event(), context.Event()
        self._moved = context.RawArray("d", _UNMOVED)
        pulse = context.RawValue("L", 0)
        self._child = Child(
            serve, self._factory, self._first, self._stop, self._ready, self._moved, pulse, name="specdemo engine"
        )
        self._first = None  # a restarted child loads what its next job needs
        self._watch = Watch(self.process_id, pulse, self._child.process.kill)

    def _messages(self, cancelled: ThreadEvent, unwanted: Callable[[], bool]) -> Iterator[Any]:
        """Yield the child's messages until its job is done; after a second without any, the phase again, or None."""
        phase: Phase | None = None if self._ready.is_set() else Phase("loading")
        began = ticked = reported = monotonic()
        cancelled_at: float | None = None
        if phase is not None:
            yield phase
        while True:
            message, now = self._receive(), monotonic()
            if message is Sign.END:
                self._watch.reported(over=True)
                return
            if message is not Sign.SILENCE:
                self._watch.reported()
                reported = ticked = now
                if not isinstance(message, Phase):
                    phase = None
                elif phase is None or message.name != phase.name:
                    phase, began = message, now
                else:
                    phase = message
                yield message
            elif now - ticked >= TICK_SECONDS:
                ticked = now
                yield replace(phase, seconds=now - began) if phase is not None else None
            if not unwanted():
                continue
            self._stop.set()
            cancelled_at = cancelled_at or now
            if phase is not None and phase.name in ("converting", "loading"):
                if cancelled.is_set() and now - cancelled_at > _LOADING_GRACE:
                    self.close()
                    return
            elif now - max(cancelled_at, reported) > GRACE:
                self.close()
                raise _ENDED.error(f"it did not stop within {GRACE:g} s and was ended")

    def _forget(self) -> None:
        """Discard what the child reported of its first job, if nobody received it."""
        with suppress(EOFError):
            while self._child.receive(0) is not Sign.SILENCE:
                pass

    def _receive(self) -> Any:
        try:
            message = self._child.receive(_POLL_SECONDS)
        except EOFError:
            ending = "it no longer answered" if self._watch.hung else self._child.ending
            self.close()
            raise _ENDED.error(ending) from None
        if isinstance(message, SpecdemoError):
            self._watch.reported(over=True)
            message.log()
            raise message
        return message
