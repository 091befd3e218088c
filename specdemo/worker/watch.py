"""A watch over the engine's process, whether or not anyone waits for it: does it get anywhere?

A process gets somewhere while its pulse goes on, while it computes, or while it reads. A thread of its own beats the
pulse, which stands still while a step holds Python's global lock; but then the step computes. A process that does
none of these for `PATIENCE` seconds is stopped (SIGSTOP), or hangs in a driver, and never ends a job.

A pulse may also go on beside a step that waits for ever. So a job that neither reports nor computes for
`SILENCE` seconds is taken to hang, too; that is longer than any server may be silent by default.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import psutil

PATIENCE = 20.0
SILENCE = 600.0
_EVERY = 0.5
_BUSY = 0.02  # of a core: a process that waits takes less


def beat(pulse: Any) -> None:
    """Beat this pulse, a shared number, for as long as the process runs."""

    def beats() -> None:
        while True:
            pulse.value += 1
            sleep(_EVERY)

    Thread(target=beats, daemon=True).start()


@dataclass
class _Vitals:
    """What a process had done by now: beats, seconds of processor time, and bytes read."""

    at: float = field(default_factory=monotonic)
    beats: int = -1
    seconds: float = 0.0
    read: int = 0

    @classmethod
    def of(cls, process: psutil.Process, beats: int) -> "_Vitals":
        times, read = process.cpu_times(), 0
        with suppress(AttributeError, psutil.AccessDenied):  # not every system tells
            read = process.io_counters().read_chars
        return cls(beats=beats, seconds=times.user + times.system, read=read)

    def works_since(self, before: "_Vitals") -> bool:
        """Whether the process computed or read meanwhile."""
        return self.seconds - before.seconds > _BUSY * (self.at - before.at) or self.read > before.read


class Watch:
    """Watches one process, and ends it when it hangs."""

    def __init__(self, process_id: int, pulse: Any, end: Callable[[], None], patience: float, silence: float) -> None:
        """`end` is called, once, when the process hangs."""
        self._process_id = process_id
        self._pulse = pulse
        self._end = end
        self._patience, self._silence = patience, silence
        self._over = Event()
        self._clock = self._alive = self._worked = 0.0
        self._job: float | None = None  # when a job was last heard of
        self.hung = False
        Thread(target=self._watch, name="specdemo watch", daemon=True).start()

    @property
    def responsive(self) -> bool:
        """Whether the process got anywhere within the last seconds."""
        return not self.hung and self._clock - self._alive < self._patience / 2

    def heard(self, *, over: bool = False) -> None:
        """Note that a job began, reported something, or is over."""
        self._job = None if over else self._clock

    def close(self) -> None:
        """Watch no longer."""
        self._over.set()

    def _watch(self) -> None:
        with suppress(psutil.Error):  # it is gone, which whoever reads from it finds out
            process = psutil.Process(self._process_id)
            before = _Vitals()
            while not self._over.wait(_EVERY):
                now = _Vitals.of(process, self._pulse.value)
                works = now.works_since(before)
                self._clock += min(now.at - before.at, 2 * _EVERY)  # more: this process was stopped or asleep, too
                if works or now.beats != before.beats:
                    self._alive = self._clock
                if works:
                    self._worked = self._clock
                before = now
                stuck = self._job is not None and self._clock - max(self._job, self._worked) > self._silence
                if stuck or self._clock - self._alive > self._patience:
                    self.hung = True
                    self._end()
                    return
