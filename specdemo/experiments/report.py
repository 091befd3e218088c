"""From rows to one report: figures of every variant, one conclusion, tables and charts, on the page and as files.

The files are JSON, Markdown, CSV and one small HTML file that opens offline, light or dark. Names of prompts, models
and files are foreign text, so each format escapes every cell.
"""

import csv
import io
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jinja2 import Environment as Jinja
from jinja2 import StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError

from specdemo import metrics
from specdemo.errors import FileError, UsageError, capitalised, listed, quoted
from specdemo.estimate import FORMULA, Pooled, pool
from specdemo.experiments.plan import CONDITIONS, Variant
from specdemo.experiments.rows import Result, Row
from specdemo.exports.charts import AT_ONE, Figure, bars, colour, figure, line, whiskers
from specdemo.exports.html import text_of
from specdemo.files import ASSETS, colours, json_file, json_value, read_bytes, write_each
from specdemo.records import SIDES, Trial
from specdemo.strategies import effective
from specdemo.summary import milliseconds, number, percent, shared_words
from specdemo.text import cell_csv, cell_markdown

_MOST_BYTES = 256 * 2**20  # of a report to compare with; 10,000 rows take about 100 MB
_NAMED = 4  # of the settings that may be as fast
_BUSY = 0.2  # of the processor: below it, intervals hardly widen
_REACH = 2  # times the largest value: how far error bars may stretch an axis
_BESIDE = (".md", ".csv", ".html")


# Figures.


class Point(Pooled):
    """Figures of one variant, over all its rows or a `part` of them, such as a task.

    Tokens per second are those of the speculative runs and of their plain neighbours. `ttft` and `tpot` are plain and
    speculative seconds, means over blocks of several requests at once. `predicted` is the speedup that step costs and
    acceptance predict, which is not a measurement.
    """

    variant: str
    part: str = ""
    runs: int
    identical_runs: int
    tokens_per_second: float
    plain_tokens_per_second: float
    ttft: tuple[float, float] | None = None
    tpot: tuple[float, float] | None = None
    predicted: float | None = None


def points(result: Result, *, fresh: bool = False, part: Callable[[Row], str] = lambda row: "") -> list[Point]:
    """Return the figures of every variant with a trial, in order, by part."""
    grouped: dict[tuple[str, str], list[tuple[Row, Trial]]] = {}
    for row in result.rows:
        if row.trial is not None and row.fresh == fresh:
            grouped.setdefault((row.variant, part(row)), []).append((row, row.trial))
    parts, predicted = dict.fromkeys(each for _, each in grouped), _predictions(result)
    asked = [(name, each) for name in result.variants for each in parts if (name, each) in grouped]
    return [_point(name, each, grouped[name, each], predicted.get(name)) for name, each in asked]


def _point(name: str, part: str, done: Sequence[tuple[Row, Trial]], predicted: float | None) -> Point:
    rows, trials = zip(*done, strict=True)
    prompts: list[Hashable] = [row.prompt for row in rows]
    tokens = sum(trial.tokens for trial in trials)
    return Point(
        **pool(trials, prompts).model_dump(),
        variant=name,
        part=part,
        runs=len(trials),
        identical_runs=sum(trial.identical for trial in trials),
        tokens_per_second=tokens / sum(trial.seconds for trial in trials),
        plain_tokens_per_second=tokens / sum(trial.plain_seconds for trial in trials),
        ttft=_means([row.ttft for row in rows]),
        tpot=_means([row.tpot for row in rows]),
        predicted=predicted,
    )


def _means(pairs: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [pair for pair in pairs if pair is not None]
    return (fmean(plain for plain, _ in known), fmean(other for _, other in known)) if known else None


def _predictions(result: Result) -> dict[str, float]:
    """Predict lookaheads of a draft model with a KV cache, where nothing else varies."""
    facts, settings = next(iter(result.engines.values()), None), result.header.settings
    lookaheads = {name: each.values for name, each in result.variants.items() if {*each.values} == {"lookahead"}}
    mine = {name: int(values["lookahead"]) for name, values in lookaheads.items()}
    trials = [row.trial for row in result.rows if row.variant in mine and row.trial is not None]
    model = settings.strategy.drafter.model and settings.kv_cache == "on"
    acceptance = pool(trials).token_acceptance if trials and model else None
    if facts is None or facts.costs is None or acceptance is None:
        return {}
    prediction = metrics.predict(facts.costs, acceptance)
    by_lookahead = dict(enumerate(prediction or (), 1))
    return {name: by_lookahead[n] for name, n in mine.items() if n in by_lookahead}


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
    places: dict[tuple[Any, ...], list[Point]] = {}
    for point in found:
        values = result.variants[point.variant].values
        places.setdefault(tuple(values.get(axis) for axis in CONDITIONS), []).append(point)
    if len(places) > 1:
        return Conclusion(None, _where([max(each, key=_rounded) for each in places.values()]))
    best = max(found, key=_rounded).variant
    return _choose(found, next((each for each in points(result, fresh=True) if each.variant == best), None))


def _choose(found: Sequence[Point], fresh: Point | None) -> Conclusion:
    """Recommend the fastest setting if it beats plain decoding; others may be as good."""
    best = fresh or max(found, key=_rounded)
    name, speedup = best.variant, best.speedup
    evidence = f"{speedup} in {times(best.runs, 'fresh run' if fresh else 'run')}"
    outputs = "outputs identical" if best.identical else f"outputs identical in {best.identical_runs} of {best.runs}"
    if speedup.strength == "noisy":
        sentence = f"Inconclusive: the fastest setting, {name}, reached {evidence}."
        return Conclusion(None, f"{sentence} Measure longer, or close other programs.")
    if speedup.direction != "faster":
        clearly = "clearly " if speedup.middle > 1 else ""
        sentence = f"No setting {clearly}beats plain decoding here: the best, {name}, reached {evidence}, {outputs}."
        return Conclusion(None, sentence)
    probably = "probably " if speedup.strength == "probable" else ""
    others = [each for each in found if each.variant != name and each.speedup.high >= speedup.low]
    equals = [each.variant for each in sorted(others, key=lambda each: -each.speedup.middle)]
    more = [f"{len(equals) - _NAMED} more"] if len(equals) > _NAMED else []
    as_fast = f" As fast, perhaps: {listed([*equals[:_NAMED], *more])}." if equals else ""
    verb = f"{name} is {probably}faster" if probably or equals else f"choose {name}"
    return Conclusion(name, capitalised(f"{verb}: {evidence}, {outputs}.{as_fast}"))


_CALLS = {
    "faster": "speculation clearly pays:",
    "probably faster": "it probably pays:",
    "about even": "it makes little difference:",
    "probably slower": "it probably costs time:",
    "slower": "it costs time:",
    "too noisy to call": "it is too noisy to call:",
}


def _where(best: Sequence[Point]) -> str:
    """Say where speculation pays, given the best setting of each condition."""
    parts = []
    for call, words in _CALLS.items():
        mine = [f"{point.variant} ({point.speedup.middle:.2f}×)" for point in best if point.speedup.call == call]
        parts += [f"{words} {listed(mine)}"] if mine else []
    return f"{capitalised('; '.join(parts))}."


def _rounded(point: Point) -> float:
    """Return the speedup to compare points by, so that the first of near-equal ones is the best."""
    return round(point.speedup.middle, 3)


# The report.


class Chart(NamedTuple):
    """A figure for `chart.js`, with a title and a sentence on how to read it."""

    title: str
    figure: Figure
    remark: str


class Table(NamedTuple):
    """A table of strings."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, ...]]


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
    figures = {"variant": point.variant, "speedup": speedup.middle, "low": speedup.low, "high": speedup.high}
    figures |= point.model_dump(exclude={*figures, "part", "ttft", "tpot"})
    for name, pair in (("ttft", point.ttft), ("tpot", point.tpot)):
        figures |= {f"{side}_{name}_seconds": pair and pair[index] for index, side in enumerate(SIDES)}
    return figures


def _measured_on(result: Result) -> Iterator[str]:
    """Yield the warning that the machine was busy, and on what and when this was measured."""
    trials = [row.trial for row in result.rows if row.trial is not None]
    loads = [trial.other_load for trial in trials if trial.other_load is not None]
    if loads and fmean(loads) > _BUSY:
        yield f"Other programs took {percent(fmean(loads))} of the processor, which widens the intervals."
    facts = next(iter(result.engines.values()), None)
    if facts is not None:
        threads = facts.environment.threads
        cores = "" if threads is None else f", {times(threads, 'thread')}"
        yield f"Measured on {result.date} on {facts.environment.device}{cores}."
    prompts, runs = times(len(result.tasks), "prompt"), times(len(result.rows), "run")
    yield f"Settings, where they do not vary: {shared_words(result.header.settings)}; {prompts}, {runs}."


_COLUMNS = (
    "speedup", "predicted", "τ", "α", "outputs", "tokens/s", "plain tokens/s", "TTFT", "plain TTFT", "TPOT",
    "plain TPOT", "runs",
)  # fmt: skip


def _tables(result: Result, found: Sequence[Point]) -> dict[str, Table]:
    tables = {"table": _table("Every variant", ("variant",), [(point.variant, *_cells(point)) for point in found])}
    split = points(result, part=lambda row: row.task)
    if len({point.part for point in split}) > 1:
        rows = [(point.variant, point.part, point.speedup.call, *_cells(point)) for point in split]
        tables["tasks"] = _table("By task", ("variant", "task", "speculation"), rows)
    return tables


def _table(title: str, first: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    """Return a table without the columns in which there is nothing to show."""
    columns = (*first, *_COLUMNS)
    shown = [index for index in range(len(columns)) if index == 0 or any(row[index] != "–" for row in rows)]
    return Table(title, [columns[index] for index in shown], [tuple(row[index] for index in shown) for row in rows])


def _cells(point: Point) -> tuple[str, ...]:
    (plain_first, first), (plain_each, each) = point.ttft or (None, None), point.tpot or (None, None)
    return (
        str(point.speedup),
        number(point.predicted, "×"),
        number(point.mean_acceptance_length),
        number(point.acceptance_rate),
        "identical" if point.identical else f"{point.identical_runs} of {point.runs} identical",
        f"{point.tokens_per_second:.0f}",
        f"{point.plain_tokens_per_second:.0f}",
        *map(milliseconds, (first, plain_first, each, plain_each)),
        str(point.runs),
    )


def _notes(result: Result, found: Sequence[Point], best: str | None) -> Iterator[str]:
    formulas = metrics.FORMULAS
    if not result.complete:
        yield f"Unfinished: {len(result.rows)} of {times(result.total, 'run')}."
    if best is not None:
        yield f"To use {best}: {options_of(result, best)}"
    together = {row.ttft is not None for row in result.rows}
    if False in together:
        yield f"Speedup: {FORMULA}."
    if True in together:
        yield f"Speedup of several requests at once: {formulas['load_speedup']}; {FORMULA}."
    yield f"α: {formulas['acceptance_rate']}. τ: {formulas['mean_acceptance_length']}."
    problems: dict[str, dict[str, None]] = {}
    for row in result.rows:
        if row.problem is not None:
            problems.setdefault(row.problem, {})[row.variant] = None
    for problem, names in problems.items():
        yield f"Left out for {', '.join(names)}: {problem}"
    for name, facts in result.engines.items():
        if (costs := facts.costs) is not None:
            passes = {n: metrics.verify_cost(costs, n) for n in (2, 5, 17)}  # of lookahead 1, 4 and 16
            lengths = "".join(f", v({n}) = {cost:.2f}" for n, cost in passes.items() if cost is not None)
            drafting = f", c = {number(metrics.draft_cost(costs))}"
            yield f"Step costs, {name}: plain step {milliseconds(costs.plain_step)}{drafting}{lengths}."
    if any(point.predicted is not None for point in found):
        yield f"Predicted: {formulas['predicted_speedup']} with these costs and a = {formulas['token_acceptance']}."


def options_of(result: Result, name: str) -> str:
    """Return a variant's strategy as command-line options."""
    settings = result.variants[name].settings
    names = ("engine", "drafter", "policy", *sorted(effective(type(settings.strategy), settings.engine)))
    given = ((each, getattr(settings, each)) for each in names)
    return " ".join(f"--{each.replace('_', '-')} {value}" for each, value in given if value is not None)


def _charts(result: Result, found: Sequence[Point]) -> dict[str, Chart]:
    """Return speedups and τ along the longest axis of numbers, and the other variants as bars."""
    values = {point.variant: result.variants[point.variant].values for point in found}
    axes: dict[str, set[float]] = {}
    for each in values.values():
        for name, value in each.items():
            axes.setdefault(name, set()).update([] if isinstance(value, str) else [value])
    axis = max(axes, key=lambda name: len(axes[name]), default="")
    lines: dict[str, list[Point]] = {}
    for point in found if len(axes.get(axis, ())) > 1 else ():
        if axis in values[point.variant]:
            rest = ", ".join(f"{name} {value}" for name, value in values[point.variant].items() if name != axis)
            lines.setdefault(rest, []).append(point)
    charts: dict[str, Chart] = {}
    remark = f"{capitalised(metrics.FORMULAS['speedup'])}; error bars: 95 % intervals."
    if lines:
        places = {name: [values[point.variant][axis] for point in mine] for name, mine in lines.items()}
        speedups = [
            _trace(line, name or "measured", places[name], mine, at) for at, (name, mine) in enumerate(lines.items())
        ]
        predicted = [point.predicted for point in lines.get("", ())]
        if any(predicted):
            speedups.append(line("predicted", places[""], predicted, colour(len(lines))))
        lengths = [
            line(name or "τ", places[name], [point.mean_acceptance_length for point in mine], colour(at))
            for at, (name, mine) in enumerate(lines.items())
        ]
        formula = f"{capitalised(metrics.FORMULAS['mean_acceptance_length'])}."
        charts["speedup"] = Chart(f"Speedup by {axis}", _speedups(axis, speedups), remark)
        charts["length"] = Chart("Mean acceptance length τ", figure(axis, "τ", *lengths, shapes=[AT_ONE]), formula)
    along = {point.variant for mine in lines.values() for point in mine}
    others = [point for point in points(result, part=lambda row: row.task) if point.variant not in along]
    if others:
        names = list(dict.fromkeys(point.variant for point in others))
        apart = [[point for point in others if point.variant == name] for name in names]
        if len({point.part for point in others}) > 1:
            traces = [
                _trace(bars, name, [point.part for point in mine], mine, at)
                for at, (name, mine) in enumerate(zip(names, apart, strict=True))
            ]
            charts["others"] = Chart("Speedup by task", _speedups("", traces), remark)
        else:
            charts["others"] = Chart("Speedup", _speedups("", [_trace(bars, "", names, others, 0)]), remark)
    return charts


def _trace(draw: Callable[..., Figure], name: str, x: Sequence[Any], mine: Sequence[Point], at: int) -> Figure:
    """Return speedups as a line or bars, with error bars."""
    speedups = [point.speedup for point in mine]
    middles, lows, highs = zip(*((each.middle, each.low, each.high) for each in speedups), strict=True)
    bounds = whiskers(middles, lows, highs, colour(at))
    hover = [f"{point.speedup}, outputs {'identical' if point.identical else 'differ'}" for point in mine]
    return draw(name, list(x), list(middles), colour(at), text=hover, error_y=bounds)


def _speedups(axis: str, traces: Sequence[Figure]) -> Figure:
    """Return a chart of speedups with a line at 1; error bars stretch it only as far as values stay readable."""
    most = _REACH * max(value for trace in traces for value in trace["y"] if value is not None)
    reached = max(
        (
            y + up
            for trace in traces
            if "error_y" in trace
            for y, up in zip(trace["y"], trace["error_y"]["array"], strict=True)
        ),
        default=0,
    )
    yaxis = {"title": "speedup"} | ({"range": [0, most]} if reached > most else {})
    return figure(axis, "", *traces, shapes=[AT_ONE], yaxis=yaxis)


def times(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 prompt" or "3 prompts"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


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
    mine, other = ({task.name: (task.before, task.prompt) for task in each.tasks} for each in (here, there))
    common = {task for task in mine if other.get(task) == mine[task]}
    if not common:
        raise FileError(f"{quoted(name)} has no prompt in common with this measurement; measure the same prompts.")
    common |= {""} if mine == other else set()  # several requests at once hold all prompts
    rows: list[Row] = []
    variants: dict[str, Variant] = {}
    for each, place, mark in ((here, "this", ""), (there, name, f", {name}")):
        rows += [row.model_copy(update={"variant": row.variant + mark}) for row in each.rows if row.prompt in common]
        for key, variant in each.variants.items():
            variants[key + mark] = variant.model_copy(update={"values": variant.values | {"file": place}})
    total = here.total - len(here.rows) + len(rows)
    return here.model_copy(update={"rows": tuple(rows), "variants": variants, "total": total})


# Files.


def to_markdown(report: Report) -> str:
    """Return the report as Markdown, without charts."""
    lines = [f"# {cell_markdown(report.title)}", "", *(f"{cell_markdown(text)}\n" for text in report.opening)]
    for index, table in enumerate(report.tables.values()):
        head = ["| " + " | ".join(map(cell_markdown, row)) + " |" for row in (table.columns, *table.rows)]
        lines += [f"## {cell_markdown(table.title)}", ""] if index else []
        lines += [head[0], "|---" * len(table.columns) + "|", *head[1:], ""]
    return "\n".join([*lines, *(f"{cell_markdown(text)}\n" for text in report.notes)])


def to_csv(report: Report) -> str:
    """Return the first table's unrounded figures as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(report.figures[0]) if report.figures else [], lineterminator="\n")
    writer.writeheader()
    for row in report.figures:
        writer.writerow({key: cell_csv(value) if isinstance(value, str) else value for key, value in row.items()})
    return out.getvalue()


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
            # safe inside a script
            plots=[
                (chart.title, name, Markup(json.dumps(chart.figure).replace("<", "\\u003c")), chart.remark)
                for name, chart in report.charts.items()
            ],
            tables=report.tables.values(),
            notes=report.notes,
        )
    )


def write(report: Report, path: Path) -> list[Path]:
    """Write the JSON to this path and the other three files `beside` it, also after one failed; return all paths.

    Raises:
        SpecdemoError: a file cannot be written.
    """
    texts = {".md": to_markdown, ".csv": to_csv, ".html": to_html}
    files: dict[str | Path, Callable[[], bytes]] = {path: lambda: json_file(report.data(), indent=1)}
    files |= {beside(path, ending): partial(_encoded, make, report) for ending, make in texts.items()}
    write_each(files)
    return [path, *(beside(path, ending) for ending in texts)]


def _encoded(make: Callable[[Report], str], report: Report) -> bytes:
    return make(report).encode()


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
