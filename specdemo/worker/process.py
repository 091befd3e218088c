"""The parent's handle on the engine's process."""

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import get_context
from threading import Event as ThreadEvent
from threading import Lock, Thread
from time import monotonic
from typing import Any

from specdemo.child import Child, Failure, Sign
from specdemo.errors import EngineError, SpecdemoError
from specdemo.measure import LiveSettings, RaceEvent
from specdemo.records import ModelPair, Phase, Turn
from specdemo.settings import GenerationSettings
from specdemo.worker.jobs import PATIENCE, SILENCE, EngineFactory, Job, Race, Watch, serve

_POLL_SECONDS = 0.05
TICK_SECONDS = 1.0
_LOADING_GRACE = (
    0.5  # seconds after a Stop; only ending the process stops OpenVINO while it reads and compiles a model
)
_UNMOVED = (0.0, 0.0)  # a lookahead of 0 stands for no change
_FAILURE = Failure(EngineError, "The engine's process failed", "run again, and another one starts")
_GRACE = 30.0  # longer than a round takes


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
        *,
        grace_seconds: float = _GRACE,
        patience: float = PATIENCE,
        silence: float = SILENCE,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        """Start the child. `load` is called there and must be picklable; `first` is a job to prepare with.

        A child that stays silent for `grace_seconds` after a Stop is ended, and so is one that hangs: see `jobs`.
        """
        self._patience, self._silence, self._tick = patience, silence, tick_seconds
        self._factory = load
        self._first = first
        self._grace = grace_seconds
        self._busy = Lock()
        self._counting = Lock()
        self._waiting = 0  # jobs in line behind the current one
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
        with self._in_line():
            while not self._busy.acquire(timeout=self._tick):
                yield None
        yield from self._do(job, cancelled, cancelled.is_set)

    def run_idle(self, job: Job, cancelled: ThreadEvent | None = None) -> Iterator[Any]:
        """Do the same as `run`, but only while no other job is running or waiting.

        Loading is completed nevertheless, since the waiting job probably needs it.

        Raises:
            SpecdemoError: the job raised it, or the child died or had to be ended.
        """
        cancelled = cancelled or ThreadEvent()
        if not self._waiting and self._busy.acquire(blocking=False):
            yield from self._do(job, cancelled, lambda: cancelled.is_set() or self._waiting > 0)

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        with self._counting:
            self._waiting += 1
        try:
            yield
        finally:
            with self._counting:
                self._waiting -= 1

    def _do(self, job: Job, cancelled: ThreadEvent, unwanted: Callable[[], bool]) -> Iterator[Any]:
        """Do a job, whose turn it is, until it is done or `unwanted`."""
        left = False
        try:
            if self._watch.hung or not self._child.alive:
                self._end()
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
        return self._child.process_id

    @property
    def responsive(self) -> bool:
        """True if the child makes progress, or is gone and the next job will start another."""
        return self._watch.responsive or not self._child.alive

    def close(self) -> None:
        self._end()

    def _end(self) -> None:
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
        self._watch = Watch(self._child.process_id, pulse, self._child.kill, self._patience, self._silence)

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
            elif now - ticked >= self._tick:
                ticked = now
                yield replace(phase, seconds=now - began) if phase is not None else None
            if not unwanted():
                continue
            self._stop.set()
            cancelled_at = cancelled_at or now
            if phase is not None and phase.name in ("converting", "loading"):
                if cancelled.is_set() and now - cancelled_at > _LOADING_GRACE:
                    self._end()
                    return
            elif now - max(cancelled_at, reported) > self._grace:
                self._end()
                raise _FAILURE.error(f"it did not stop within {self._grace:g} s and was ended")

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
            self._end()
            raise _FAILURE.error(ending) from None
        if isinstance(message, SpecdemoError):
            self._watch.reported(over=True)
            message.log()
            raise message
        return message
