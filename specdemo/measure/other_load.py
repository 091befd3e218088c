"""Other load on the machine while something is timed.

The clocks run only while a side computes, but whatever else runs on the machine takes processor time and memory
bandwidth from it, and not necessarily from both sides alike.
"""

from contextlib import suppress
from multiprocessing import parent_process
from time import process_time

import psutil


class OtherLoad:
    """Measures from its creation on. Neither this process counts as other, nor the server that it computes for."""

    def __init__(self, least_seconds: float) -> None:
        """Begin; over less than so many seconds, of all cores together, nothing can be said."""
        self._least_seconds = least_seconds
        self._begin = _times()

    def share(self) -> float | None:
        """Share of the machine's processor time that others took so far; None over too short a time."""
        passed, busy, own = (now - then for now, then in zip(_times(), self._begin, strict=True))
        return min(max((busy - own) / passed, 0.0), 1.0) if passed >= self._least_seconds else None


def _times() -> tuple[float, float, float]:
    """Seconds of all cores together that passed, and that were busy; and those of ours."""
    times = psutil.cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted as user time, too
    passed = sum(times) - guests
    return passed, passed - times.idle - getattr(times, "iowait", 0.0), process_time() + _server_time()


def _server_time() -> float:
    """Seconds of the page's server, if this is its engine's process: it streams what is timed here."""
    parent = parent_process()
    with suppress(psutil.Error):
        if parent is not None and parent.pid is not None:
            times = psutil.Process(parent.pid).cpu_times()
            return float(times.user + times.system)
    return 0.0
