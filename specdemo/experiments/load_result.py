"""Result of a load run, and its report."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import plotly.graph_objects as go
from pydantic import Field

from specdemo.estimate import MEDIAN_FORMULA, Interval
from specdemo.experiments.load_points import (
    PLAIN,
    Best,
    LoadHeader,
    LoadRow,
    Percentiles,
    Point,
    best,
    conclusion,
    crossover_words,
    crossovers,
    fastest_words,
    points_of,
    schedule,
)
from specdemo.experiments.plan import Result
from specdemo.experiments.report import Chart, Report, Table, fit_axis, measured_on, memory_notes, times, whiskers
from specdemo.experiments.suites import Task
from specdemo.measure import MemoryUse
from specdemo.metrics import FORMULAS
from specdemo.presentation.charts import base_figure, colour, plain_line
from specdemo.presentation.figures import number, percent
from specdemo.presentation.warnings import busy, too_wide
from specdemo.presentation.wording import shared_words
from specdemo.records import Environment
from specdemo.settings import GenerationSettings

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
_FULL = 0.9  # of the concurrency: a smaller mean batch is worth a note


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
        """Number of blocks when complete."""
        return len(self.header.levels) * len(self.header.methods) * self.repeats

    @property
    def row_count(self) -> int:
        """Number of blocks so far."""
        return len(self.rows)

    def report(self) -> Report:
        return report_of(self)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy without the cached points."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("points", None)
        return copy

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every method at every measured concurrency: methods in order, concurrency ascending."""
        return points_of(self.header, self.rows)


def opening(result: Load) -> Iterator[str]:
    """Yield the opening sentences: conclusion, warnings, date, machine and settings."""
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
    yield from _warnings(found)
    yield from measured_on(result.date, result.environment)
    yield (
        f"Settings: {shared_words(result.header.settings)}; {times(len(result.tasks), 'prompt')}, "
        f"{times(result.repeats, 'repeat')}; methods: {', '.join(methods)}."
    )


def _warnings(found: Sequence[Point]) -> Iterator[str]:
    for point in found:
        reason = too_wide(point.speedup) if point.speedup is not None else None
        if reason is not None:
            yield f"{point.method.capitalize()}, {point.level} at once: {reason}"
    load = busy(max((point.other_load for point in found if point.other_load is not None), default=None))
    if load is not None:
        yield load


# The report.


def report_of(result: Load) -> Report:
    """Return the report of a load run."""
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
    """Return the headline figures."""
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
    """Return the rows under `COLUMNS` as strings, sorted by concurrency."""
    return [_row(point) for point in sorted(result.points, key=lambda point: point.level)]


def _more(result: Load) -> Iterator[tuple[str, Table]]:
    if len(result.variants) > 1:
        yield "best", best_table(result)
    positions = position_table(result)
    if positions.rows:
        yield "positions", positions


def best_table(result: Load) -> Table:
    """Return the table of the fastest strategy at each concurrency."""
    return Table(
        "Fastest by concurrency",
        ("concurrency", "fastest", "speedup", "may be as fast"),
        [_choice(each) for each in best(result.points)],
    )


def position_table(result: Load) -> Table:
    """Return the share of rounds that accepted at least 1, 2, … proposals, where the engine reports rounds."""
    seen = [point for point in result.points if point.method != PLAIN and point.per_position]
    most = {
        point.method: max(len(point.per_position), result.variants[point.method].strategy.fixed_lookahead or 0)
        for point in seen
    }
    positions = range(max(most.values(), default=0))
    rows = [
        (str(point.level), point.method, *_shares(point.per_position, most[point.method], len(positions)))
        for point in sorted(seen, key=lambda point: point.level)
    ]
    return Table("Acceptance by position", ("concurrency", "method", *(str(i + 1) for i in positions)), rows)


def notes(result: Load) -> Iterator[str]:
    """Yield crossovers, formulas and what the engine did not report."""
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
        yield "τ and α are missing where the engine does not report rounds."
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
    return f"{speedup.middle:.2f}×" + (f" ({speedup.low:.2f}–{speedup.high:.2f})" if speedup.has_interval else "")


def _shares(shares: Sequence[float], proposed: int, columns: int) -> list[str]:
    """Format shares by position: 0 where proposals were never accepted, empty where nothing was proposed."""
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
    """Return charts of throughput against latency, and of speedup by concurrency."""
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
    levels = list(dict.fromkeys(str(point.level) for point in found))  # as categories: numbers would crowd the first
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
    fit_axis(figure)
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
