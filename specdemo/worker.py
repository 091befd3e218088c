"""The engine in a process of its own, for the page.

A step of a GenAI pipeline keeps Python's global lock until it is done. In the server's own process it would
stall every visitor's page, and answering visitors would disturb the clocks. It also means that a crash inside
a driver, or a system out of memory, ends one job and not the server, and that loading can be broken off.

Messages: a `Job` to the child; `Phase` and what the job's task yields back, then None, or a `SpecdemoError` instead.
"""

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from threading import Event as ThreadEvent
from threading import Lock
from time import monotonic
from typing import Any

from specdemo.engines.base import Engine
from specdemo.errors import EngineError, SpecdemoError
from specdemo.measure.race import Phase, Progress, race
from specdemo.measure.step_costs import measure_costs
from specdemo.models.gguf_convert import convert_pair
from specdemo.records import Costs, ModelPair, Turn
from specdemo.settings import EngineName, GenerationSettings

EngineFactory = Callable[[EngineName, ModelPair], Engine]
Task = Callable[..., Iterator[Any]]
"""Called as `task(engine, stop=…, costs=…)`; what it yields is sent to whoever asked.

A job without an engine loads engines by itself: its task is called as `task(load, stop=…)`.
"""
_POLL_SECONDS = 0.05
_TICK_SECONDS = 1.0
_GRACE_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """Something to do with a pair in an engine, or in all. Without a task the pair is loaded and calibrated."""

    engine: EngineName | None
    pair: ModelPair
    task: Task | None = None


class Worker:
    """Does one job at a time in a child process, which is started anew if it died."""

    def __init__(self, load: EngineFactory, first: Job | None = None) -> None:
        """`load` is called in the child and must be picklable. What the `first` job needs is loaded at once."""
        self._factory = load
        self._first = first
        self._context = multiprocessing.get_context("spawn")
        self._busy = Lock()
        self._start()

    def compare(
        self,
        pair: ModelPair,
        prompt: str,
        settings: GenerationSettings,
        cancelled: ThreadEvent | None = None,
        history: Sequence[Turn] = (),
    ) -> Iterator[Progress]:
        """What `race` yields, from the child; otherwise as `run`."""
        task = partial(race, prompt=prompt, settings=settings, history=tuple(history))
        return self.run(Job(settings.engine, pair, task), cancelled)

    def run(self, job: Job, cancelled: ThreadEvent | None = None) -> Iterator[Any]:
        """What the job's task yields, after `Phase` values, which come again every second while one lasts.

        Waits while another job runs. Once `cancelled` is set the task is told to stop; loading is broken off.

        Raises:
            SpecdemoError: what loading or the task raised, or the child died.
        """
        cancelled = cancelled or ThreadEvent()
        with self._busy:
            for _, seconds in convert_pair(job.pair):
                if cancelled.is_set():
                    return
                yield Phase("converting", seconds=seconds)
            if not self._process.is_alive():
                self._start()
            self._stop.clear()
            self._connection.send(job)
            finished = False
            try:
                for message in self._messages(cancelled):
                    finished = isinstance(message, SpecdemoError)
                    if isinstance(message, SpecdemoError):
                        raise message
                    yield message
                finished = True
            finally:
                if not finished:  # the caller went away
                    self._abandon()

    @property
    def process_id(self) -> int:
        """Id of the child process."""
        assert self._process.pid is not None
        return self._process.pid

    def close(self) -> None:
        """End the child."""
        self._connection.close()
        self._end()

    def _start(self) -> None:
        self._stop, self._ready = self._context.Event(), self._context.Event()
        self._connection, theirs = self._context.Pipe()
        arguments = (self._factory, self._first, theirs, self._stop, self._ready)
        self._first = None  # one that is started anew loads what it is asked for
        self._process = self._context.Process(target=_serve, args=arguments, daemon=True, name="specdemo engine")
        self._process.start()
        theirs.close()  # so that reading fails once the child is gone

    def _end(self) -> None:
        self._process.terminate()
        self._process.join()

    def _messages(self, cancelled: ThreadEvent) -> Iterator[Any]:
        """Whatever the child sends until its job is done. A phase that lasts is repeated with its seconds."""
        phase: Phase | None = None if self._ready.is_set() else Phase("loading")
        began = told = monotonic()
        cancelled_at: float | None = None
        if phase is not None:
            yield phase
        while True:
            message = self._receive()
            now = monotonic()
            if isinstance(message, Phase):
                began = began if phase is not None and message.name == phase.name else now
                phase, told = message, now
            elif message is not _NOTHING:
                phase = None
            if message is None:
                return
            if message is not _NOTHING:
                yield message
            elif phase is not None and now - told >= _TICK_SECONDS:
                told = now
                yield replace(phase, seconds=now - began)
            if cancelled.is_set():
                self._stop.set()
                cancelled_at = cancelled_at or now
                if phase is not None and phase.name == "loading" and now - cancelled_at > _GRACE_SECONDS:
                    self._end()  # nothing else stops OpenVINO while it reads and compiles a model
                    return

    def _receive(self) -> Any:
        try:
            return self._connection.recv() if self._connection.poll(_POLL_SECONDS) else _NOTHING
        except (EOFError, OSError):
            self._process.join()
            return EngineError("The engine's process ended, perhaps for lack of memory; run again, and it restarts.")

    def _abandon(self) -> None:
        cancelled = ThreadEvent()
        cancelled.set()
        for message in self._messages(cancelled):
            if isinstance(message, SpecdemoError):
                return


_NOTHING = object()


def _serve(factory: EngineFactory, first: Job | None, connection: Connection, stop: Event, ready: Event) -> None:
    """The child: do jobs until the parent is gone. What fails to load is tried again."""
    loaded = _Loaded(factory, stop.is_set)
    try:
        with suppress(Exception):  # whoever asks for it is told, when it is tried again
            for _ in loaded.prepare(first) if first is not None else ():
                pass
        ready.set()
        while True:
            job = connection.recv()
            try:
                for progress in loaded.run(job):
                    connection.send(progress)
                connection.send(None)
            except SpecdemoError as failure:
                connection.send(failure)
            except OSError:
                raise
            except Exception as failure:  # whatever it was, the process and the next job go on
                traceback.print_exception(failure)
                loaded.close()
                connection.send(EngineError())
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return


class _Loaded:
    """The engine in use, at most one, since each holds copies of the models; and what its steps cost."""

    def __init__(self, factory: EngineFactory, stop: Callable[[], bool]) -> None:
        self._factory = factory
        self._stop = stop
        self._name: tuple[EngineName, ModelPair] | None = None
        self._engine: Engine | None = None
        self._costs: dict[tuple[EngineName, ModelPair], Costs | None] = {}

    def run(self, job: Job) -> Iterator[Any]:
        if job.engine is None:
            self.close()
            yield from job.task(lambda name: self._factory(name, job.pair), stop=self._stop) if job.task else ()
            return
        yield from self.prepare(job)
        if self._engine is not None and job.task is not None and not self._stop():
            yield from job.task(self._engine, stop=self._stop, costs=self._costs[job.engine, job.pair])

    def prepare(self, job: Job) -> Iterator[Phase]:
        """Load this pair in this engine, after freeing what was loaded; measure its costs if they are not known."""
        assert job.engine is not None, "a job for all engines loads them itself"
        name = (job.engine, job.pair)
        if self._name != name:
            yield Phase("loading")
            self.close()
            self._engine, self._name = self._factory(*name), name
        if self._costs.get(name) is None and self._engine is not None:
            yield Phase("calibrating")
            self._costs[name] = measure_costs(self._engine, stop=self._stop)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = self._name = None
