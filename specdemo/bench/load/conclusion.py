"""What a load run comes to: up to how many requests at once speculation pays, what it costs beyond, and by which way.

A level counts as paying or costing only if the whole interval of its speedup is on that side of 1.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise, takewhile
from math import log2
from operator import attrgetter
from typing import Literal

from specdemo.bench.conclusion import where
from specdemo.bench.load.results import PLAIN, Load, Point
from specdemo.presentation.figures import percent
from specdemo.presentation.warnings import busy, too_wide
from specdemo.presentation.wording import shared_words
from specdemo.records import Record

Verdict = Literal["pays", "costs", "unclear"]


class Crossover(Record):
    """Where a method's median speedup falls to 1: between which measured levels, and at which share of the way."""

    method: str
    above: int
    below: int
    share: float

    @property
    def at(self) -> float:
        """Requests in flight, interpolated on a logarithmic scale."""
        return 2 ** (log2(self.above) + self.share * (log2(self.below) - log2(self.above)))

    def __str__(self) -> str:
        """The crossover in words."""
        return f"The median speedup of {self.method} falls to 1 between {self.above} and {self.below} at once"


class Best(Record):
    """The fastest way at a level, and those that may be as fast; plain decoding may be either."""

    level: int
    method: str
    speedup: float
    equals: tuple[str, ...] = ()


def opening(result: Load) -> Iterator[str]:
    """The first sentences: what was found, what to doubt about it, when, on which machine, with which settings."""
    found = result.points
    methods = [method for method in result.header.methods if method != PLAIN]
    if not any(point.speedup for point in found):
        yield "Nothing could be compared yet."
    if len(methods) > 1 and (chosen := best(found)):
        yield fastest_words(chosen)
    for method in methods:
        sentence = conclusion([point for point in found if point.method == method])
        if sentence:
            yield sentence if len(methods) == 1 else f"{method.capitalize()}: {sentence[0].lower()}{sentence[1:]}"
    yield from _doubts(found)
    yield from where(result.date, [result.environment] if result.environment is not None else [])
    prompts, repeats = len(result.tasks), result.repeats
    yield (
        f"Settings: {shared_words(result.header.settings)}; {prompts} prompt{'s' * (prompts != 1)}, {repeats} "
        f"repeat{'s' * (repeats != 1)}; methods: {', '.join(methods)}."
    )


def conclusion(found: Sequence[Point]) -> str:
    """One sentence on one speculative method at ascending levels; empty if it was not compared."""
    compared = [point for point in found if point.speedup is not None]
    if not compared:
        return ""
    paying = list(takewhile(lambda point: _verdict(point) == "pays", compared))
    rest = compared[len(paying) :]
    parts = []
    if paying and not rest:
        parts.append(f"speculation pays at every load measured, {_gain(paying[-1])}")
    elif paying:
        parts.append(f"speculation pays {_gain(paying[-1])}")
    later = [point for point in rest if _verdict(point) == "pays"]
    if later:
        parts.append(
            f"{'it pays' if paying else 'speculation pays only'} at {_levels(later)}{' again' * bool(paying)}"
        )
    elif not paying:
        parts.append("speculation clearly pays at none of the loads measured")
    unclear, costing = ([point for point in rest if _verdict(point) == kind] for kind in ("unclear", "costs"))
    if unclear:
        parts.append(f"at {_levels(unclear)} there is no clear difference")
    if costing:
        last = costing[-1]
        assert last.speedup is not None
        parts.append(f"at {last.level} it costs {percent(1 - last.speedup.middle)} of the throughput")
    known = all(point.speedup is not None and point.speedup.known for point in compared)
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:] if known else f"Too few repeats to be sure: {text}"


def crossovers(found: Sequence[Point]) -> list[Crossover]:
    """Where each method's median speedup last falls to 1 or below, if it was above 1 before."""
    crossing = []
    for method in dict.fromkeys(point.method for point in found):
        medians = [
            (point.level, point.speedup.middle)
            for point in found
            if point.method == method and point.speedup is not None
        ]
        for (above, high), (below, low) in reversed(list(pairwise(medians))):
            if high > 1 >= low:
                share = (high - 1) / (high - low)
                crossing.append(Crossover(method=method, above=above, below=below, share=share))
                break
    return crossing


def crossover_words(found: Sequence[Point]) -> list[str]:
    """Each method's crossover, or that there is none."""
    crossing = {crossover.method: crossover for crossover in crossovers(found)}
    words = []
    for method in dict.fromkeys(point.method for point in found if point.speedup is not None):
        mine = [point for point in found if point.method == method and point.speedup is not None]
        if method in crossing:
            words.append(f"{crossing[method]}, interpolated at {crossing[method].at:.1f}.")
        elif all(point.speedup is not None and point.speedup.middle > 1 for point in mine):
            words.append(f"Crossover of {method}: none up to {mine[-1].level}.")
        else:
            words.append(f"Crossover of {method}: none, since its median speedup is not above 1 before.")
    return words


def best(found: Sequence[Point]) -> list[Best]:
    """The fastest method at each level, by its median; plain decoding if none is above 1."""
    chosen = []
    for level in dict.fromkeys(point.level for point in found):
        speedups = {
            point.method: point.speedup for point in found if point.level == level and point.speedup is not None
        }
        if not speedups:
            continue
        fastest = max(speedups, key=lambda method: speedups[method].middle)
        top = speedups[fastest]
        if top.middle <= 1:
            rivals = [method for method, speedup in speedups.items() if (speedup.high or speedup.middle) >= 1]
            chosen.append(Best(level=level, method=PLAIN, speedup=1, equals=tuple(rivals)))
            continue
        least = top.middle if top.low is None else top.low
        equals = [m for m, speedup in speedups.items() if m != fastest and (speedup.high or speedup.middle) >= least]
        if least <= 1:
            equals.append(PLAIN)
        chosen.append(Best(level=level, method=fastest, speedup=top.middle, equals=tuple(equals)))
    return chosen


def fastest_words(chosen: Sequence[Best]) -> str:
    """Which method is fastest at which levels, by the medians."""
    parts: list[str] = []
    for method, group in groupby(chosen, attrgetter("method")):
        levels = [each.level for each in group]
        span = str(levels[0]) if len(levels) == 1 else f"{levels[0]} to {levels[-1]}"
        parts.append(f"{method} with {span}{' in flight' * (not parts)}")
    return f"Fastest, by the medians: {', '.join(parts)}."


def _verdict(point: Point) -> Verdict:
    speedup = point.speedup
    assert speedup is not None, "only compared points are judged"
    low, high = (speedup.middle if end is None else end for end in (speedup.low, speedup.high))
    if low > 1:
        return "pays"
    return "costs" if high < 1 else "unclear"


def _gain(point: Point) -> str:
    """Up to which level, and the speedup there."""
    speedup = point.speedup
    assert speedup is not None, "only compared points are judged"
    where_ = "with one request at a time" if point.level == 1 else f"up to {point.level} at once"
    return f"{where_} ({', '.join(filter(None, [f'{speedup.middle:.2f}×', speedup.ends]))})"


def _levels(found: Sequence[Point]) -> str:
    *first, last = [str(point.level) for point in found]
    return f"{', '.join(first)} and {last}" if first else last


def _doubts(found: Sequence[Point]) -> Iterator[str]:
    for point in found:
        reason = too_wide(point.speedup) if point.speedup is not None else None
        if reason is not None:
            yield f"{point.method.capitalize()}, {point.level} at once: {reason}"
    load = busy(max((point.other_load for point in found if point.other_load is not None), default=None))
    if load is not None:
        yield load
