"""The engine in a process of its own, for the page.

A step of a GenAI pipeline keeps Python's global lock until it is done. In the server's own process it would
stall every visitor's page, and answering visitors would disturb the clocks. It also means that a crash inside
a driver, or a system out of memory, ends one comparison and not the server.

Messages: (prompt, settings) to the child; `Progress` values back, then None, or a `SpecdemoError` instead.
"""

import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from threading import Event as ThreadEvent
from threading import Lock

from specdemo.compare import Phase, Progress, race
from specdemo.costs import measure_costs
from specdemo.engines.base import Engine
from specdemo.errors import EngineError, SpecdemoError
from specdemo.records import Costs
from specdemo.settings import EngineName, GenerationSettings

EngineFactory = Callable[[EngineName], Engine]
_POLL_SECONDS = 0.05


class Worker:
    """Runs one comparison at a time in a child process, which is started anew if it died."""

    def __init__(self, engine: EngineFactory) -> None:
        """`engine` is called in the child, with an engine's name, and must be picklable; loading begins at once."""
        self._factory = engine
        self._context = multiprocessing.get_context("spawn")
        self._busy = Lock()
        self._start()

    def compare(
        self, prompt: str, settings: GenerationSettings, cancelled: ThreadEvent | None = None
    ) -> Iterator[Progress]:
        """What `race` yields, from the child; waits while another comparison runs.

        Once `cancelled` is set the comparison ends within one round, with what there is.

        Raises:
            SpecdemoError: what `race` or loading raised, or the child died.
        """
        cancelled = cancelled or ThreadEvent()
        with self._busy:
            if not self._process.is_alive():
                self._start()
            if not self._ready.is_set():
                yield Phase("loading")
            self._stop.clear()
            self._connection.send((prompt, settings))
            finished = False
            try:
                while (message := self._receive(cancelled)) is not None:
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
        self._process.terminate()
        self._process.join()

    def _start(self) -> None:
        self._stop, self._ready = self._context.Event(), self._context.Event()
        self._connection, theirs = self._context.Pipe()
        arguments = (self._factory, theirs, self._stop, self._ready)
        self._process = self._context.Process(target=_serve, args=arguments, daemon=True, name="specdemo engine")
        self._process.start()
        theirs.close()  # so that reading fails once the child is gone

    def _receive(self, cancelled: ThreadEvent) -> Progress | SpecdemoError | None:
        try:
            while not self._connection.poll(_POLL_SECONDS):
                if cancelled.is_set():
                    self._stop.set()
            message: Progress | SpecdemoError | None = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            return EngineError("The engine's process ended, perhaps for lack of memory; run again, and it restarts.")
        return message

    def _abandon(self) -> None:
        self._stop.set()
        while isinstance(self._receive(ThreadEvent()), Progress):
            pass


def _serve(factory: EngineFactory, connection: Connection, stop: Event, ready: Event) -> None:
    """The child: answer requests until the parent is gone. What fails to load is tried again."""
    loaded = _Loaded(factory, stop.is_set)
    try:
        with suppress(Exception):  # whoever asks for a run is told, when it is tried again
            for _ in loaded.prepare(GenerationSettings().engine):
                pass
        ready.set()
        while True:
            prompt, settings = connection.recv()
            try:
                for progress in loaded.race(prompt, settings):
                    connection.send(progress)
                connection.send(None)
            except SpecdemoError as failure:
                connection.send(failure)
            except OSError:
                raise
            except Exception as failure:  # whatever it was, the process and the next run go on
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
        self._name: EngineName | None = None
        self._engine: Engine | None = None
        self._costs: dict[EngineName, Costs | None] = {}

    def race(self, prompt: str, settings: GenerationSettings) -> Iterator[Progress]:
        yield from self.prepare(settings.engine)
        if self._engine is not None and not self._stop():
            yield from race(self._engine, prompt, settings, stop=self._stop, costs=self._costs[settings.engine])

    def prepare(self, name: EngineName) -> Iterator[Progress]:
        """Load this engine instead of another, and measure its costs if they are not known."""
        if self._name != name:
            yield Phase("loading")
            self.close()
            self._engine, self._name = self._factory(name), name
        if self._costs.get(name) is None and self._engine is not None:
            yield Phase("calibrating")
            self._costs[name] = measure_costs(self._engine, stop=self._stop)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = self._name = None
