"""A load run as a report: a row for every decoding strategy at every number of requests in flight."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from specdemo.analysis.intervals import FORMULA, Interval
from specdemo.bench.files import Report, Table
from specdemo.bench.load.charts import charts
from specdemo.bench.load.conclusion import Best, best, crossover_words, crossovers, opening
from specdemo.bench.load.results import PLAIN, Load, Percentiles, Point
from specdemo.bench.load.schedule import schedule
from specdemo.bench.report import memory_notes
from specdemo.presentation.figures import number, percent

COLUMNS = (
    "in flight", "method", "tokens/s", "per user", "first, s", "last, s", "τ", "α", "batch", "speedup", "outputs",
)  # fmt: skip
_BEST_COLUMNS = ("in flight", "fastest", "speedup", "may be as fast")
_FULL = 0.9  # of the requests in flight: fewer in a pass are worth a note
FORMULAS = {
    "tokens/s": "tokens of all requests / seconds, from the first submission until the last counted request ended, "
    "with as many requests in flight all the time",
    "per user": "tokens after a request's first / seconds since that, the median of the requests",
    "first, last": "seconds from a request's submission until its first and its last token, median / 99th percentile "
    "of the requests",
    "speedup": "speculative tokens/s / plain tokens/s of the same repeat, with the same requests",
    "batch": "requests that a target pass advanced, on average",
}


def report_of(result: Load) -> Report:
    """The load run as a report."""
    found = result.points
    return Report(
        title=f"Load on {result.header.pair.name}",
        opening=list(opening(result)),
        charts=charts(result),
        columns=COLUMNS,
        rows=table(result),
        notes=list(notes(result)),
        data=lambda: {
            **result.model_dump(mode="json"),
            "points": [point.model_dump(mode="json") for point in found],
            "crossovers": [each.model_dump(mode="json") | {"at": each.at} for each in crossovers(found)],
            "best": [each.model_dump(mode="json") for each in best(found)],
            "schedule": schedule(best(found), result.variants),
            "headline": headline(result),
        },
        figures=[_figures(point) for point in found],
        more=dict(_more(result)),
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
    """The rows under `COLUMNS`, as text, by level."""
    return [_row(point) for point in sorted(result.points, key=lambda point: point.level)]


def _more(result: Load) -> Iterator[tuple[str, Table]]:
    if len(result.variants) > 1:
        yield "best", best_table(result)
    positions = position_table(result)
    if positions.rows:
        yield "positions", positions


def best_table(result: Load) -> Table:
    """The fastest way at each number of requests in flight."""
    return Table("Fastest by requests in flight", _BEST_COLUMNS, [_choice(each) for each in best(result.points)])


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
    return Table("Acceptance by position", ("in flight", "method", *(str(i + 1) for i in positions)), rows)


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
    for what, formula in FORMULAS.items():
        yield f"{what.capitalize()}: {formula}."
    yield f"Speedups are shown as {FORMULA}."
    yield "Outputs are compared with those of plain decoding of one request at a time."
    if any(point.mean_accepted_length is None for point in found if point.method != PLAIN):
        yield "τ and α are missing where the engine does not tell of rounds."
    for point in found:
        if point.batch is not None and point.batch < _FULL * point.level:
            yield (
                f"{point.method.capitalize()}, {point.level} in flight: a pass advanced {point.batch:.1f} requests "
                "on average; the others waited for their prefill, or for room in the KV cache."
            )
    caches = [point for point in found if point.cache_bytes is not None]
    if caches:
        largest = max(caches, key=lambda point: point.cache_bytes or 0)
        yield (
            f"KV cache of the target: at most {(largest.cache_bytes or 0) / 2**20:.0f} MiB in use, "
            f"with {largest.level} in flight ({largest.method})."
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
