"""From rows to one report: a conclusion, tables and charts, for page and terminal, as JSON, and as an HTML file that
opens offline and shows what the page shows. Names of prompts, models and files are foreign text: whatever shows them
escapes them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from specdemo.capabilities import used_parameters
from specdemo.errors import capitalised, listed
from specdemo.experiments.plan import CONDITIONS
from specdemo.experiments.rows import Point, Result, fastest, points
from specdemo.exports.html import STYLES, page_file, render, script_json, scripts
from specdemo.files import ASSETS, glossary, json_file, write_files
from specdemo.records import SIDES
from specdemo.results.estimate import BUSY_SHARE, INTERVAL, mean_load
from specdemo.results.figures import ChartPoint, Figure, as_data, xy_chart
from specdemo.results.words import shared_words
from specdemo.settings import option
from specdemo.text import counted, duration, number, percent

_MAX_NAMED = 4  # of the settings that may be as fast
_MODULES = ("files.js", "glossary.js", "plot.js", "rounds.js", "board.js")  # and those that they import
SCHEMA = 3  # of measurements; 2 also had means of latencies in rows, and named those of requests `ttfts` and `tpots`


class Conclusion(NamedTuple):
    """A sentence, and the variant to choose, if any clearly beats plain decoding."""

    best: str | None
    sentence: str


def conclude(result: Result, measured: Sequence[Point]) -> Conclusion:
    """The setting to choose of those measured or, under several conditions, where speculation pays."""
    if not measured:
        return Conclusion(None, "Nothing has been measured yet.")
    places: dict[tuple[Any, ...], list[Point]] = {}
    for point in measured:
        values = result.variants[point.variant].values
        places.setdefault(tuple(values.get(axis) for axis in CONDITIONS), []).append(point)
    if len(places) > 1:
        return Conclusion(None, _where([*filter(None, map(fastest, places.values()))]))
    untried = [name for name in result.variants if all(row.variant != name for row in result.rows)]
    reason = "Not enough time" if result.complete else "Unfinished"
    tried = f"{reason}: {len(measured)} of {len(measured) + len(untried)} settings tried. " if untried else ""
    return _choose(measured, tried)


def _choose(measured: Sequence[Point], tried: str = "") -> Conclusion:
    """Recommend the fastest of those that beat plain decoding; others may be as fast. `tried`: if not all were."""
    faster = [point for point in measured if point.speedup.direction == "faster"]
    best = fastest(faster or measured)
    assert best is not None, "something was measured"
    name, speedup = best.variant, best.speedup
    evidence = f"{speedup} in {counted(best.runs, 'run')}"
    if faster:
        others = [point for point in measured if point.variant != name and point.speedup.high >= speedup.low]
        equals = [point.variant for point in sorted(others, key=lambda point: -point.speedup.ratio)]
        more = [f"{len(equals) - _MAX_NAMED} more"] if len(equals) > _MAX_NAMED else []
        equal = f" Not clearly slower: {listed([*equals[:_MAX_NAMED], *more])}." if equals else ""
        verb = f"{name} is faster" if equals else f"choose {name}"
        return Conclusion(name, f"{tried}{capitalised(verb)}: {evidence}, {best.outputs}.{equal}")
    if all(point.speedup.direction == "slower" for point in measured):
        none = "Of these none" if tried else "No setting"
        return Conclusion(None, f"{tried}{none} beats plain decoding here: the best, {name}, reached {evidence}.")
    advice = " Measure longer" if speedup.width_from == "runs" else ""
    advice += ", or close other programs." if advice and speedup.busy else "." if advice else ""
    return Conclusion(None, f"{tried}No clear winner: the fastest, {name}, reached {evidence}.{advice}")


def _where(best: Sequence[Point]) -> str:
    """Say where speculation pays, given the best setting of each condition."""
    by_call: dict[str, list[str]] = {}
    for point in sorted(best, key=lambda point: -point.speedup.ratio):
        direction = point.speedup.direction
        call = "neither clearly faster nor slower" if direction == "same" else direction
        by_call.setdefault(call, []).append(f"{point.variant} ({point.speedup.ratio:.2f}×)")
    return f"Speculation is {'; '.join(f'{call} at {listed(names)}' for call, names in by_call.items())}."


class Part(NamedTuple):
    """Paragraphs, a table or a chart, with a title above and a remark on how to read it below."""

    title: str
    paragraphs: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: Figure | None = None
    remark: str = ""

    def data(self) -> dict[str, Any]:
        """Return what is not empty, as `assets/page/board.js` shows it."""
        shown = {name: value for name, value in self._asdict().items() if name != "figure" and value}
        return shown if self.figure is None else shown | {"figure": as_data(self.figure)}


@dataclass(frozen=True)
class Report:
    """`opening` holds the sentences above the first table, the conclusion first; `notes` those below the last one."""

    result: Result
    points: Sequence[Point]
    conclusion: Conclusion
    opening: Sequence[str]
    charts: Mapping[str, Part]
    tables: Sequence[Part]
    notes: Sequence[str]

    @property
    def title(self) -> str:
        return f"Measurement of {self.result.pair.name}"

    @property
    def figures(self) -> dict[str, Figure]:
        """The charts by name, to restyle, show or save."""
        return {name: chart.figure for name, chart in self.charts.items()}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Unrounded, of every variant, as rows of a data frame."""
        rows = [(point.model_dump(exclude={"part"}), point.speedup) for point in self.points]
        return [row | {"speedup": speedup.ratio, "low": speedup.low, "high": speedup.high} for row, speedup in rows]

    def data(self) -> dict[str, Any]:
        """Everything measured and derived, JSON-serialisable."""
        return {
            "schema": SCHEMA,
            **self.result.model_dump(mode="json"),
            "points": [point.model_dump(mode="json") for point in self.points],
            "conclusion": self.conclusion.sentence,
            "choose": self.conclusion.best,
        }

    def board(self) -> list[dict[str, Any]]:
        opening, notes = Part("Conclusion", self.opening), Part("About these figures", self.notes)
        return [part.data() for part in (opening, *self.charts.values(), *self.tables, notes)]


def build_report(result: Result) -> Report:
    measured, by_task = points(result), points(result, part=lambda row: row.task)
    conclusion = conclude(result, measured)
    return Report(
        result,
        measured,
        conclusion,
        opening=[conclusion.sentence, *_measured_on(result)],
        charts=_charts(result, measured, by_task),
        tables=[*_tables(measured, by_task)],
        notes=[*_notes(result, measured, conclusion.best)],
    )


def _measured_on(result: Result) -> Iterator[str]:
    """Whether the machine was busy, and on what and when this was measured."""
    load = mean_load(row.trial for row in result.rows if row.trial is not None)
    if load is not None and load > BUSY_SHARE:
        yield f"Other programs took {percent(load)} of the processor, which widens the intervals."
    facts = next(iter(result.engines.values()), None)
    if facts is not None:
        threads = facts.environment.threads
        cores = "" if threads is None else f", {counted(threads, 'thread')}"
        yield f"Measured on {result.date} on {facts.environment.device}{cores}."
    prompts, runs = counted(len(result.tasks), "prompt"), counted(len(result.rows), "run")
    yield f"Settings, where they do not vary: {shared_words(result.settings)}; {prompts}, {runs}."


def _tables(measured: Sequence[Point], by_task: Sequence[Point]) -> Iterator[Part]:
    yield _table("Every variant", [{"variant": point.variant, **_cells(point)} for point in measured])
    if len({point.part for point in by_task}) > 1:
        yield _table(
            "By task",
            [{"variant": point.variant, "task": point.part, **_cells(point)} for point in by_task],
        )
    if latencies := [row for point in measured for row in _latencies(point)]:
        yield _table("Latencies of requests", latencies)


def _table(title: str, rows: Sequence[Mapping[str, str]]) -> Part:
    columns = [*rows[0]] if rows else []
    return Part(title, columns=columns, rows=[[*row.values()] for row in rows])


def _cells(point: Point) -> dict[str, str]:
    return {
        "speedup": str(point.speedup),
        "τ": number(point.mean_acceptance_length),
        "α": number(point.acceptance_rate),
        "outputs": point.outputs.removeprefix("outputs "),
        "tokens/s": f"{point.tokens_per_second:.0f}",
        "plain tokens/s": f"{point.plain_tokens_per_second:.0f}",
        "runs": str(point.runs),
    }


def _latencies(point: Point) -> Iterator[dict[str, str]]:
    if point.ttft is None or point.tpot is None:
        return
    for side, ttft, tpot in zip(SIDES, point.ttft, point.tpot, strict=True):
        seconds = {
            f"{name} {statistic}": duration(value)
            for name, latency in (("TTFT", ttft), ("TPOT", tpot))
            for statistic, value in zip(("mean", "P50", "P95", "P99"), latency.model_dump().values(), strict=True)
        }
        yield {"variant": point.variant, "decoding": side, **seconds}


def _notes(result: Result, measured: Sequence[Point], best: str | None) -> Iterator[str]:
    terms = glossary()
    if not result.complete:
        yield f"Unfinished: {len(result.rows)} of {counted(result.total, 'run')}."
    if missing := [name for name in result.variants if all(row.variant != name for row in result.rows)]:
        yield f"Not tried for lack of time: {listed(missing)}."
    if best is not None:
        yield f"To use {best}: {options_of(result, best)}"
    concurrent = {point.ttft is not None for point in measured}
    if False in concurrent:
        yield f"Speedup: {terms['speedup']['formula']}."
    if True in concurrent:
        yield f"Speedup of several requests at once: {terms['speedup of several requests at once']['formula']}."
    together = "; those of a table hold jointly" if len(measured) > 1 else ""
    yield f"In brackets: {INTERVAL}s for a quiet run of this machine{together}."
    yield f"α: {terms['acceptance rate α']['formula']}. τ: {terms['mean acceptance length τ']['formula']}."
    for problem in dict.fromkeys(row.problem for row in result.rows if row.problem is not None):
        names = dict.fromkeys(row.variant for row in result.rows if row.problem == problem)
        yield f"Left out for {', '.join(names)}: {problem}"


def options_of(result: Result, name: str) -> str:
    settings = result.variants[name].settings
    names = ("engine", "drafter", "policy", *sorted(used_parameters(type(settings.strategy), settings.engine)))
    return " ".join(option(name, value) for name in names if (value := getattr(settings, name)) is not None)


def _charts(result: Result, measured: Sequence[Point], by_task: Sequence[Point]) -> dict[str, Part]:
    """Speedups and τ along the axis with the most numbers; the other variants as bars."""
    values = {point.variant: result.variants[point.variant].values for point in measured}
    numbers = defaultdict[str, set[float]](set)
    for places in values.values():
        for name, value in places.items():
            if not isinstance(value, str):
                numbers[name].add(value)
    axis = max(numbers, key=lambda name: len(numbers[name]), default="")
    speedups, lengths, bars = (defaultdict[str, list[ChartPoint]](list) for _ in range(3))
    drawn = set[str]()
    for point in measured if len(numbers[axis]) > 1 else ():
        places = values[point.variant]
        if axis in places:  # a line for each combination of the other axes
            line = ", ".join(f"{name} {value}" for name, value in places.items() if name != axis) or "speedup"
            length = point.mean_acceptance_length
            speedups[line].append(_speedup_at(places[axis], point))
            lengths[line].append((places[axis], length, None, None, number(length)))
            drawn.add(point.variant)
    charts: dict[str, Part] = {}
    remark, formula = f"Error bars: {INTERVAL}s.", capitalised(glossary()["mean acceptance length τ"]["formula"])
    if drawn:
        charts["speedup"] = Part(f"Speedup by {axis}", figure=xy_chart(axis, "speedup", speedups), remark=remark)
        charts["length"] = Part("Mean acceptance length τ", figure=xy_chart(axis, "τ", lengths), remark=f"{formula}.")
    others = [point for point in by_task if point.variant not in drawn]
    if others:
        several = len({point.part for point in others}) > 1
        for point in others:
            name, place = (point.variant, point.part) if several else ("speedup", point.variant)
            bars[name].append(_speedup_at(place, point))
        title = "Speedup by task" if several else "Speedup"
        charts["others"] = Part(title, figure=xy_chart("", "speedup", bars, along=False), remark=remark)
    return charts


def _speedup_at(place: Any, point: Point) -> ChartPoint:
    speedup = point.speedup
    return place, speedup.ratio, speedup.low, speedup.high, f"{speedup}, {point.outputs}"


def to_html(report: Report) -> str:
    template = (ASSETS / "report.html").read_text(encoding="utf-8")
    styles = Markup("\n".join(map(page_file, (*STYLES, "boards.css"))))
    return render(template, title=report.title, styles=styles, parts=script_json(report.board()), **scripts(_MODULES))


def write(report: Report, path: Path) -> list[Path]:
    """Write the JSON to this path and the HTML next to it, also after one failed; return both paths."""
    base = str(path).removesuffix(".json")  # no other ending, so that `run.v1` and `run.v2` do not share a file
    files: dict[str | Path, Callable[[], bytes]] = {
        path: lambda: json_file(report.data(), indent=1),
        f"{base}.html": lambda: to_html(report).encode(),
    }
    write_files(files)
    return [Path(file) for file in files]
