"""What a load run found, and what it comes to.

Up to how many concurrent requests does speculation pay, what does it cost beyond, and with which strategy? A
concurrency counts as paying or costing only if the whole interval of its speedup is on that side of 1.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, pairwise, takewhile
from math import log2
from operator import attrgetter
from typing import Any, Literal, Self

import numpy as np
import plotly.graph_objects as go
from pydantic import Field

from specdemo.analysis.estimates import MEDIAN_FORMULA, Interval, median_interval
from specdemo.analysis.metrics import FORMULAS
from specdemo.experiments.checkpoint import Header, Row
from specdemo.experiments.plan import Result
from specdemo.experiments.report import Chart, Report, Table, measured_on, memory_notes, times, whiskers
from specdemo.experiments.suites import Task
from specdemo.measure.hardware import MemoryUse
from specdemo.presentation.charts import base_figure, colour, plain_line
from specdemo.presentation.figures import number, percent
from specdemo.presentation.warnings import busy, too_wide
from specdemo.presentation.wording import shared_words
from specdemo.records import MOST, Environment, Record
from specdemo.records.base import Count
from specdemo.records.run import Block, Served
from specdemo.settings import GenerationSettings
from specdemo.strategies import Constant

PLAIN = "plain"
COLUMNS = (
    "concurrency", "method", "tokens/s", "per user", "TTFT, s", "end-to-end, s", "τ", "α", "batch", "speedup",
    "outputs",
)  # fmt: skip
_FORMULAS = {
    "Tokens/s": "throughput",
    "Per user": "user_throughput",
    "TTFT, end-to-end": "latency",
    "Speedup": "load_speedup",
    "Batch": "batch",
}
_FULL = 0.9  # of the concurrent requests: fewer in a pass are worth a note


class LoadHeader(Header):
    """What a load run measures. `methods` are plain and every speculative strategy; `requests` the least per block.

    `levels` are the numbers of concurrent requests. `seed` is that of all orders, on which it depends which requests
    a block serves.
    """

    levels: tuple[int, ...]
    requests: int
    seed: int

    def differences(self, earlier: Self) -> list[str]:
        """How an earlier header differs, in words."""
        same = {
            "other numbers of concurrent requests": self.levels == earlier.levels,
            "other numbers of requests per block": self.requests == earlier.requests,
            "another random order": self.seed == earlier.seed,
        }
        return super().differences(earlier) + [difference for difference, equal in same.items() if not equal]


class LoadRow(Row):
    """One block: which decoding strategy, in which repeat."""

    method: str
    repeat: Count
    block: Block

    @property
    def key(self) -> tuple[int, int, str]:
        """Repeat, concurrency and method."""
        return self.repeat, self.block.level, self.method

    @property
    def doing(self) -> str:
        """The method, and how many requests at once."""
        return f"{self.method}, {self.block.level} at once"


class Percentiles(Record):
    """Median and 99th percentile over requests, in seconds."""

    median: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """Those of at least one request."""
        median, p99 = np.percentile(seconds, (50, 99))
        return cls(median=float(median), p99=float(p99))


class Point(Record):
    """One method at one concurrency (`level`), over all its blocks.

    `tokens_per_second` is of all requests together, the median of the blocks; `user_tokens_per_second` what the
    median request sees after its first token. `first` (time to first token, TTFT) and `last` (end-to-end latency) are
    from a request's submission until its first and its last token. `per_position[i]`: rounds that accepted at least
    i + 1 drafts / rounds. `batch` is the mean number of requests that a target pass advanced. `speedup` is None for
    plain decoding itself, and until both sides of a repeat are there. `identical` of `requests` outputs are those of
    plain decoding of one request at a time; None until that is known.
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


class Load(Result):
    """A load run, finished or not. `variants` are the settings of its speculative methods."""

    header: LoadHeader
    variants: dict[str, GenerationSettings]
    tasks: tuple[Task, ...]
    date: str = ""
    repeats: int = Field(ge=1)
    environment: Environment | None = None
    rows: tuple[LoadRow, ...] = ()
    memory: tuple[MemoryUse, ...] = ()

    @property
    def total(self) -> int:
        """Number of blocks."""
        return len(self.header.levels) * len(self.header.methods) * self.repeats

    @property
    def row_count(self) -> int:
        """Number of blocks so far."""
        return len(self.rows)

    def report(self) -> Report:
        """The load run as a report."""
        return report_of(self)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, without the points that were derived from this."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("points", None)
        return copy

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every method at every concurrency that has a row, methods in their order and concurrency ascending."""
        alone = _outputs_alone(self.rows)
        blocks: dict[tuple[str, int], list[Block]] = {}
        for row in sorted(self.rows, key=lambda row: row.key):
            blocks.setdefault((row.method, row.block.level), []).append(row.block)
        return tuple(
            _point(method, level, blocks[method, level], _speedups(self.rows, method, level), alone)
            for method in self.header.methods
            for level in self.header.levels
            if (method, level) in blocks
        )


def _outputs_alone(rows: Sequence[LoadRow]) -> dict[str, str]:
    """The output of every prompt in the first plain block with one request at a time."""
    alone = [row for row in rows if row.method == PLAIN and row.block.level == 1]
    first = min(alone, key=lambda row: row.repeat, default=None)
    return {} if first is None else {served.prompt: served.output for served in first.block.served}


def _speedups(rows: Sequence[LoadRow], method: str, level: int) -> tuple[float, ...]:
    """This method's tokens per second / those of plain decoding, for every repeat that has both."""
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
    """Tokens committed per round, and the share of rounds that accepted at least 1, 2, … proposals."""
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


def _identical(served: Sequence[Served], alone: dict[str, str]) -> int | None:
    if any(request.prompt not in alone for request in served):
        return None
    return sum(request.output == alone[request.prompt] for request in served)


# What it comes to.

Call = Literal["pays", "costs", "unclear"]


class Crossover(Record):
    """Where a method's median speedup falls to 1: between which measured levels, and at which share of the way."""

    method: str
    above: int
    below: int
    share: float

    @property
    def at(self) -> float:
        """Concurrent requests, interpolated on a logarithmic scale."""
        return 2 ** (log2(self.above) + self.share * (log2(self.below) - log2(self.above)))

    def __str__(self) -> str:
        """The crossover in words."""
        return f"The median speedup of {self.method} falls to 1 between {self.above} and {self.below} at once"


class Best(Record):
    """The fastest strategy at a concurrency, and those that may be as fast; plain decoding may be either."""

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
    yield from measured_on(result.date, result.environment)
    yield (
        f"Settings: {shared_words(result.header.settings)}; {times(len(result.tasks), 'prompt')}, "
        f"{times(result.repeats, 'repeat')}; methods: {', '.join(methods)}."
    )


def conclusion(found: Sequence[Point]) -> str:
    """One sentence on one speculative method at ascending concurrency; empty if it was not compared."""
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
    """The fastest method at each concurrency, by its median; plain decoding if none is above 1."""
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
    """Which method is fastest at which concurrency, by the medians."""
    parts: list[str] = []
    for method, group in groupby(chosen, attrgetter("method")):
        levels = [each.level for each in group]
        span = str(levels[0]) if len(levels) == 1 else f"{levels[0]} to {levels[-1]}"
        parts.append(f"{method} with {span}{' at once' * (not parts)}")
    return f"Fastest, by the medians: {', '.join(parts)}."


def _call(point: Point) -> Call:
    speedup = point.speedup
    assert speedup is not None, "only compared points are judged"
    low, high = (speedup.middle if end is None else end for end in (speedup.low, speedup.high))
    if low > 1:
        return "pays"
    return "costs" if high < 1 else "unclear"


def _gain(point: Point) -> str:
    """Up to which concurrency, and the speedup there."""
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


# The best lookahead per load, for a server that can follow one: vLLM takes such a list in its speculative config.

Schedule = list[list[int]]


def schedule(chosen: Sequence[Best], variants: dict[str, GenerationSettings]) -> Schedule | None:
    """Rows of [fewest requests, most requests, lookahead], 0 for plain decoding, from 1 to the highest concurrency.

    Numbers between two measured ones follow the lower. None if speculation never wins, or by anything but a draft
    model with constant lookaheads.
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


# The report.


def report_of(result: Load) -> Report:
    """The load run as a report."""
    found = result.points
    return Report(
        title=f"Load on {result.header.pair.name}",
        opening=list(opening(result)),
        charts=charts(result),
        tables={"table": Table("Both sides at every concurrency", COLUMNS, table(result)), **dict(_more(result))},
        notes=list(notes(result)),
        data=lambda: {
            **result.model_dump(mode="json"),
            "points": [point.model_dump(mode="json") for point in found],
            "crossovers": [each.model_dump(mode="json") | {"at": each.at} for each in crossovers(found)],
            "best": [each.model_dump(mode="json") for each in best(found)],
            "schedule": schedule(best(found), result.variants),
            "headline": headline(result),
        },
        headline=headline(result),
        figures=[_figures(point) for point in found],
    )


def headline(result: Load) -> dict[str, Any]:
    """The headline figures."""
    found = result.points
    return {
        "pair": result.header.pair.name,
        "complete": result.complete,
        "conclusion": next(opening(result)),
        "crossover": crossover_words(found),
        "speedups": {
            f"{point.method}, {point.level} at once": {
                "median": round(point.speedup.middle, 3),
                "interval": [round(end, 3) for end in (point.speedup.low, point.speedup.high) if end is not None],
                "identical": None if point.identical is None else point.identical == point.requests,
            }
            for point in found
            if point.speedup is not None
        },
    }


def table(result: Load) -> list[tuple[str, ...]]:
    """The rows under `COLUMNS`, as text, by concurrency."""
    return [_row(point) for point in sorted(result.points, key=lambda point: point.level)]


def _more(result: Load) -> Iterator[tuple[str, Table]]:
    if len(result.variants) > 1:
        yield "best", best_table(result)
    positions = position_table(result)
    if positions.rows:
        yield "positions", positions


def best_table(result: Load) -> Table:
    """The fastest strategy at each concurrency."""
    return Table(
        "Fastest by concurrency",
        ("concurrency", "fastest", "speedup", "may be as fast"),
        [_choice(each) for each in best(result.points)],
    )


def position_table(result: Load) -> Table:
    """The share of rounds that accepted at least so many proposals, where rounds can be seen."""
    seen = [point for point in result.points if point.method != PLAIN and point.per_position]
    most = {
        point.method: max(len(point.per_position), getattr(result.variants[point.method].strategy, "lookahead", 0))
        for point in seen
    }
    positions = range(max(most.values(), default=0))
    rows = [
        (str(point.level), point.method, *_shares(point.per_position, most[point.method], len(positions)))
        for point in sorted(seen, key=lambda point: point.level)
    ]
    return Table("Acceptance by position", ("concurrency", "method", *(str(i + 1) for i in positions)), rows)


def notes(result: Load) -> Iterator[str]:
    """Crossovers, how the figures are computed, and what could not be seen."""
    found = result.points
    if not result.complete:
        yield f"Unfinished: {len(result.rows)} of {result.total} blocks."
    yield from crossover_words(found)
    if (rows := schedule(best(found), result.variants)) is not None:
        most = max(lookahead for *_, lookahead in rows)
        config = {"num_speculative_tokens": most, "num_speculative_tokens_per_batch_size": rows}
        yield f"Fastest by load (measured here, not in vLLM); add to its --speculative-config: {json.dumps(config)}."
    for what, name in _FORMULAS.items():
        yield f"{what}: {FORMULAS[name]}."
    yield f"Speedups are shown as {MEDIAN_FORMULA}."
    yield "Outputs are compared with those of plain decoding of one request at a time."
    if any(point.mean_accepted_length is None for point in found if point.method != PLAIN):
        yield "τ and α are missing where the engine does not tell of rounds."
    for point in found:
        if point.batch is not None and point.batch < _FULL * point.level:
            yield (
                f"{point.method.capitalize()}, {point.level} at once: a pass advanced {point.batch:.1f} requests "
                "on average; the others waited for their prefill, or for room in the KV cache."
            )
    caches = [point for point in found if point.cache_bytes is not None]
    if caches:
        largest = max(caches, key=lambda point: point.cache_bytes or 0)
        yield (
            f"KV cache of the target: at most {(largest.cache_bytes or 0) / 2**20:.0f} MiB in use, "
            f"with {largest.level} requests at once ({largest.method})."
        )
    yield from memory_notes(result.memory)


def _row(point: Point) -> tuple[str, ...]:
    outputs = "–" if point.identical is None else f"{point.identical} of {point.requests}"
    if point.identical == point.requests:
        outputs = "identical"
    plain = point.method == PLAIN
    return (
        str(point.level),
        point.method,
        f"{point.tokens_per_second.middle:.0f}",
        "–" if point.user_tokens_per_second is None else f"{point.user_tokens_per_second:.1f}",
        _both(point.first),
        _both(point.last),
        number(point.mean_accepted_length),
        "" if plain else number(point.acceptance_rate),
        "–" if point.batch is None else f"{point.batch:.1f}",
        "" if plain else _speedup(point.speedup),
        outputs,
    )


def _speedup(speedup: Interval | None) -> str:
    if speedup is None:
        return "–"
    return f"{speedup.middle:.2f}×" + (f" ({speedup.low:.2f}–{speedup.high:.2f})" if speedup.known else "")


def _shares(shares: Sequence[float], proposed: int, columns: int) -> list[str]:
    """Shares by position, 0 where one was proposed but never accepted, empty where none was."""
    known = [percent(share) for share in (*shares, *[0.0] * (proposed - len(shares)))]
    return [*known, *[""] * (columns - len(known))]


def _both(seconds: Percentiles) -> str:
    return f"{seconds.median:.2f} / {seconds.p99:.2f}"


def _choice(each: Best) -> tuple[str, ...]:
    return str(each.level), each.method, f"{each.speedup:.2f}×", ", ".join(each.equals)


def _figures(point: Point) -> dict[str, Any]:
    figures = point.model_dump(exclude={"tokens_per_second", "speedup", "speedups", "first", "last", "per_position"})
    figures["tokens_per_second"] = point.tokens_per_second.middle
    for name in ("first", "last"):
        seconds: Percentiles = getattr(point, name)
        figures |= {f"{name}_median": seconds.median, f"{name}_p99": seconds.p99}
    speedup = point.speedup
    ends = (None, None, None) if speedup is None else (speedup.middle, speedup.low, speedup.high)
    return figures | dict(zip(("median", "low", "high"), ends, strict=True))


def charts(result: Load) -> dict[str, Chart]:
    """Throughput against latency of every method, and speedups by concurrency."""
    found = result.points
    shown = {
        "latency": Chart(
            "Throughput against latency",
            _throughput(found),
            "Labels: concurrent requests. Throughput counts the tokens of all requests; latency is the median time "
            "from a request's submission until its last token.",
        )
    }
    if any(point.speedup is not None for point in found):
        shown["speedup"] = Chart(
            "Speedup over plain decoding by concurrency",
            _speedup_figure(found),
            f"{FORMULAS['load_speedup'].capitalize()}. Dashed: as fast as plain decoding; dotted: where the median "
            "crosses it.",
        )
    return shown


def _throughput(found: Sequence[Point]) -> go.Figure:
    figure = base_figure(hovermode="closest")
    for method in dict.fromkeys(point.method for point in found):
        mine = [point for point in found if point.method == method]
        figure.add_scatter(
            x=[point.last.median for point in mine],
            y=[point.tokens_per_second.middle for point in mine],
            text=[str(point.level) for point in mine],
            name=method,
            mode="lines+markers+text",
            textposition="bottom right" if method == PLAIN else "top left",
            line={"color": _colour(found, method)},
            hovertemplate="%{text} at once: %{y:.0f} tokens/s, last token after %{x:.2f} s",
        )
    figure.update_xaxes(title="median end-to-end latency, s")
    figure.update_yaxes(title="tokens/s of all requests")
    return figure


def _speedup_figure(found: Sequence[Point]) -> go.Figure:
    figure = base_figure(hovermode="closest")
    levels = list(dict.fromkeys(str(point.level) for point in found))  # as names, or the first would be crowded
    for method in dict.fromkeys(point.method for point in found if point.speedup is not None):
        mine = [(point, point.speedup) for point in found if point.method == method and point.speedup is not None]
        figure.add_scatter(
            x=[str(point.level) for point, _ in mine],
            y=[speedup.middle for _, speedup in mine],
            text=[str(speedup) for _, speedup in mine],
            name=method,
            mode="lines+markers",
            line={"color": _colour(found, method)},
            error_y=whiskers([speedup for _, speedup in mine], color=_colour(found, method)),
            hovertemplate="%{x} at once: %{text}",
        )
    figure.update_xaxes(title="concurrent requests", type="category", categoryorder="array", categoryarray=levels)
    figure.update_yaxes(title="speedup")
    plain_line(figure)
    for crossover in crossovers(found):
        above, below = levels.index(str(crossover.above)), levels.index(str(crossover.below))
        figure.add_vline(
            x=above + (below - above) * crossover.share,
            line={"color": _colour(found, crossover.method), "dash": "dot", "width": 1.5},
            annotation={"text": "crossover", "font": {"color": "var(--sd-mute)"}},
        )
    return figure


def _colour(found: Sequence[Point], method: str) -> str:
    if method == PLAIN:
        return "var(--sd-plain)"
    return colour([name for name in dict.fromkeys(point.method for point in found) if name != PLAIN].index(method))
