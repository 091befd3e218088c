import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from specdemo.engines.base import Decoder
from specdemo.racing.worker import Worker
from specdemo.records import Costs, Request
from tests.support.scripted import ScriptedEngine


def failing_engine(error: type[BaseException], number: int) -> ScriptedEngine:
    """Raise in place of the engine's n-th decoder, counted from 1."""

    class Failing(ScriptedEngine):
        left = number

        def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
            self.left -= 1
            if not self.left:
                raise error
            return super().decoder(request, costs)

    return Failing()


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
