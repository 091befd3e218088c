"""From rows to one report: figures of every variant, one conclusion, tables and charts, on the page and as files.

The files are JSON, Markdown, CSV and one small HTML file that opens offline, light or dark. Names of prompts, models
and files are foreign text, so each format escapes them in one function.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import plotly.graph_objects as go
from jinja2 import Environment as Jinja
from jinja2 import StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError

from specdemo import metrics
from specdemo.errors import FileError, UsageError, listed, quoted
from specdemo.estimate import FORMULA, Interval, Pooled, pool
from specdemo.experiments.plan import CONDITIONS
from specdemo.experiments.rows import Result, Row
from specdemo.exports.html import text_of
from specdemo.files import ASSETS, colours, json_value, read_bytes, write_json, write_text
from specdemo.presentation.charts import base_figure, colour, plain_line
from specdemo.records import Costs, Trial
from specdemo.strategies import effective
from specdemo.summary import milliseconds, number, percent, shared_words

ALL_TASKS = "all tasks"
_MOST_BYTES = 256 * 2**20  # of a report to compare with; 10,000 rows take about 100 MB
_NAMED = 4  # of the settings that may be as fast
_REACH = 2  # times the largest value: how far error bars may stretch an axis
_BESIDE = (".md", ".csv", ".html")
_LENGTHS = (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)  # prompts, in tokens: as SPEED-Bench's


# Figures.


class Point(Pooled):
    """Figures of one variant, over all its rows or some of them, such as a `part` named by a task.

    Tokens per second are those of the speculative runs and of their plain neighbours. `first` and `per_token` are
    plain and speculative TTFT and TPOT in seconds, means over the blocks of several requests at once. `predicted` is
    the speedup that step costs and acceptance predict, which is not a measurement.
    """

    variant: str
    values: dict[str, float | str]
    part: str = ALL_TASKS
    runs: int
    identical_runs: int
    tokens_per_second: float
    plain_tokens_per_second: float
    first: tuple[float, float] | None = None
    per_token: tuple[float, float] | None = None
    predicted: float | None = None


def points(result: Result, *, fresh: bool = False, part: Callable[[Row], str] = lambda row: ALL_TASKS) -> list[Point]:
    """Return the figures of every variant with a trial, in order, by part."""
    grouped: dict[tuple[str, str], list[tuple[Row, Trial]]] = {}
    for row in result.rows:
        if row.trial is not None and row.fresh == fresh:
            grouped.setdefault((part(row), row.variant), []).append((row, row.trial))
    parts = dict.fromkeys(each for each, _ in grouped)
    asked = [(each, name) for name in result.variants for each in parts]
    found = [_point(result, name, each, grouped[each, name]) for each, name in asked if (each, name) in grouped]
    return found if fresh else _with_predictions(result, found)


def _point(result: Result, name: str, part: str, done: Sequence[tuple[Row, Trial]]) -> Point:
    rows, trials = zip(*done, strict=True)
    prompts: list[Hashable] = [row.prompt for row in rows]
    latencies = [row.latency for row in rows if row.latency is not None]
    sides = [(each.plain, each.speculative) for each in latencies]
    per_token = [(plain.per_token, other.per_token) for plain, other in sides]
    return Point(
        **pool(trials, prompts).model_dump(),
        variant=name,
        values=result.variants[name].values,
        part=part,
        runs=len(trials),
        identical_runs=sum(trial.identical for trial in trials),
        tokens_per_second=sum(trial.tokens for trial in trials) / sum(trial.seconds for trial in trials),
        plain_tokens_per_second=sum(trial.tokens for trial in trials) / sum(trial.plain_seconds for trial in trials),
        first=_means([(plain.first, other.first) for plain, other in sides]),
        per_token=_means([(plain, other) for plain, other in per_token if plain is not None and other is not None]),
    )


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    return (fmean(plain for plain, _ in pairs), fmean(other for _, other in pairs)) if pairs else None


def _with_predictions(result: Result, found: list[Point]) -> list[Point]:
    """Add predictions for lookaheads of a draft model with a KV cache, where nothing else varies."""
    facts = next(iter(result.engines.values()), None)
    settings = result.header.settings
    if facts is None or facts.costs is None or settings.kv_cache != "on":
        return found
    if settings.strategy.drafter.sources != ("model",) or any(set(each.values) - _CHOSEN for each in found):
        return found
    mine = {each.variant for each in found if "lookahead" in each.values}
    trials = [row.trial for row in result.rows if row.variant in mine and row.trial is not None]
    acceptance = pool(trials).token_acceptance if trials else None
    prediction = None if acceptance is None else metrics.predict(facts.costs, acceptance)
    if prediction is None:
        return found
    by_lookahead = dict(enumerate(prediction, 1))
    return [
        each.model_copy(update={"predicted": by_lookahead.get(int(each.values["lookahead"]))})
        if each.variant in mine
        else each
        for each in found
    ]


_CHOSEN = {"lookahead", "threshold", "policy"}


# The conclusion.


class Conclusion(NamedTuple):
    """A sentence, and the variant to choose, if any clearly beats plain decoding."""

    best: str | None
    sentence: str


def fastest(result: Result) -> str | None:
    """Return the fastest variant so far, the first among equals; None if nothing was timed."""
    best = max(points(result), key=_rounded, default=None)
    return None if best is None else best.variant


def conclude(result: Result) -> Conclusion:
    """Conclude from the rows: the setting to choose or, under several conditions, where speculation pays."""
    found = points(result)
    if not found:
        return Conclusion(None, "Nothing has been measured yet.")
    places: dict[tuple[tuple[str, float | str], ...], list[Point]] = {}
    for point in found:
        place = tuple((axis, value) for axis, value in point.values.items() if axis in CONDITIONS)
        places.setdefault(place, []).append(point)
    if len(places) == 1:
        best = max(found, key=_rounded).variant
        return _choose(found, next((each for each in points(result, fresh=True) if each.variant == best), None))
    return Conclusion(None, _where([max(each, key=_rounded) for each in places.values()]))


def _choose(found: Sequence[Point], fresh: Point | None) -> Conclusion:
    """Recommend the fastest setting if it clearly beats plain decoding; others may be as good."""
    best = fresh or max(found, key=_rounded)
    name, speedup = best.variant, best.speedup
    evidence = f"{speedup} in {best.runs} {'fresh ' if fresh else ''}{'runs' if best.runs > 1 else 'run'}"
    outputs = "outputs identical" if best.identical else f"outputs identical in {best.identical_runs} of {best.runs}"
    if not speedup.has_interval:
        return Conclusion(None, f"Too few runs to be sure: the fastest so far is {name}, {evidence}, {outputs}.")
    if speedup.call == "too noisy to call":
        return Conclusion(
            None,
            f"Inconclusive: the runs of the fastest setting, {name}, differ too much ({speedup.ends} in {best.runs} "
            "runs). Measure longer, or close other programs.",
        )
    if speedup.call not in ("faster", "probably faster"):
        clearly = "clearly " if speedup.middle > 1 else ""
        return Conclusion(
            None, f"No setting {clearly}beats plain decoding here: the best, {name}, reached {evidence}, {outputs}."
        )
    low = speedup.low or 0.0
    equals = sorted(
        (each for each in found if each.variant != name and (each.speedup.high or max(each.speedups)) >= low),
        key=lambda each: -each.speedup.middle,
    )
    probably = "probably " if speedup.call != "faster" else ""
    if not equals:
        return Conclusion(name, f"Choose {name}, {probably}the fastest: {evidence}, {outputs}.")
    names = ", ".join(each.variant for each in equals[:_NAMED])
    more = f" and {len(equals) - _NAMED} more" if len(equals) > _NAMED else ""
    return Conclusion(name, f"{name} is {probably}faster: {evidence}, {outputs}. As fast, perhaps: {names}{more}.")


_CALLS = {
    "faster": "Speculation clearly pays:",
    "probably faster": "it probably pays:",
    "about even": "it makes little difference:",
    "probably slower": "it probably costs time:",
    "slower": "it costs time:",
    "too noisy to call": "it is too noisy to call:",
}


def _where(best: Sequence[Point]) -> str:
    """Say at which conditions the best setting of each gains, given these."""
    if not all(point.speedup.has_interval for point in best):
        first = max(best, key=_rounded)
        return f"Too few runs to be sure: speculation gains most at {first.variant} so far, {first.speedup}."
    parts = []
    for call, words in _CALLS.items():
        mine = [f"{point.variant} ({point.speedup.middle:.2f}×)" for point in best if point.speedup.call == call]
        if mine:
            parts.append(f"{words} {listed(mine)}")
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _rounded(point: Point) -> float:
    """Return the speedup to compare points by, so that the first of near-equal ones is the best."""
    return round(point.speedup.middle, 3)


# The report.


class Series(NamedTuple):
    """Points of a chart. Without `low` and `high`, nothing is drawn that would suggest there is no uncertainty."""

    name: str
    x: Sequence[Any]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    hover: Sequence[str] = ()
    dashed: bool = False


class Chart(NamedTuple):
    """Lines or bars, with a title and a sentence on how to read them; `plain`: a reference line at 1."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    remark: str = ""
    bars: bool = False
    plain: bool = True

    @property
    def figure(self) -> go.Figure:
        """The chart for Plotly."""
        figure = base_figure(hovermode="closest", barmode="group", showlegend=len(self.series) > 1)
        for index, series in enumerate(self.series):
            common = {
                "x": [escape(x, quote=False) if isinstance(x, str) else x for x in series.x],  # Plotly reads markup
                "y": list(series.y),
                "name": escape(series.name, quote=False),
                "text": [escape(text, quote=False) for text in series.hover or map(number, series.y)],
                "hovertemplate": "%{x}: %{text}",
                "error_y": _whiskers(series, colour(index)),
            }
            if self.bars:
                figure.add_bar(**common, marker_color=colour(index), textposition="none")
            else:
                line = {"color": colour(index), "dash": "dot" if series.dashed else "solid"}
                figure.add_scatter(**common, mode="lines" if series.dashed else "lines+markers", line=line)
        if self.plain:
            plain_line(figure)
        most = _REACH * max((value or 0 for series in self.series for value in series.y), default=0)
        if any((value or 0) > most for series in self.series for value in series.high):
            figure.update_yaxes(range=[0, most])  # so that values stay readable; hovering shows the whole interval
        figure.update_xaxes(title=self.x)
        figure.update_yaxes(title=self.y)
        return figure


def _whiskers(series: Series, hue: str) -> dict[str, Any] | None:
    if not series.high or None in (*series.low, *series.high):
        return None
    up = [(high or 0) - (y or 0) for y, high in zip(series.y, series.high, strict=True)]
    down = [(y or 0) - (low or 0) for y, low in zip(series.y, series.low, strict=True)]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.5, "color": hue}


class Table(NamedTuple):
    """A table of strings."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    remark: str = ""


@dataclass(frozen=True)
class Report:
    """A result for the page, the terminal and every file format.

    `opening` holds the sentences above the first table, the conclusion first; `notes` those below the last one.
    `data` returns everything measured and derived, JSON-serialisable; `headline` holds its main figures. `figures`
    are the first table's rows unrounded, all with the same keys.
    """

    title: str
    opening: Sequence[str]
    charts: Mapping[str, Chart]
    tables: Mapping[str, Table]
    notes: Sequence[str]
    data: Callable[[], Mapping[str, Any]]
    headline: Mapping[str, Any]
    figures: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


CHARTS = ("speedup", "others", "length", "passes")
TABLES = ("table", "tasks", "lengths")


def report(result: Result) -> Report:
    """Return the report of a result, finished or not."""
    found, conclusion = points(result), conclude(result)
    headline = {
        "pair": result.header.pair.name,
        "complete": result.complete,
        "conclusion": conclusion.sentence,
        "choose": conclusion.best,
        "speedups": {point.variant: round(point.speedup.middle, 3) for point in found},
    }
    return Report(
        title=f"Measurement of {result.header.pair.name}",
        opening=[conclusion.sentence, *_measured_on(result)],
        charts=_charts(result, found),
        tables=_tables(result, found),
        notes=[*_notes(result, found, conclusion.best)],
        data=lambda: {
            **result.model_dump(mode="json"),
            "points": [point.model_dump(mode="json") for point in found],
            "headline": headline,
        },
        headline=headline,
        figures=[_figures(point) for point in found],
    )


def _figures(point: Point) -> dict[str, Any]:
    speedup = point.speedup
    left = {"speedup", "speedups", "values", "part", "first", "per_token"}
    rest = point.model_dump(exclude=left)
    return {
        "variant": rest.pop("variant"),
        "speedup": speedup.middle,
        "low": speedup.low,
        "high": speedup.high,
        **rest,
        **_sides("ttft", point.first),
        **_sides("tpot", point.per_token),
    }


def _sides(name: str, seconds: tuple[float, float] | None) -> dict[str, float | None]:
    plain, speculative = seconds or (None, None)
    return {f"plain_{name}_seconds": plain, f"{name}_seconds": speculative}


def _measured_on(result: Result) -> Iterator[str]:
    """Yield the warning that the machine was busy, and on what and when this was measured."""
    loads = [
        row.trial.other_load for row in result.rows if row.trial is not None and row.trial.other_load is not None
    ]
    if loads and fmean(loads) > _BUSY:
        yield f"Other programs took {percent(fmean(loads))} of the processor, which widens the intervals."
    facts = next(iter(result.engines.values()), None)
    if facts is not None:
        environment = facts.environment
        threads = "" if environment.threads is None else f", {times(environment.threads, 'thread')}"
        yield f"Measured on {result.date} on {environment.device}{threads}."
    settings, prompts = result.header.settings, times(len(result.tasks), "prompt")
    yield f"Settings, where they do not vary: {shared_words(settings)}; {prompts}, {times(len(result.rows), 'run')}."


_BUSY = 0.2  # of the processor: below it, intervals hardly widen


def _tables(result: Result, found: Sequence[Point]) -> dict[str, Table]:
    tables = {"table": _table("Every variant", "variant", found)}
    single = [row for row in result.rows if row.latency is None]
    if len({row.task for row in single}) > 1:
        tables["tasks"] = _table("By task", "task", points(result, part=lambda row: row.task), parts=True)
    if len({_length(row) for row in single if row.prompt_tokens}) > 1:
        by_length = [point for point in points(result, part=_length) if point.part]
        tables["lengths"] = _table("By length of the prompt", "tokens of the prompt", by_length, parts=True)
    return tables


def _length(row: Row) -> str:
    """Return the nearest of the usual lengths; empty if unknown."""
    if not row.prompt_tokens:
        return ""
    nearest = min(_LENGTHS, key=lambda length: abs(log((row.prompt_tokens or 1) / length)))
    return f"about {nearest:,}" if nearest > _LENGTHS[0] else f"up to {_LENGTHS[0]}"


def _table(title: str, first: str, found: Sequence[Point], *, parts: bool = False) -> Table:
    columns = ["variant", *([first] if parts else []), *_COLUMNS]
    rows = [(point.variant, *([point.part] if parts else []), *_cells(point)) for point in found]
    shown = [index for index in range(len(columns)) if index == 0 or any(row[index] != "–" for row in rows)]
    return Table(title, [columns[index] for index in shown], [tuple(row[index] for index in shown) for row in rows])


_COLUMNS = (
    "speedup", "conclusion", "predicted", "τ", "α", "outputs", "tokens/s", "plain tokens/s", "TTFT", "plain TTFT",
    "TPOT", "plain TPOT", "draft", "verify", "other", "runs",
)  # fmt: skip


def _cells(point: Point) -> tuple[str, ...]:
    identical = "identical" if point.identical else f"{point.identical_runs} of {point.runs} identical"
    shares = (point.draft_share, point.verify_share, point.other_share)
    seconds = (pair[::-1] if pair is not None else (None, None) for pair in (point.first, point.per_token))
    return (
        str(point.speedup),
        point.speedup.call if point.speedup.has_interval else "too few runs",
        number(point.predicted, "×"),
        number(point.mean_accepted_length),
        number(point.acceptance_rate),
        identical,
        f"{point.tokens_per_second:.0f}",
        f"{point.plain_tokens_per_second:.0f}",
        *(milliseconds(each) for pair in seconds for each in pair),
        *("–" if share is None else percent(max(share, 0)) for share in shares),
        str(point.runs),
    )


def _notes(result: Result, found: Sequence[Point], best: str | None) -> Iterator[str]:
    if not result.complete:
        yield f"Unfinished: {len(result.rows)} of {times(result.total, 'run')}."
    if best is not None:
        yield f"To use {best}: {options_of(result, best)}"
    alone = any(row.latency is None for row in result.rows)
    if alone:
        yield f"Speedup: {FORMULA}."
    if len(result.rows) > sum(row.latency is None for row in result.rows):
        yield (
            "Several requests at once: the same requests, speculatively and plainly, with as many running all the "
            f"time. Speedup: {metrics.FORMULAS['load_speedup']}; {FORMULA}."
        )
    for name, text in (("α", "acceptance_rate"), ("τ", "mean_accepted_length")):
        yield f"{name}: {metrics.FORMULAS[text]}."
    problems: dict[str, list[str]] = {}
    for row in result.rows:
        if row.problem is not None:
            problems.setdefault(row.problem, []).append(row.variant)
    for problem, names in problems.items():
        yield f"Left out for {', '.join(dict.fromkeys(names))}: {problem}"
    for name, facts in result.engines.items():
        if facts.costs is not None:
            yield f"Step costs, {name}: {_costs(facts.costs)}."
        environment = facts.environment
        if len(result.engines) > 1:
            precision = f"{environment.inference_precision}, draft {environment.draft_inference_precision}"
            yield f"{name}: precision {precision}, KV cache {environment.kv_cache_precision}."
    if any(point.predicted is not None for point in found):
        yield (
            f"Predicted: {metrics.FORMULAS['predicted_speedup']} with these step costs and a = "
            f"{metrics.FORMULAS['token_acceptance']} of all runs."
        )
    if any(variant.settings.do_sample for variant in result.variants.values()):
        yield "Sampling: another seed in every repeat. GenAI's acceptance does not keep the target's distribution."


def _costs(costs: Costs) -> str:
    drafting = "" if costs.draft_step is None else f", c = {number(metrics.draft_cost(costs))}"
    passes = {n: metrics.verify_cost(costs, n) for n in (2, 5, 17)}  # at the shortest lookahead, 4, and the longest
    lengths = "".join(f", v({n}) = {cost:.2f}" for n, cost in passes.items() if cost is not None)
    return f"plain step {milliseconds(costs.plain_step)}{drafting}{lengths}"


def options_of(result: Result, name: str) -> str:
    """Return a variant's strategy as command-line options."""
    settings = result.variants[name].settings
    named = {"engine": settings.engine, "drafter": settings.drafter, "policy": settings.policy}
    named |= {each: getattr(settings, each) for each in sorted(effective(type(settings.strategy), settings.engine))}
    return " ".join(f"--{each.replace('_', '-')} {value}" for each, value in named.items() if value is not None)


def _charts(result: Result, found: Sequence[Point]) -> dict[str, Chart]:
    """Return speedups and τ along the longest axis of numbers, the other variants as bars, and v(n)."""
    places = {
        axis: {point.values[axis] for point in found if axis in point.values}
        for point in found
        for axis in point.values
    }
    axis = max(
        (each for each in places if all(not isinstance(value, str) for value in places[each])),
        key=lambda each: len(places[each]),
        default=None,
    )
    along = [] if axis is None or len(places[axis]) < 2 else [point for point in found if axis in point.values]
    others = [point for point in found if point not in along]
    charts: dict[str, Chart] = {}
    remark = f"{metrics.FORMULAS['speedup'].capitalize()}; error bars: 95 % intervals."
    if along and axis is not None:
        lines: dict[str, list[Point]] = {}
        for point in along:
            rest = ", ".join(f"{each} {value}" for each, value in point.values.items() if each != axis)
            lines.setdefault(rest, []).append(point)
        series = [_series(name or "measured", axis, mine) for name, mine in lines.items()]
        predicted = [point for point in along if point.predicted is not None]
        if predicted:
            x = [point.values[axis] for point in predicted]
            series.append(Series("predicted", x, [point.predicted for point in predicted], dashed=True))
        charts["speedup"] = Chart(f"Speedup by {axis}", axis, "speedup", series, remark)
        lengths = [
            Series(name or "τ", [p.values[axis] for p in mine], [p.mean_accepted_length for p in mine])
            for name, mine in lines.items()
        ]
        title = "Mean acceptance length τ"
        charts["length"] = Chart(
            title, axis, "τ", lengths, f"{metrics.FORMULAS['mean_accepted_length'].capitalize()}."
        )
    if others:
        by_task = points(result, part=lambda row: row.task)
        tasks = len({point.part for point in by_task}) > 1
        names = [point.variant for point in others]
        series = (
            [_series(name, None, [point for point in by_task if point.variant == name]) for name in names]
            if tasks
            else [_series("", None, others)]
        )
        charts["others"] = Chart("Speedup" + (" by task" if tasks else ""), "", "speedup", series, remark, bars=True)
    costs = {name: facts.costs for name, facts in result.engines.items() if facts.costs is not None}
    if costs:
        charts["passes"] = Chart(
            "Cost of a target pass over n tokens, v(n)",
            "tokens",
            "v(n)",
            [
                Series(name, lengths_, [metrics.verify_cost(each, n) for n in lengths_])
                for name, each in costs.items()
                if (lengths_ := range(1, len(each.verify) + 1))
            ],
            f"{metrics.FORMULAS['verify_cost'].capitalize()}.",
        )
    return charts


def _series(name: str, axis: str | None, mine: Sequence[Point]) -> Series:
    x = [point.values[axis] if axis is not None else point.part if name else point.variant for point in mine]
    speedups: list[Interval] = [point.speedup for point in mine]
    return Series(
        name,
        x,
        [each.middle for each in speedups],
        [each.low for each in speedups],
        [each.high for each in speedups],
        [f"{point.speedup}, outputs {'identical' if point.identical else 'differ'}" for point in mine],
    )


def times(number_: int, noun: str) -> str:
    """Return a count with its noun, such as "1 prompt" or "3 prompts"."""
    return f"{number_:,} {noun}{'s' * (number_ != 1)}"


# Comparing two reports.


def read_result(path: Path) -> Result:
    """Read the JSON of a report.

    Raises:
        FileError: the file is not a report, or cannot be read.
    """
    try:
        value: Any = json_value(read_bytes(path, _MOST_BYTES, "a measurement").decode())
        return Result.model_validate(value)
    except (ValueError, ValidationError) as error:
        advice = f"{quoted(path.name)} is not a measurement; choose a file that `specdemo measure --json` wrote."
        raise FileError(advice) from error


def joined(here: Result, there: Result, name: str) -> Result:
    """Return the rows of both results on the prompts in common; the other's variants are marked with its `name`.

    Raises:
        FileError: they have no prompt in common.
    """
    texts = [{task.name: (task.before, task.prompt) for task in each.tasks} for each in (here, there)]
    common = {task for task, text in texts[0].items() if texts[1].get(task) == text}
    if not common:
        raise FileError(f"{quoted(name)} has no prompt in common with this measurement; measure the same prompts.")
    whole = len(common) == len(texts[0]) == len(texts[1])
    kept = [
        [row for row in each.rows if (whole if row.latency is not None else row.prompt in common)]
        for each in (here, there)
    ]
    marked = {f"{key}, {name}": value for key, value in there.variants.items()}
    return here.model_copy(
        update={
            "variants": {
                **{
                    key: value.model_copy(update={"values": {**value.values, "file": "this"}})
                    for key, value in here.variants.items()
                },
                **{
                    key: value.model_copy(update={"name": key, "values": {**value.values, "file": name}})
                    for key, value in marked.items()
                },
            },
            "rows": (*kept[0], *(row.model_copy(update={"variant": f"{row.variant}, {name}"}) for row in kept[1])),
            "engines": {**here.engines, **{f"{key}, {name}": facts for key, facts in there.engines.items()}},
            "total": here.total - len(here.rows) + len(kept[0]) + len(kept[1]),
        }
    )


# Files.


def to_markdown(report: Report) -> str:
    """Return the report as Markdown, without charts."""
    lines = [f"# {_markdown(report.title)}", "", *(f"{_markdown(text)}\n" for text in report.opening)]
    for index, table in enumerate(report.tables.values()):
        lines += [f"## {_markdown(table.title)}", ""] if index else []
        lines += [
            _markdown_row(table.columns),
            "|---" * len(table.columns) + "|",
            *map(_markdown_row, table.rows),
            "",
        ]
    return "\n".join([*lines, *(f"{_markdown(text)}\n" for text in report.notes)])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


def _markdown(text: str) -> str:
    """Escape foreign text: no line breaks, columns, HTML, links or images."""
    return re.sub(r"([\\|\[\]`])", r"\\\1", escape(" ".join(text.split()), quote=False))


def to_csv(report: Report) -> str:
    """Return the first table's unrounded figures as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(report.figures[0]) if report.figures else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in report.figures)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """Keep a spreadsheet from taking foreign text for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else value


def to_html(report: Report) -> str:
    """Return a self-contained HTML file with plots, tables and notes."""
    template = (ASSETS / "report.html").read_text(encoding="utf-8")
    return (
        Jinja(autoescape=True, undefined=StrictUndefined)
        .from_string(template)
        .render(
            title=report.title,
            light=colours(),
            dark=colours(dark=True),
            script=Markup(text_of("chart.js")),
            opening=report.opening,
            plots=[(chart.title, name, _plot(chart.figure), chart.remark) for name, chart in report.charts.items()],
            tables=report.tables.values(),
            notes=report.notes,
        )
    )


def _plot(figure: go.Figure) -> Markup:
    """Return a figure as JSON that is safe inside a script."""
    return Markup(json.dumps(figure.to_plotly_json()).replace("<", "\\u003c"))


def write(report: Report, path: Path) -> list[Path]:
    """Write the JSON to this path and the other three files `beside` it; return all paths.

    Raises:
        SpecdemoError: a file cannot be written.
    """
    write_json(report.data(), path, indent=1)
    texts = {".md": to_markdown(report), ".csv": to_csv(report), ".html": to_html(report)}
    for ending, text in texts.items():
        write_text(text, beside(path, ending))
    return [path, *(beside(path, ending) for ending in texts)]


def beside(path: Path, ending: str) -> Path:
    """Return the path of a file next to the JSON at `path`, with `.json` replaced or the ending appended.

    Only `.json` is replaced, so that `run.v1` and `run.v2` do not share a file.

    Raises:
        UsageError: the JSON has the file extension of another report format.
    """
    if path.suffix.lower() in _BESIDE:
        raise UsageError(
            f"A file like {quoted(path.name)} is written beside the JSON; choose a path that ends in .json."
        )
    return path.with_name(path.name.removesuffix(".json") + ending)
