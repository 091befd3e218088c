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
from itertools import count, islice
from multiprocessing import parent_process
from time import monotonic, process_time
from weakref import WeakKeyDictionary

import psutil

from specdemo.engines.base import Engine, rounds_of
from specdemo.models.devices import cpu_quota, processors, release_mapped_weights
from specdemo.records import Costs, Phase, Request, Round, Side, WarmUp
from specdemo.strategies import Strategy

WARM_UP_PROMPT = "Quick foxes jump over lazy dogs while seven wizards mix black quartz"  # no word twice to copy
_MIN_ROUNDS = 4  # per repetition, or what its seconds allow
_NO_GAIN = 0.97  # share of the best so far: a faster repetition shows that there is more to gain
_MAX_SECONDS = 3.0  # on each side's own clock, prefills included
_MAX_SECONDS_AGAIN = 1.0  # if steady before: its kernels are compiled, and a busy machine is never steady
_MAX_REPETITIONS = 500  # a server may answer at once with nothing
_CHECK_SHARE = 1 / 3  # share of a repetition's seconds, where a side was steady a moment ago

steady_before = WeakKeyDictionary[Engine, dict[Strategy, float]]()  # by `time.monotonic`


class OtherLoad:
    """The load of other processes since this was created; this process and the server it serves do not count."""

    def __init__(self, min_seconds: float) -> None:
        self._min_seconds = min_seconds
        self._begin = _times()

    def share(self) -> float | None:
        """Return the share of the usable processors' time that other processes took; None before `min_seconds`."""
        passed, busy, ours = (now - then for now, then in zip(_times(), self._begin, strict=True))
        return min(max((busy - ours) / passed, 0.0), 1.0) if passed >= self._min_seconds else None


def _times() -> tuple[float, float, float]:
    """Return the seconds that passed, and were busy, over all usable processors together, and ours."""
    ours, quota = process_time() + _server_time(), cpu_quota()
    if quota is not None:  # what runs outside this container does not count against its limit
        limit, group = quota
        with suppress(OSError):
            used = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())["usage_usec"]
            return monotonic() * limit, int(used) / 1e6, ours
    passed, busy, usable = 0.0, 0.0, processors()
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        if number in usable:
            guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # also counted as user time
            passed += sum(times) - guests
            busy += sum(times) - guests - times.idle - getattr(times, "iowait", 0.0)
    return passed, busy, ours


def _server_time() -> float:
    """Return the CPU seconds of the page's server if this is its engine's process: it streams what is timed."""
    parent = parent_process()
    with suppress(psutil.Error):
        return 0.0 if parent is None else float(sum(psutil.Process(parent.pid).cpu_times()[:2]))
    return 0.0


def warm_up(
    engine: Engine,
    requests: Mapping[Side, Request],
    costs: Costs | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Phase, None, dict[Side, WarmUp]]:
    """Repeat the beginnings of these requests in turns until each is steady or has taken three seconds.

    Yields a phase before each repetition; returns each side's warm-up.
    """
    min_seconds = 0.0 if engine in steady_before else engine.thoroughness.cold_seconds
    steady_at = steady_before.get(engine, {})
    running = {
        name: _repetitions(engine, request, costs, stop, min_seconds, steady_at.get(request.strategy))
        for name, request in requests.items()
    }
    done: dict[Side, WarmUp] = {}
    while len(done) < len(running):
        for name in [name for name in running if name not in done]:
            yield Phase("warming up", 1 + len(done), len(running))
            warmed, finished = next(running[name])
            if stop():
                return {}
            if finished:
                done[name] = warmed
    release_mapped_weights()
    now = {requests[name].strategy: monotonic() for name, warmed in done.items() if warmed.steady}
    steady_before[engine] = steady_at | now
    return done


def _repetitions(
    engine: Engine,
    request: Request,
    costs: Costs | None,
    stop: Callable[[], bool],
    min_seconds: float,
    steady_at: float | None,
) -> Iterator[tuple[WarmUp, bool]]:
    """Yield the warm-up so far after each repetition, and whether it is enough. `steady_at`: when it last was."""
    thoroughness = engine.thoroughness
    warm = steady_at is not None and monotonic() < steady_at + thoroughness.warm_seconds
    max_seconds = _MAX_SECONDS if steady_at is None else _MAX_SECONDS_AGAIN
    repetition_seconds = thoroughness.repetition_seconds * (_CHECK_SHARE if warm else 1)
    rounds: int | None = None  # per repetition, once chosen
    best, without_gain, total_seconds, total_rounds = math.inf, 0, 0.0, 0
    for repetition in count(1):
        done, seconds = list[Round](), 0.0
        decoder = engine.decoder(request, costs)
        with closing(rounds_of(decoder)) as steps:
            for step in islice(steps, rounds and rounds + 1):
                seconds += step.seconds if done else 0.0  # without the prefill
                done.append(step)
                enough = len(done) > _MIN_ROUNDS and seconds >= repetition_seconds
                if stop() or (rounds is None and enough):
                    break
            decoder.with_proposals(done)  # the replay's draft must be warm, too
        total_seconds += seconds + sum(step.seconds for step in done[:1])
        total_rounds += max(len(done) - 1, 0)
        rounds = max(len(done) - 1, 1)
        without_gain = without_gain + 1 if seconds >= _NO_GAIN * best else 0
        best = min(best, seconds)
        steady = bool(done) and (warm or without_gain >= thoroughness.steady)
        # an engine that gave nothing would give nothing again
        exhausted = not done or total_seconds >= max_seconds or repetition >= _MAX_REPETITIONS
        finished = warm or exhausted or (steady and total_seconds >= min_seconds)
        yield WarmUp(rounds=total_rounds, seconds=total_seconds, steady=steady), finished
