"""A watch over the app while it is besieged: how long it keeps everyone waiting, and how large it grows."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import perf_counter

import httpx
import psutil

from tests.benchmarks.siege.tally import Tally
from tests.support.browser import App

_EVERY = 0.2
_PATIENCE = 120.0  # seconds after which an answer no longer counts as one


@contextmanager
def watched(app: App, tally: Tally) -> Iterator[None]:
    """Ask for the front page again and again meanwhile, and look at the memory of server and engine."""
    over = Event()

    def ask() -> None:
        with httpx.Client(base_url=app.url, timeout=_PATIENCE) as http:
            while not over.wait(_EVERY):
                began = perf_counter()
                with suppress(httpx.TransportError):
                    answered = http.get("/").status_code == httpx.codes.OK
                    tally.silence = max(tally.silence, perf_counter() - began if answered else _PATIENCE)

    def look() -> None:
        server = psutil.Process(app.process.pid)
        while not over.wait(_EVERY):
            with suppress(psutil.Error, StopIteration):
                tally.server_bytes = max(tally.server_bytes, server.memory_info().rss)
                tally.engine_bytes = max(tally.engine_bytes, app.engine().memory_info().rss)

    threads = [Thread(target=work, daemon=True) for work in (ask, look)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
