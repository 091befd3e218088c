"""Child processes for work that can crash, stall or exhaust the memory: decoding, downloads, conversions.

The function and its arguments must be picklable. A `SpecdemoError` is raised again in the parent; any other failure
becomes the error described by a `Failure`, with the original error as its cause.
"""

import atexit
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from enum import Enum, auto
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, process_time
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast

from specdemo.errors import SpecdemoError

T = TypeVar("T")
_POLL_SECONDS = 0.2  # how soon a Stop is noticed
_EXIT_SECONDS = 2.0  # seconds for a process to end by itself before it is killed
_NICE = 10  # of 19: gives way to the engine without starving
_STARTING = Lock()
_OUT_OF_MEMORY = 77  # an exit status that no library uses

_SIGNALS = {
    "SIGKILL": "as the system does when memory runs out",
    "SIGFPE": "a division by zero within a library such as OpenVINO",
    "SIGSEGV": "a crash within a library such as OpenVINO",
    "SIGABRT": "a crash within a library such as OpenVINO",
    "SIGBUS": "a mapped file or shared memory that was cut short",
    "SIGILL": "a library made for another processor",
    "SIGXCPU": "more processor time than allowed",
    "SIGTERM": "someone ended it",
}


class Sign(Enum):
    """Results of `Child.receive` other than messages: silence, or the end of the work."""

    SILENCE = auto()
    END = auto()


class Child:
    """A process that runs `main(connection, *arguments)`. It ends when its parent ends, even if that is killed."""

    def __init__(self, main: Callable[..., None], *arguments: Any, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, child_connection = context.Pipe()
        self._ending = Lock()
        # not a daemon, since multiprocessing's daemons may not have children
        self.process = context.Process(target=_run, args=(main, child_connection, arguments), name=name)
        try:
            with _STARTING, _sigint_blocked(), _script_hidden():
                self.process.start()
        except OSError:
            self._connection.close()
            raise
        finally:
            child_connection.close()  # so that reading fails once the child is gone
        atexit.register(self.end)

    @property
    def exit_reason(self) -> str:
        """How the process ended, such as "it was ended by SIGKILL (…)"."""
        self.process.join(_EXIT_SECONDS)
        code = self.process.exitcode
        if code is None:
            return "it no longer answered"
        if code >= 0:
            return "it needed too much memory" if code == _OUT_OF_MEMORY else f"it ended with exit code {code}"
        name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
        return f"it was ended by {name}" + (f" ({_SIGNALS[name]})" if name in _SIGNALS else "")

    def send(self, message: Any) -> None:
        """Send without waiting: a stopped process may never read. If the process is gone, `receive` raises."""
        data = bytes(ForkingPickler.dumps(message))
        connection = self._connection

        def deliver() -> None:
            with suppress(OSError, TypeError):  # TypeError: closed in the meantime
                connection.send_bytes(data)

        Thread(target=deliver, daemon=True).start()

    def receive(self, seconds: float) -> Any:
        """Return the next message, or `Sign.SILENCE` if none comes in time; raise EOFError if the process is gone."""
        try:
            return self._connection.recv() if self._connection.poll(seconds) else Sign.SILENCE
        except (OSError, TypeError) as error:  # TypeError: closed in the meantime
            raise EOFError from error

    def end(self) -> None:
        """Any thread may call this, and again."""
        atexit.unregister(self.end)
        with self._ending:  # a connection that two threads close at once could close another file
            self.process.terminate()
            self.process.join(_EXIT_SECONDS)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
            self._connection.close()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Start child processes with SIGINT blocked: a terminal sends Ctrl+C to all, but only the parent handles it."""
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
    """Keep spawned children from importing the main script, so that it needs no `if __name__ == "__main__"`.

    One started with `python -m`, such as a test's, stays.
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


class Failure(NamedTuple):
    """The error to raise if a process ends early: its type, what failed, and what the user can do."""

    kind: type[SpecdemoError]
    what: str
    advice: str

    def error(self, reason: str) -> SpecdemoError:
        error = self.kind(f"{self.what}: {reason}; {self.advice}.")
        error.ended = True
        return error


def send_all(connection: Connection, failure: Failure, work: Callable[..., Iterable[Any]], *arguments: Any) -> None:
    """Send what `work(*arguments)` yields, then `Sign.END`; or an error, converted by `failure` unless it is ours."""
    try:
        for message in work(*arguments):
            connection.send(message)
        connection.send(Sign.END)
    except SpecdemoError as error:
        connection.send(error)
    except (BrokenPipeError, EOFError):
        raise
    except Exception as error:  # the parent reports and logs it
        reported = failure.kind.of(error, failure.what, failure.advice)
        reported.__cause__ = error
        reported.ended = True
        connection.send(reported)


def run_child(
    work: Callable[..., Iterable[Any]],
    *arguments: Any,
    name: str,
    failure: Failure,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Any]:
    """Yield what `work(*arguments)` yields in a child process, and None after each short silence.

    The child ends once `stop` returns True, or when the generator is closed. Raises the work's `SpecdemoError`, or
    that of `failure`.
    """
    try:
        child = Child(send_all, failure, work, *arguments, name=name)
    except OSError as error:
        raise failure.kind.of(error, failure.what, failure.advice) from error
    try:
        while not stop():
            try:
                message = child.receive(_POLL_SECONDS)
            except EOFError:
                raise failure.error(child.exit_reason) from None
            if isinstance(message, SpecdemoError):
                raise message
            if message is Sign.END:
                return
            yield None if message is Sign.SILENCE else message
    finally:
        child.end()


class Limits(NamedTuple):
    """Bytes added since the process started, CPU seconds (neither on Windows), and elapsed seconds."""

    memory: int = 2**30
    processor_seconds: int = 20
    seconds: float = 40.0


def run_limited(
    work: Callable[..., T], *arguments: Any, name: str, failure: Failure, limits: Limits
) -> Generator[None, None, T]:
    """Return the result of `work(*arguments)` in a child within limits, or raise as `run_child`; yield meanwhile."""
    until = monotonic() + limits.seconds
    done = run_child(_bounded, limits, work, arguments, name=name, failure=failure, stop=lambda: monotonic() > until)
    with closing(done) as messages:
        for message in messages:
            if message is not None:
                return cast(T, message[0])
            yield
    raise failure.error(f"it took longer than {limits.seconds:g} s")


def result_of(work: Generator[Any, None, T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast(T, end.value)


def _bounded(limits: Limits, work: Callable[..., T], arguments: tuple[Any, ...]) -> Iterator[tuple[T]]:
    _set_limits(limits)
    try:
        yield (work(*arguments),)
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)


def _set_limits(limits: Limits) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return

    os.nice(_NICE)
    allowed = {resource.RLIMIT_CPU: int(process_time()) + 1 + limits.processor_seconds}
    with suppress(OSError):  # only Linux reports it
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        allowed[resource.RLIMIT_AS] = pages * resource.getpagesize() + limits.memory
    for kind, limit in allowed.items():
        _, hard_limit = resource.getrlimit(kind)
        limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
        # The hard limit stays: a process that reaches its hard limit of processor time gets a bare SIGKILL.
        resource.setrlimit(kind, (limit, hard_limit))


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
