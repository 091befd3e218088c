"""The engine in a process of its own, for the page.

A step of a GenAI pipeline keeps Python's global lock until it is done. In the server's own process it would
stall every visitor's page, and answering visitors would disturb the clocks. It also means that a crash inside
a driver, or a system out of memory, ends one comparison and not the server.

Messages: (prompt, settings) to the child; `Progress` values back, then None, or a `SpecdemoError` instead.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from threading import Event as ThreadEvent
from threading import Lock

from specdemo.compare import Phase, Progress, race
from specdemo.costs import measure_costs
from specdemo.engines.base import Engine
from specdemo.errors import EngineError, SpecdemoError
from specdemo.settings import GenerationSettings

EngineFactory = Callable[[], Engine]
_POLL_SECONDS = 0.05


class Worker:
    """Runs one comparison at a time in a child process, which is started anew if it died."""

    def __init__(self, engine: EngineFactory) -> None:
        """`engine` is called in the child and must be picklable; loading begins at once."""
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
    """The child: load, then answer requests until the parent is gone. What fails to load is tried again."""
    engine, costs = None, None
    try:
        while True:
            error: SpecdemoError | None = None
            try:
                if engine is None:
                    engine = factory()
                    costs = measure_costs(engine)
                    ready.set()
            except SpecdemoError as failure:
                engine, error = None, failure
            prompt, settings = connection.recv()
            try:
                if engine is None:
                    raise error or EngineError("The engine is not loaded; run again.")
                for progress in race(engine, prompt, settings, stop=stop.is_set, costs=costs):
                    connection.send(progress)
                connection.send(None)
            except SpecdemoError as failure:
                connection.send(failure)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
