import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from specdemo.racing.worker import Worker
from tests.support.scripted import ScriptedEngine


def failing_engine(error: type[BaseException], number: int) -> ScriptedEngine:
    """Raise in place of the engine's n-th decoder, counted from 1."""
    left = count(number, -1)

    def fail(*_: object) -> None:
        if next(left) == 1:
            raise error

    return ScriptedEngine(on_request=fail)


def send_signal(worker: Worker, number: int) -> None:
    process = worker._child.process.pid
    assert process is not None
    os.kill(process, number)


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    """Limit one of this process's resources, such as `resource.RLIMIT_NOFILE`."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)
