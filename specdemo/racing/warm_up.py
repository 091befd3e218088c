"""Conditions of a fair timing: both sides are warm, and little else runs on the machine.

In a fresh process kernels are compiled per pass length and memory is touched for the first time, so the beginning of
a run is repeated until it gets no faster; after a fixed number of rounds, the first race understated speculation by
up to a third. In an engine's first race each side takes at least 0.6 s, since noise can hide that steps still
get faster; with 1.5 s, the speedups of eight first races were the same within their noise (1.20 and 1.21 on average).
A side steady less than a minute ago needs one short repetition.
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
from specdemo.records import Costs, Phase, Request, Side, WarmUp
from specdemo.settings import GenerationSettings
from specdemo.strategies import Strategy


class OtherLoad:
    """Load by other processes since creation; this process and the server it computes for do not count."""

    def __init__(self, least_seconds: float) -> None:
        self._least_seconds = least_seconds
        self._begin = _times()

    def share(self) -> float | None:
        """Return the share of all cores' time that other processes took; None before `least_seconds`."""
        passed, busy, own = (now - then for now, then in zip(_times(), self._begin, strict=True))
        return min(max((busy - own) / passed, 0.0), 1.0) if passed >= self._least_seconds else None


def _times() -> tuple[float, float, float]:
    """Return the seconds that passed, and were busy, over all cores together, and our own."""
    times = psutil.cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # also counted as user time
    passed = sum(times) - guests
    return passed, passed - times.idle - getattr(times, "iowait", 0.0), process_time() + _server_time()


def _server_time() -> float:
    """Return the seconds of the page's server if this is its engine's process: it streams what is timed."""
    parent = parent_process()
    with suppress(psutil.Error):
        if parent is not None and parent.pid is not None:
            times = psutil.Process(parent.pid).cpu_times()
            return float(times.user + times.system)
    return 0.0


_LEAST_ROUNDS = 4  # per repetition, or what its seconds allow
_GAIN = 0.97  # share of the best so far: a faster repetition shows that there is more to gain
_MOST_SECONDS = 3.0  # on each side's own clock, prefills included
_MOST_AGAIN = 1.0  # if steady before: its kernels are compiled, and a busy machine is never steady
_MOST_REPETITIONS = 500  # a server may answer at once with nothing

WARM_UP_PROMPT = "Quick foxes jump over lazy dogs while seven wizards mix black quartz"
"""No word occurs twice, so prompt lookup finds little."""
_CHECK = 1 / 3  # share of a repetition's seconds, where a side was steady a moment ago


steady_before = WeakKeyDictionary[Engine, dict[Strategy, float]]()  # by `time.monotonic`


@dataclass
class _Side:
    """`before`: when the side was last steady, if ever on this engine."""

    request: Request
    thorough: Thoroughness
    least_seconds: float
    before: float | None
    rounds: int | None = None  # per repetition, once chosen
    best: float = math.inf
    without_gain: int = 0
    spent: float = 0.0
    spent_rounds: int = 0
    repetitions: int = 0
    steady: bool = False
    finished: bool = False

    def repeat(self, engine: Engine, costs: Costs | None, stop: Callable[[], bool]) -> None:
        warm = self.before is not None and monotonic() < self.before + self.thorough.warm_seconds
        least_seconds = self.thorough.repetition_seconds * (_CHECK if warm else 1)
        decoder = engine.decoder(self.request, costs)
        done = []
        with closing(rounds_of(decoder)) as rounds:
            for step in islice(rounds, self.rounds and self.rounds + 1):
                done.append(step)
                decoding = sum(each.seconds for each in done[1:])
                enough = len(done) > _LEAST_ROUNDS and decoding >= least_seconds
                if stop() or (self.rounds is None and enough):
                    break
            decoder.with_proposals(done)  # the replay's draft must be warm, too
        self.repetitions += 1
        if not done:  # nothing was answered, and asking again would not change that
            self.finished = True
            return
        self.spent += sum(step.seconds for step in done)
        self.spent_rounds += len(done) - 1
        self.rounds = max(len(done) - 1, 1)
        self._judge(sum(step.seconds for step in done[1:]), warm)

    def _judge(self, seconds: float, warm: bool) -> None:
        self.without_gain = self.without_gain + 1 if seconds >= _GAIN * self.best else 0
        self.best = min(self.best, seconds)
        self.steady = warm or self.without_gain >= self.thorough.steady
        most = _MOST_SECONDS if self.before is None else _MOST_AGAIN
        enough = self.spent >= most or self.repetitions >= _MOST_REPETITIONS
        self.finished = warm or (self.steady and self.spent >= self.least_seconds) or enough


def warm_up(
    engine: Engine,
    requests: Mapping[Side, Request],
    costs: Costs | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Phase, None, dict[Side, WarmUp]]:
    """Repeat the beginnings of these requests in turns until each is steady or has taken three seconds.

    Yields a phase before each repetition; returns each side's warm-up.
    """
    thorough = engine.thoroughness
    least = 0.0 if engine in steady_before else thorough.cold_seconds
    before = steady_before.get(engine, {})
    sides = {
        side: _Side(request, thorough, least, before.get(request.strategy)) for side, request in requests.items()
    }
    while unfinished := [one for one in sides.values() if not one.finished]:
        for one in unfinished:
            yield Phase("warming up", 1 + sum(each.finished for each in sides.values()), len(sides))
            one.repeat(engine, costs, stop)
            if stop():
                return {}
    found = {one.request.strategy: monotonic() for one in sides.values() if one.steady}
    steady_before.setdefault(engine, {}).update(found)
    return {
        side: WarmUp(rounds=one.spent_rounds, seconds=one.spent, steady=one.steady) for side, one in sides.items()
    }


def prepare(
    engine: Engine,
    settings: GenerationSettings,
    costs: Costs | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Phase]:
    """Warm up for a race with these settings in advance. Failures are ignored; the race will report them."""
    request = Request.of(WARM_UP_PROMPT, settings)
    with suppress(SpecdemoError):
        yield from warm_up(engine, {"plain": request.plain, "speculative": request}, costs, stop)
