"""Conditions of a fair timing: both sides are warm, and little else runs on the machine.

In a fresh process kernels are compiled per pass length, and memory is touched for the first time. The beginning of a
run is therefore repeated until it gets no faster; a fixed number of rounds understated speculation by up to a third.
In an engine's first race each side takes at least 0.6 s, since noise can hide that steps still get faster; with
1.5 s, the speedups of eight first races were the same within their noise (1.20 and 1.21 on average). A side that was
steady less than a minute ago needs one short repetition.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import parent_process
from time import monotonic, process_time
from weakref import WeakKeyDictionary

import psutil

from specdemo.engines.base import Engine, Thoroughness, rounds_of
from specdemo.errors import SpecdemoError
from specdemo.models.devices import cpu_quota, processors, release_mapped_weights
from specdemo.records import Costs, Phase, Request, Round, Side, WarmUp
from specdemo.settings import GenerationSettings
from specdemo.strategies import Strategy

WARM_UP_PROMPT = "Quick foxes jump over lazy dogs while seven wizards mix black quartz"  # no word twice to copy
_LEAST_ROUNDS = 4  # per repetition, or what its seconds allow
_GAIN = 0.97  # share of the best so far: a faster repetition shows that there is more to gain
_MOST_SECONDS = 3.0  # on each side's own clock, prefills included
_MOST_AGAIN = 1.0  # if steady before: its kernels are compiled, and a busy machine is never steady
_MOST_REPETITIONS = 500  # a server may answer at once with nothing
_CHECK = 1 / 3  # share of a repetition's seconds, where a side was steady a moment ago

steady_before = WeakKeyDictionary[Engine, dict[Strategy, float]]()  # by `time.monotonic`


class OtherLoad:
    """The load of other processes since this was created; this process and the server it serves do not count."""

    def __init__(self, least_seconds: float) -> None:
        self._least_seconds = least_seconds
        self._begin = _times()

    def share(self) -> float | None:
        """Return the share of the usable processors' time that other processes took; None before `least_seconds`."""
        passed, busy, own = (now - then for now, then in zip(_times(), self._begin, strict=True))
        return min(max((busy - own) / passed, 0.0), 1.0) if passed >= self._least_seconds else None


def _times() -> tuple[float, float, float]:
    """Return the seconds that passed, and were busy, over all usable processors together, and our own."""
    own, quota = process_time() + _server_time(), cpu_quota()
    if quota is not None:  # what runs outside this container does not count against its limit
        limit, group = quota
        with suppress(OSError):
            used = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())["usage_usec"]
            return monotonic() * limit, int(used) / 1e6, own
    passed, busy, usable = 0.0, 0.0, processors()
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        if number in usable:
            guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # also counted as user time
            passed += sum(times) - guests
            busy += sum(times) - guests - times.idle - getattr(times, "iowait", 0.0)
    return passed, busy, own


def _server_time() -> float:
    """Return the CPU seconds of the page's server if this is its engine's process: it streams what is timed."""
    parent = parent_process()
    with suppress(psutil.Error):
        return 0.0 if parent is None else float(sum(psutil.Process(parent.pid).cpu_times()[:2]))
    return 0.0


@dataclass
class _Side:
    """`steady_at`: when the side was last steady, if ever on this engine."""

    request: Request
    thoroughness: Thoroughness
    least_seconds: float
    steady_at: float | None
    rounds: int | None = None  # per repetition, once chosen
    best: float = math.inf
    without_gain: int = 0
    total_seconds: float = 0.0
    total_rounds: int = 0
    repetitions: int = 0
    steady: bool = False
    finished: bool = False

    def repeat(self, engine: Engine, costs: Costs | None, stop: Callable[[], bool]) -> None:
        warm = self.steady_at is not None and monotonic() < self.steady_at + self.thoroughness.warm_seconds
        least_seconds = self.thoroughness.repetition_seconds * (_CHECK if warm else 1)
        decoder = engine.decoder(self.request, costs)
        done, seconds = list[Round](), 0.0
        with closing(rounds_of(decoder)) as rounds:
            for step in islice(rounds, self.rounds and self.rounds + 1):
                seconds += step.seconds if done else 0.0  # without the prefill
                done.append(step)
                enough = len(done) > _LEAST_ROUNDS and seconds >= least_seconds
                if stop() or (self.rounds is None and enough):
                    break
            decoder.with_proposals(done)  # the replay's draft must be warm, too
        self.repetitions += 1
        if not done:  # the engine gave nothing, and asking again would not change that
            self.finished = True
            return
        self.total_seconds += done[0].seconds + seconds
        self.total_rounds += len(done) - 1
        self.rounds = max(len(done) - 1, 1)
        self.without_gain = self.without_gain + 1 if seconds >= _GAIN * self.best else 0
        self.best = min(self.best, seconds)
        self.steady = warm or self.without_gain >= self.thoroughness.steady
        most = _MOST_SECONDS if self.steady_at is None else _MOST_AGAIN
        exhausted = self.total_seconds >= most or self.repetitions >= _MOST_REPETITIONS
        self.finished = warm or exhausted or (self.steady and self.total_seconds >= self.least_seconds)


def warm_up(
    engine: Engine,
    requests: Mapping[Side, Request],
    costs: Costs | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Phase, None, dict[Side, WarmUp]]:
    """Repeat the beginnings of these requests in turns until each is steady or has taken three seconds.

    Yields a phase before each repetition; returns each side's warm-up.
    """
    least = 0.0 if engine in steady_before else engine.thoroughness.cold_seconds
    before = steady_before.get(engine, {})
    sides = {
        name: _Side(request, engine.thoroughness, least, before.get(request.strategy))
        for name, request in requests.items()
    }
    while unfinished := [side for side in sides.values() if not side.finished]:
        for side in unfinished:
            yield Phase("warming up", 1 + sum(other.finished for other in sides.values()), len(sides))
            side.repeat(engine, costs, stop)
            if stop():
                return {}
    release_mapped_weights()
    now = {side.request.strategy: monotonic() for side in sides.values() if side.steady}
    steady_before.setdefault(engine, {}).update(now)
    return {
        name: WarmUp(rounds=side.total_rounds, seconds=side.total_seconds, steady=side.steady)
        for name, side in sides.items()
    }


def prepare(
    engine: Engine, settings: GenerationSettings, costs: Costs | None = None, stop: Callable[[], bool] = lambda: False
) -> Iterator[Phase]:
    """Warm up for a race with these settings in advance. Failures are ignored; the race will report them."""
    request = Request.of(WARM_UP_PROMPT, settings)
    with suppress(SpecdemoError):
        yield from warm_up(engine, {"plain": request.plain, "speculative": request}, costs, stop)
