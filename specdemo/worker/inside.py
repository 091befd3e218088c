"""The engine's process from within."""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from operator import attrgetter
from typing import Any

from specdemo.child import send_all
from specdemo.errors import EngineError, SpecdemoError
from specdemo.measure.side import LiveSettings
from specdemo.worker.jobs import EngineFactory, Engines, Job
from specdemo.worker.watch import beat


def serve(
    connection: Connection,
    factory: EngineFactory,
    first: Job | None,
    stop: Event,
    ready: Event,
    controls: Sequence[float],
    pulse: Any,
) -> None:
    """The child: do jobs until the parent is gone. What failed to load is retried."""
    beat(pulse)

    def moved() -> LiveSettings | None:
        lookahead, threshold = controls
        return LiveSettings(int(lookahead), threshold) if lookahead else None

    engines = Engines(factory, stop.is_set, moved)
    if first is not None:
        with suppress(Exception):  # the job that needs it is told, when loading is retried
            for _, phases in groupby(first(engines), attrgetter("name")):  # few, since nobody may be listening
                connection.send(next(phases))
    ready.set()
    while True:
        send_all(connection, _guarded(connection.recv(), engines))


def _guarded(job: Job, engines: Engines) -> Iterator[Any]:
    """What the job yields. Whatever goes wrong, the process survives for the next job."""
    try:
        yield from job(engines)
    except SpecdemoError:
        raise
    except Exception as failure:
        traceback.print_exception(failure)
        engines.close()
        raise EngineError from failure
