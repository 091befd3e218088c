"""Rows of a load run, and what follows from them: every strategy at every concurrency, crossovers and a schedule.

Up to what concurrency does speculation pay, what does it cost beyond, and which strategy is best? Speculation pays or
costs at a concurrency only if the whole interval of its speedup is on that side of 1.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise, takewhile
from math import log2
from operator import attrgetter
from typing import Literal, Self

import numpy as np
from pydantic import Field

from specdemo.errors import capitalised, listed
from specdemo.estimate import Interval, median_interval
from specdemo.experiments.checkpoint import Header, Row
from specdemo.presentation.figures import percent
from specdemo.records import MOST, Block, Count, Record, ServedRequest
from specdemo.settings import GenerationSettings
from specdemo.strategies import Constant

PLAIN = "plain"


class LoadHeader(Header):
    """Identity of a load run. `methods` are plain decoding and every speculative strategy.

    `levels` are the concurrencies, `requests` the minimum per block. `seed` determines all orders, and with them
    which requests a block serves.
    """

    levels: tuple[int, ...]
    requests: int
    seed: int

    def differences(self, earlier: Self) -> list[str]:
        same = {
            "other numbers of concurrent requests": self.levels == earlier.levels,
            "other numbers of requests per block": self.requests == earlier.requests,
            "another random order": self.seed == earlier.seed,
        }
        return super().differences(earlier) + [difference for difference, equal in same.items() if not equal]


class LoadRow(Row):
    """One block of one decoding strategy, in one repeat."""

    method: str
    repeat: Count
    block: Block

    @property
    def key(self) -> tuple[int, int, str]:
        """Repeat, concurrency and method."""
        return self.repeat, self.block.level, self.method

    @property
    def doing(self) -> str:
        """Method and concurrency."""
        return f"{self.method}, {self.block.level} at once"


class Percentiles(Record):
    """Median and 99th percentile over requests, in seconds."""

    median: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """Return the percentiles of at least one request."""
        median, p99 = np.percentile(seconds, (50, 99))
        return cls(median=float(median), p99=float(p99))


class Point(Record):
    """One method at one concurrency (`level`), over all its blocks.

    `tokens_per_second` counts all requests together and is the median of the blocks; `user_tokens_per_second` is the
    median request's rate after its first token. `first` (time to first token, TTFT) and `last` (end-to-end latency)
    run from a request's submission to its first and last token. `per_position[i]`: rounds that accepted at least i +
    1 drafts / rounds. `batch` is the mean number of requests that a target pass advanced. `speedup` is None for plain
    decoding itself, and until a repeat has both sides. `identical` counts the outputs, of `requests`, that equal
    those of plain decoding at concurrency 1; None until there is one.
    """

    method: str
    level: int
    blocks: int
    requests: int
    tokens_per_second: Interval
    user_tokens_per_second: float | None
    first: Percentiles
    last: Percentiles
    mean_accepted_length: float | None
    acceptance_rate: float | None
    per_position: tuple[float, ...] = Field((), max_length=MOST)
    batch: float | None
    cache_bytes: int | None
    speedup: Interval | None
    speedups: tuple[float, ...]
    identical: int | None
    other_load: float | None


def points_of(header: LoadHeader, rows: Sequence[LoadRow]) -> tuple[Point, ...]:
    """Return every method at every measured concurrency: methods in order, concurrency ascending."""
    alone = _outputs_alone(rows)
    blocks: dict[tuple[str, int], list[Block]] = {}
    for row in sorted(rows, key=lambda row: row.key):
        blocks.setdefault((row.method, row.block.level), []).append(row.block)
    return tuple(
        _point(method, level, blocks[method, level], _speedups(rows, method, level), alone)
        for method in header.methods
        for level in header.levels
        if (method, level) in blocks
    )


def _outputs_alone(rows: Sequence[LoadRow]) -> dict[str, str]:
    """Return the output of every prompt in the first plain block at concurrency 1."""
    alone = [row for row in rows if row.method == PLAIN and row.block.level == 1]
    first = min(alone, key=lambda row: row.repeat, default=None)
    return {} if first is None else {served.prompt: served.output for served in first.block.served}


def _speedups(rows: Sequence[LoadRow], method: str, level: int) -> tuple[float, ...]:
    """Return this method's tokens per second / plain decoding's, for every repeat that has both."""
    if method == PLAIN:
        return ()
    rates = {row.key: row.block.tokens_per_second for row in rows if row.block.level == level}
    repeats = sorted(row.repeat for row in rows if row.method == method and row.block.level == level)
    plain = {repeat: rates.get((repeat, level, PLAIN)) for repeat in repeats}
    return tuple(rates[repeat, level, method] / rate for repeat, rate in plain.items() if rate is not None)


def _point(
    method: str, level: int, blocks: Sequence[Block], speedups: tuple[float, ...], alone: dict[str, str]
) -> Point:
    served = [request for block in blocks for request in block.served]
    users = [rate for request in served if (rate := request.tokens_per_second) is not None]
    batches = [block.batch for block in blocks if block.batch is not None]
    caches = [block.cache_bytes for block in blocks if block.cache_bytes is not None]
    others = [block.other_load for block in blocks if block.other_load is not None]
    length, per_position = _rounds(blocks)
    return Point(
        method=method,
        level=level,
        blocks=len(blocks),
        requests=len(served),
        tokens_per_second=median_interval([block.tokens_per_second for block in blocks]),
        user_tokens_per_second=float(np.median(users)) if users else None,
        first=Percentiles.of([request.first for request in served]),
        last=Percentiles.of([request.last for request in served]),
        mean_accepted_length=length,
        acceptance_rate=_acceptance_rate(blocks),
        per_position=per_position,
        batch=float(np.mean(batches)) if batches else None,
        cache_bytes=max(caches, default=None),
        speedup=median_interval(speedups) if speedups else None,
        speedups=speedups,
        identical=_identical(served, alone),
        other_load=float(np.median(others)) if others else None,
    )


def _rounds(blocks: Sequence[Block]) -> tuple[float | None, tuple[float, ...]]:
    """Return the tokens committed per round, and the share of rounds that accepted at least 1, 2, … proposals."""
    seen = [block.accepted for block in blocks if block.accepted is not None]
    if len(seen) < len(blocks):
        return None, ()
    counts = np.zeros(max(map(len, seen)))
    for accepted in seen:
        counts[: len(accepted)] += accepted
    rounds = counts.sum()
    at_least = counts[::-1].cumsum()[::-1] / rounds
    length = float((counts * np.arange(1, len(counts) + 1)).sum() / rounds)
    return length, tuple(map(float, at_least[1:]))


def _acceptance_rate(blocks: Sequence[Block]) -> float | None:
    judged = [block.judged for block in blocks if block.judged is not None]
    proposed = sum(proposed for _, proposed in judged)
    return sum(accepted for accepted, _ in judged) / proposed if proposed and len(judged) == len(blocks) else None


def _identical(served: Sequence[ServedRequest], alone: dict[str, str]) -> int | None:
    if any(request.prompt not in alone for request in served):
        return None
    return sum(request.output == alone[request.prompt] for request in served)


# Conclusions.

Call = Literal["pays", "costs", "unclear"]


class Crossover(Record):
    """Drop of a method's median speedup to 1: `share` of the way from concurrency `above` to `below`."""

    method: str
    above: int
    below: int
    share: float

    @property
    def at(self) -> float:
        """Concurrency, interpolated on a logarithmic scale."""
        return 2 ** (log2(self.above) + self.share * (log2(self.below) - log2(self.above)))

    def __str__(self) -> str:
        return f"The median speedup of {self.method} falls to 1 between {self.above} and {self.below} at once"


class Best(Record):
    """The fastest strategy at a concurrency, and those that may be as fast; plain decoding may be among them."""

    level: int
    method: str
    speedup: float
    equals: tuple[str, ...] = ()


def conclusion(found: Sequence[Point]) -> str:
    """Return a sentence on one speculative method at ascending concurrency; empty if it was not compared."""
    compared = [point for point in found if point.speedup is not None]
    if not compared:
        return ""
    paying = list(takewhile(lambda point: _call(point) == "pays", compared))
    rest = compared[len(paying) :]
    parts = []
    if paying and not rest:
        parts.append(f"speculation pays at every load measured, {_gain(paying[-1])}")
    elif paying:
        parts.append(f"speculation pays {_gain(paying[-1])}")
    later = [point for point in rest if _call(point) == "pays"]
    if later:
        parts.append(
            f"{'it pays' if paying else 'speculation pays only'} at {_levels(later)}{' again' * bool(paying)}"
        )
    elif not paying:
        parts.append("speculation clearly pays at none of the loads measured")
    unclear, costing = ([point for point in rest if _call(point) == kind] for kind in ("unclear", "costs"))
    if unclear:
        parts.append(f"at {_levels(unclear)} there is no clear difference")
    if costing:
        last = costing[-1]
        assert last.speedup is not None
        parts.append(f"at {last.level} it costs {percent(1 - last.speedup.middle)} of the throughput")
    text = "; ".join(parts) + "."
    return capitalised(text) if _known(compared) else f"Too few repeats to be sure: {text}"


def crossovers(found: Sequence[Point]) -> list[Crossover]:
    """Return where each method's median speedup last falls from above 1 to 1 or below."""
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
    """Describe each method's crossover, or say that there is none."""
    crossing = {crossover.method: crossover for crossover in crossovers(found)}
    words = []
    for method in dict.fromkeys(point.method for point in found if point.speedup is not None):
        mine = [point for point in found if point.method == method and point.speedup is not None]
        if method in crossing:
            where = f"interpolated at {crossing[method].at:.1f}" if _known(mine) else "but too few repeats to be sure"
            words.append(f"{crossing[method]}, {where}.")
        elif all(point.speedup is not None and point.speedup.middle > 1 for point in mine):
            words.append(f"Crossover of {method}: none up to concurrency {mine[-1].level}.")
        else:
            words.append(f"Crossover of {method}: none, since its median speedup is not above 1 before.")
    return words


def best(found: Sequence[Point]) -> list[Best]:
    """Return the method with the highest median speedup at each concurrency; plain decoding if none is above 1."""
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
    """Describe which method is fastest at which concurrency, by the medians."""
    parts: list[str] = []
    for method, group in groupby(chosen, attrgetter("method")):
        levels = [each.level for each in group]
        span = str(levels[0]) if len(levels) == 1 else f"{levels[0]} to {levels[-1]}"
        parts.append(f"{method} with {span}{' at once' * (not parts)}")
    return f"Fastest, by the medians: {', '.join(parts)}."


def _known(found: Sequence[Point]) -> bool:
    """Check if there are enough repeats for intervals."""
    return all(point.speedup is not None and point.speedup.has_interval for point in found)


def _call(point: Point) -> Call:
    speedup = point.speedup
    assert speedup is not None, "only compared points are judged"
    low, high = (speedup.middle if end is None else end for end in (speedup.low, speedup.high))
    if low > 1:
        return "pays"
    return "costs" if high < 1 else "unclear"


def _gain(point: Point) -> str:
    """Describe the highest concurrency that pays, and the speedup there."""
    speedup = point.speedup
    assert speedup is not None, "only compared points are judged"
    where_ = "with one request at a time" if point.level == 1 else f"up to {point.level} at once"
    return f"{where_} ({', '.join(filter(None, [f'{speedup.middle:.2f}×', speedup.ends]))})"


def _levels(found: Sequence[Point]) -> str:
    return listed([str(point.level) for point in found])


# The best lookahead per load, for servers that can vary it: vLLM takes such a list in its speculative config.

Schedule = list[list[int]]


def schedule(chosen: Sequence[Best], variants: dict[str, GenerationSettings]) -> Schedule | None:
    """Return rows of [min requests, max requests, lookahead], 0 for plain decoding, up to the highest concurrency.

    Concurrencies between two measured ones follow the lower. None if speculation never wins, or if a method other
    than a draft model with constant length was measured.
    """
    lookaheads = {PLAIN: 0}
    for method, settings in variants.items():
        strategy = settings.strategy
        if not isinstance(strategy, Constant):
            return None
        lookaheads[method] = strategy.num_assistant_tokens
    known = [(each.level, lookaheads[each.method]) for each in chosen]
    if not any(lookahead for _, lookahead in known):
        return None
    starts = [next(group) for _, group in groupby(known, lambda pair: pair[1])]
    ends = [after - 1 for _, (after, _) in pairwise(starts)] + [known[-1][0]]
    return [[start, end, lookahead] for (start, lookahead), end in zip(starts, ends, strict=True)]
