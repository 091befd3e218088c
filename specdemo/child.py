"""Child processes: spawned, read over a pipe, and ended at any moment.

Anything that can crash, stall or fill the memory runs in one: decoding, downloads, conversions, measurements of
memory. For a single piece of work:

    for message in follow(work, argument, name="specdemo work", died=FetchError("It ended unexpectedly; try again."))

`work(argument)` is an iterator, created in the child. `follow` yields what it yields, and None after each short
silence, so that the caller can check a growing file or a Stop. Closing the generator ends the child. A
`SpecdemoError` from the work is raised in the parent, and `died` is raised if the process ended before the work. Work
and arguments must be picklable, such as a module's function or a `partial` of one.

`apart` is for untrusted input: it does one piece of work within limits on memory, CPU time and elapsed time, two at
once, and `finished` waits for it.

`Child` is the process itself, for several jobs. `program` runs another program in the same way.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from enum import Enum, auto
from multiprocessing.connection import Connection
from pathlib import Path
from threading import BoundedSemaphore, Thread
from time import monotonic
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from specdemo.errors import SpecdemoError

T = TypeVar("T")
_POLL_SECONDS = 0.2
_PATIENCE = 2.0
_AT_ONCE = BoundedSemaphore(2)
_NICE = 10


class Sign(Enum):
    """Results of `Child.receive` other than messages: silence, or the end of the work."""

    SILENCE = auto()
    END = auto()


class Child:
    """A process that runs `main(connection, *arguments)`.

    It ends when `end` is called or when this process ends, however that happens: no child outlives its parent.
    """

    def __init__(self, main: Callable[..., None], *arguments: Any, name: str) -> None:
        """Start the process. `main` and its arguments must be picklable."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # not a daemon in multiprocessing's sense, since those may not have children
        self._process = context.Process(target=_run, args=(main, theirs, arguments), name=name)
        with _uninterrupted(), _script_hidden():
            self._process.start()
        theirs.close()  # so that reading fails once the child is gone
        atexit.register(self.end)

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.is_alive()

    @property
    def process_id(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send something picklable.

        Raises:
            OSError: the process is gone.
        """
        self._connection.send(message)

    def receive(self, seconds: float) -> Any:
        """Return the next message, or `Sign.SILENCE` if none comes within `seconds`.

        Raises:
            EOFError: the process is gone.
        """
        try:
            return self._connection.recv() if self._connection.poll(seconds) else Sign.SILENCE
        except OSError as error:
            raise EOFError from error

    def kill(self) -> None:
        """Kill the process, so that its readers find it gone; `end` must still be called."""
        self._process.kill()

    def end(self) -> None:
        """End the process at once, whatever it is doing."""
        atexit.unregister(self.end)
        self._connection.close()
        self._process.terminate()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Start processes out of reach of Ctrl+C, which a terminal sends to all; their parent ends them."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Keep children from running the main script again, so that it needs no `if __name__ == "__main__"`.

    A spawned process imports its parent's main module, for what was pickled from it. A module started with
    `python -m`, such as a test's, is left in place.
    """
    script = sys.modules["__main__"]
    if script.__spec__ is not None:
        yield
        return
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def send_all(connection: Connection, messages: Iterable[Any]) -> None:
    """Send each message, then `Sign.END`, or the `SpecdemoError` that ended them."""
    try:
        for message in messages:
            connection.send(message)
        connection.send(Sign.END)
    except SpecdemoError as error:
        connection.send(error)


def follow(
    work: Callable[..., Iterable[Any]],
    *arguments: Any,
    name: str,
    died: SpecdemoError,
    stop: Callable[[], bool] = lambda: False,
    poll_seconds: float = _POLL_SECONDS,
) -> Generator[Any]:
    """Yield what `work(*arguments)` yields in a child process, and None after each silence of `poll_seconds`.

    `stop` is checked before each wait; once it returns True, the generator ends. In any case the child ends with it.

    Raises:
        SpecdemoError: the work raised it, or it is `died`, if the child ended before it was done.
    """
    child = Child(_once, work, arguments, name=name)
    try:
        while not stop():
            try:
                message = child.receive(poll_seconds)
            except EOFError:
                raise died from None
            if isinstance(message, SpecdemoError):
                raise message
            if message is Sign.END:
                return
            yield None if message is Sign.SILENCE else message
    finally:
        child.end()


class Limits(NamedTuple):
    """Limits on a piece of work: memory beyond that of its process at the start, CPU seconds, and elapsed seconds.

    Memory and CPU time are not limited on Windows.
    """

    memory: int = 2**30
    processor_seconds: int = 20
    seconds: float = 40.0


_LIMITS = Limits()


def apart(
    work: Callable[..., T],
    *arguments: Any,
    name: str,
    died: SpecdemoError,
    limits: Limits = _LIMITS,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[None, None, T]:
    """Return what `work(*arguments)` returns in a child within limits; until then, yield from time to time.

    Two such children run at once, others wait. Closing the generator, or `stop`, ends the child.

    Raises:
        SpecdemoError: the work raised it, or it is `died`, if the work was stopped or exceeded a limit.
    """
    while not _AT_ONCE.acquire(timeout=_POLL_SECONDS):
        yield
    try:
        until = monotonic() + limits.seconds
        over = lambda: stop() or monotonic() > until  # noqa: E731
        with closing(follow(_limited, limits, work, arguments, name=name, died=died, stop=over)) as messages:
            for message in messages:
                if message is not None:
                    found: T = message[0]
                    return found
                yield
        raise died
    finally:
        _AT_ONCE.release()


def finished(work: Generator[Any, None, T]) -> T:
    """Wait for a generator such as that of `apart`, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: T = end.value
            return found


class ProgramExit(NamedTuple):
    """Exit status and complete output of a program."""

    status: int
    log: str


def last_line(log: str) -> str:
    """Return the last line of a program's output."""
    return next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "nothing")


def program(
    arguments: Sequence[str],
    stop: Callable[[], bool] = lambda: False,
    environment: Mapping[str, str] | None = None,
) -> Generator[ProgramExit | None]:
    """Run another program; yield None from time to time, then its exit. `environment` extends this process's own.

    `stop` is checked before each wait; once it returns True, the generator ends. In any case the program ends with
    it.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            arguments, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
        try:
            while process.poll() is None:
                if stop():
                    return
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
                yield None
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        yield ProgramExit(process.returncode, log.read())


def _limited(limits: Limits, work: Callable[..., T], arguments: tuple[Any, ...]) -> Iterator[tuple[T]]:
    """Do the work in this process, which ends silently if it exceeds a limit."""
    _restrict(limits)
    try:
        yield (work(*arguments),)
    except MemoryError:
        os._exit(1)


def _restrict(limits: Limits) -> None:
    """Limit this process from now on, and lower its priority."""
    try:
        import resource
    except ImportError:  # Windows
        return
    os.nice(_NICE)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + limits.processor_seconds
    _lower(resource, resource.RLIMIT_CPU, seconds)
    with suppress(OSError):  # only Linux reports it
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _lower(resource, resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory)


def _lower(resource: Any, what: int, limit: int) -> None:
    """Lower a limit of this process, unless it is lower already."""
    _, most = resource.getrlimit(what)
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(what, (limit, limit))


def _once(connection: Connection, work: Callable[..., Iterable[Any]], arguments: tuple[Any, ...]) -> None:
    send_all(connection, work(*arguments))


def _run(main: Callable[..., None], connection: Connection, arguments: tuple[Any, ...]) -> None:
    """Run the child. Unexpected exceptions are printed there, and the parent finds the process gone."""
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        main(connection, *arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a child"
    parent.join()
    os._exit(1)
