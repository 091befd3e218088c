"""Result of a benchmark, and its report: which strategy gains most, and on which tasks speculation pays.

The table is that of the paper on dynamic speculation (Mamou et al. 2024): target, draft, task and each strategy's
speedup. A speedup is always shown together with whether the outputs were identical.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any, Literal

import plotly.graph_objects as go

from specdemo import estimate, metrics
from specdemo.estimate import ENOUGH, accepted_per_round, by_position, by_thinking
from specdemo.experiments.report import (
    Chart,
    Line,
    Report,
    Table,
    fit_axis,
    measured_on,
    memory_notes,
    speedup_lines,
    times,
    whiskers,
)
from specdemo.experiments.trials import ALL, Cell, TrialResult, by_length, cells, problems
from specdemo.measure import MEBIBYTE, Bound, MemoryUse
from specdemo.presentation.charts import base_figure, colour, plain_line
from specdemo.presentation.figures import SPEED_COLUMNS, number, percent, speed_cells
from specdemo.presentation.warnings import warnings_of
from specdemo.presentation.wording import common_words
from specdemo.records import Record, Trial
from specdemo.settings import GenerationSettings
from specdemo.strategies import ENGINES, STRATEGIES, effective

COLUMNS = ("target", "draft", "task", "engine", "method", "speedup", "outputs", "τ", "α", "tokens/s", "runs")


class Bench(TrialResult):
    """A benchmark, finished or not. `memory` and `bound` are None if they were not measured."""

    memory: tuple[MemoryUse, ...] = ()
    bound: Bound | None = None

    def report(self) -> Report:
        return _report(self)


# Conclusions.


class Advice(Record):
    """Advice for a task category: speculate with the fastest method, do not, or too close to call.

    `method` is the fastest, `settings` are its differences from the defaults, ready to copy; `equals` may be as fast.
    """

    task: str
    call: Literal["on", "off", "too close"]
    method: str
    speedup: str
    equals: tuple[str, ...] = ()
    identical: bool


def advice(found: Sequence[Cell]) -> list[Advice]:
    """Return advice for each task category: "on" if the fastest method's whole interval is above 1."""
    advised = []
    for task in dict.fromkeys(cell.task for cell in found):
        mine = sorted((cell for cell in found if cell.task == task), key=lambda cell: -cell.speedup.middle)
        best, call = mine[0], "too close"
        if best.speedup.call == "faster":
            call = "on"
        elif all(cell.speedup.call == "slower" for cell in mine):
            call = "off"
        advised.append(
            Advice(
                task=task,
                call=call,
                method=best.name,
                speedup=str(best.speedup),
                equals=tuple(cell.name for cell in _equals(best, mine)) if call == "on" else (),
                identical=best.identical,
            )
        )
    return advised


def conclusion(overall: Sequence[Cell]) -> str:
    """Return a sentence on the method that gains most over its engine's plain decoding, if any clearly does."""
    if not overall:
        return "Nothing could be measured."
    best = max(overall, key=lambda cell: cell.speedup.middle)
    evidence = f"{best.speedup} in {times(best.runs, 'run')}"
    outputs = _outputs(best)
    if best.speedup.low is None:
        return f"Too few runs to be sure: the fastest so far is {best.name}, {evidence}, {outputs}."
    if best.speedup.call != "faster":
        return f"No method clearly beats plain decoding: the best, {best.name}, reached {evidence}, {outputs}."
    equals = _equals(best, overall)
    if not equals:
        return f"{best.name} gains most over plain decoding: {evidence}, {outputs}."
    names = ", ".join(cell.name for cell in [best, *sorted(equals, key=lambda cell: -cell.speedup.middle)])
    return f"No clear winner: any of {names}. For {best.name}: {evidence}, {outputs}."


def _outputs(cell: Cell) -> str:
    return "outputs identical" if cell.identical else f"outputs identical in {cell.identical_runs} of {cell.runs}"


def _equals(best: Cell, others: Sequence[Cell]) -> list[Cell]:
    """Return the methods whose interval overlaps that of the best."""
    return [cell for cell in others if cell is not best and (cell.speedup.high or 0) >= (best.speedup.low or 0)]


def opening(result: Bench) -> Iterator[str]:
    """Yield the opening sentences: conclusion, warnings, date, machine and settings."""
    found = cells(result)
    overall = [cell for cell in found if cell.task == ALL]
    yield conclusion(overall)
    for cell in found:
        for warning in warnings_of(cell):
            if cell.task == ALL or warning.kind == "above τ":
                yield f"{cell.name}, {cell.task}: {warning.reason}"
    yield from measured_on(result.date, next((facts.environment for facts in result.engines.values()), None))
    header = result.header
    yield (
        f"Settings: {common_words(header.settings)}; {times(len(result.tasks), 'prompt')}, "
        f"{times(result.repeats, 'repeat')}; methods: {', '.join(header.methods)}."
    )


# The report.


def _report(result: Bench) -> Report:
    pair, found = result.header.pair, cells(result)
    names = {"target": pair.target.name, "draft": pair.draft.name if pair.draft is not None else None}
    return Report(
        title=f"Benchmark of {pair.name}",
        opening=list(opening(result)),
        charts=charts(result),
        tables={
            "table": Table("Every method on every task", COLUMNS, table(result)),
            **({"advice": advice_table(result)} if found else {}),
            **_length_table(result),
            **_part_tables(result),
        },
        notes=list(notes(result)),
        data=lambda: {
            **result.model_dump(mode="json"),
            "table": [cell.model_dump(mode="json") for cell in found],
            "advice": [each.model_dump(mode="json") for each in advice(found)],
            "headline": headline(result),
        },
        headline=headline(result),
        figures=[names | _figures(cell) for cell in found],
    )


def headline(result: Bench) -> dict[str, Any]:
    """Return the headline figures: speedups over all tasks, and whether outputs were identical."""
    overall = [cell for cell in cells(result) if cell.task == ALL]
    return {
        "pair": result.header.pair.name,
        "complete": result.complete,
        "runs": len(result.rows),
        "speedups": {
            cell.name: {
                "speedup": round(cell.speedup.middle, 3),
                "interval": [round(end, 3) for end in (cell.speedup.low, cell.speedup.high) if end is not None],
                "mean": round(cell.mean, 3),
                "deviation": None if cell.deviation is None else round(cell.deviation, 3),
                "identical": cell.identical,
                "tau": cell.mean_accepted_length and round(cell.mean_accepted_length, 2),
            }
            for cell in overall
        },
    }


def _figures(cell: Cell) -> dict[str, Any]:
    figures = cell.model_dump(exclude={"speedup", "speedups"})
    return figures | {"median": cell.speedup.middle, "low": cell.speedup.low, "high": cell.speedup.high}


def table(result: Bench) -> list[tuple[str, ...]]:
    """Return the rows under `COLUMNS` as strings."""
    pair = result.header.pair
    names = pair.target.name, pair.draft.name if pair.draft is not None else "–"
    return [(*names, *_row(cell)) for cell in cells(result)]


def _row(cell: Cell) -> tuple[str, ...]:
    outputs = "identical" if cell.identical else f"{cell.identical_runs} of {cell.runs} identical"
    return (
        cell.task,
        cell.engine,
        cell.method,
        str(cell.speedup),
        outputs,
        number(cell.mean_accepted_length),
        number(cell.acceptance_rate),
        f"{cell.tokens_per_second:.0f}",
        str(cell.runs),
    )


def advice_table(result: Bench) -> Table:
    """Return the table of advice, with the command-line options to follow it."""
    options = {name: options_of(name, result.header.settings) for name in result.header.methods}
    words = {"on": "on", "off": "off", "too close": "too close to call"}
    rows = [
        (
            each.task,
            words[each.call],
            each.method if each.call == "on" else "–",
            each.speedup,
            ", ".join(each.equals) or "–",
            options[each.method] if each.call == "on" else "–",
        )
        for each in advice(cells(result))
    ]
    return Table(
        "Speculate here?",
        ("task", "speculation", "method", "speedup", "may be as fast", "settings"),
        rows,
        "On where the whole interval of the fastest method is above 1, off where that of every method is below.",
    )


def options_of(method: str, settings: GenerationSettings) -> str:
    """Return a method as command-line options."""
    return " ".join(
        f"--{option.replace('_', '-')} {value}"
        for option, value in values_of(method, settings).items()
        if value is not None
    )


def values_of(method: str, settings: GenerationSettings) -> dict[str, Any]:
    """Return the settings that make up a method."""
    name, _, short = method.partition(" ")
    engine, strategy = next(each for each in ENGINES if each == name), STRATEGIES[short]
    values = {"engine": engine, "drafter": strategy.drafter.name, "policy": strategy.policy.name}
    return values | {option: getattr(settings, option) for option in sorted(effective(strategy, engine))}


def notes(result: Bench) -> Iterator[str]:
    """Yield notes on what the table is based on, and on memory and bandwidth if measured."""
    if not result.complete:
        yield f"Unfinished: {len(result.rows)} of {result.total} runs."
    yield (
        f"Speedup: {metrics.FORMULAS['speedup']}, of {_repeats(result)}. Each speculative run is compared with the "
        f"plain runs of the same engine just before and after it: {estimate.FORMULA}; from {ENOUGH} prompts on, "
        "over prompts."
    )
    for problem, rows in problems(result).items():
        methods = ", ".join(dict.fromkeys(row.name for row in rows))
        prompts = f"{len({row.prompt for row in rows})} of {len(result.tasks)} prompts"
        yield f"Left out for {methods}, {prompts}: {problem}"
    for engine, facts in result.engines.items():
        environment, costs = facts.environment, facts.costs
        cost = metrics.draft_cost(costs) if costs is not None else None
        step = f"; a plain step takes {costs.plain_step * 1e3:.2f} ms" if costs is not None else ""
        draft = f", a draft step {cost:.2f} times that" if cost is not None else ""
        precision = f"{environment.inference_precision}, KV cache {environment.kv_cache_precision}"
        rest = "" if environment.remote else f", {environment.threads} threads, {precision}{step}{draft}"
        yield f"{engine}: {environment.device}{rest}."
    yield from memory_notes(result.memory)
    yield from _bound(result)


def _repeats(result: Bench) -> str:
    """Return how many repeats the cells cover: fewer than requested in an unfinished benchmark."""
    counts = {cell.repeats for cell in cells(result)} or {0}
    fewest, most = min(counts), max(counts)
    return times(most, "repeat") if fewest == most else f"{fewest} to {most} repeats"


def _bound(result: Bench) -> Iterator[str]:
    bound = result.bound
    if bound is None:
        return
    gigabytes = f"{bound.read_bandwidth / 1e9:.1f} GB/s reading, {bound.copy_bandwidth / 1e9:.1f} GB/s copying"
    cache = f"{bound.context * bound.cache_per_token / 1e6:.1f} MB of cache"
    yield (
        f"Memory bandwidth: {gigabytes}, measured with {bound.threads} threads on arrays of "
        f"{bound.array_bytes / MEBIBYTE:.0f} MiB each. A target pass reads {bound.weights / 1e6:.1f} MB of weights "
        f"and, after {bound.context} tokens, {cache}: at most {bound.tokens_per_second:.0f} tokens per second with "
        "plain decoding, unless the processor's caches hold the weights."
    )
    for cell in (cell for cell in cells(result) if cell.task == ALL):
        plain, speculative = (bound.share(rate) for rate in (cell.plain_tokens_per_second, cell.tokens_per_second))
        yield f"Share of that limit, {cell.name}: {percent(speculative)}; plain decoding beside it: {percent(plain)}."


def charts(result: Bench) -> dict[str, Chart]:
    """Return charts of speedup and mean acceptance length by task, and of pass costs if measured."""
    found = cells(result)
    outputs = "outputs identical" if all(cell.identical for cell in found) else "outputs not always identical"
    shown = {
        "speedup": Chart(
            "Speedup over plain decoding" + (f", {outputs}" if found else ""),
            _by_task(found, "speedup", _speedup_bars),
            f"{metrics.FORMULAS['speedup'].capitalize()}; error bars: 95 % intervals.",
        ),
        "length": Chart(
            "Mean acceptance length τ",
            _by_task(found, "τ", lambda mine: {"y": [cell.mean_accepted_length for cell in mine]}),
            f"{metrics.FORMULAS['mean_accepted_length'].capitalize()}.",
        ),
    }
    if lines := _position_lines(result):
        remark = f"{metrics.FORMULAS['speedup'].capitalize()}, of the rounds that begin in each part of the text."
        shown["position"] = Chart("Speedup by position in the text", speedup_lines(lines, "tokens"), remark)
    if (accepted := _accepted_figure(result)) is not None:
        shown["accepted"] = Chart("Tokens accepted in a round", accepted, "Of all rounds, those of plain runs aside.")
    if any(facts.costs is not None for facts in result.engines.values()):
        shown["passes"] = Chart(
            "Cost of a target pass over n tokens, v(n)",
            _passes(result),
            f"{metrics.FORMULAS['verify_cost'].capitalize()}.",
        )
    return shown


def _trials(result: Bench) -> dict[str, tuple[list[Trial], list[str]]]:
    """Return the trials with recorded steps, and their prompts, by method."""
    found: dict[str, tuple[list[Trial], list[str]]] = {}
    for row in result.rows:
        if row.trial is not None and row.trial.round_steps:
            trials, prompts = found.setdefault(row.name, ([], []))
            trials.append(row.trial)
            prompts.append(row.prompt)
    return {name: found[name] for name in result.header.methods if name in found}


def _position_lines(result: Bench) -> list[Line]:
    """Return every method's speedup by position in the text."""
    lines = []
    for name, (trials, prompts) in _trials(result).items():
        parts = by_position(trials, prompts)
        hover = [f"{part.speedup}, α {number(part.acceptance_rate)}" for part in parts]
        lines.append(Line(name, [part.name for part in parts], [part.speedup for part in parts], hover))
    return [line for line in lines if line.x]


def _accepted_figure(result: Bench) -> go.Figure | None:
    """Plot the share of rounds that accepted 0, 1, 2, … proposals, for every method whose rounds are known."""
    figure = base_figure(barmode="group", hovermode="closest")
    for index, (name, (trials, _)) in enumerate(_trials(result).items()):
        counts = accepted_per_round(trials)
        rounds = sum(counts.values())
        figure.add_bar(
            x=list(counts),
            y=[count / rounds for count in counts.values()],
            text=[str(count) for count in counts.values()],
            textposition="none",
            name=name,
            marker_color=colour(index),
            hovertemplate="%{text} rounds accepted %{x}: %{y:.0%}",
        )
    figure.update_xaxes(title="tokens accepted in a round", dtick=1)
    figure.update_yaxes(title="share of rounds", tickformat=".0%")
    return figure if figure.data else None


def _length_table(result: Bench) -> dict[str, Table]:
    """Return a table of results by prompt length; none if all are alike."""
    rows = [(cell.name, cell.task, *speed_cells(cell)) for cell in by_length(result)]
    columns = ("method", "tokens of the prompt", *SPEED_COLUMNS)
    return {"lengths": Table("By length of the prompt", columns, rows)} if rows else {}


def _part_tables(result: Bench) -> dict[str, Table]:
    """Return tables by position in the text and, for reasoning models, by thinking and answer."""
    tables = {}
    for name, title, first, parts_of in (
        ("positions", "By position in the text", "tokens of the answer", by_position),
        ("thinking", "Thinking and answer apart", "part", by_thinking),
    ):
        rows = [
            (method, part.name, *speed_cells(part))
            for method, (trials, prompts) in _trials(result).items()
            for part in parts_of(trials, prompts)
        ]
        if rows:
            tables[name] = Table(title, ("method", first, *SPEED_COLUMNS), rows)
    return tables


def _speedup_bars(mine: list[Cell]) -> dict[str, Any]:
    return {
        "y": [cell.speedup.middle for cell in mine],
        "error_y": whiskers([cell.speedup for cell in mine], color="var(--sd-ink)"),
        "hovertext": ["outputs identical" if cell.identical else "outputs differ" for cell in mine],
    }


def _by_task(found: list[Cell], title: str, bars: Callable[[list[Cell]], dict[str, Any]]) -> go.Figure:
    """Plot every method's bars by task, with a reference line for plain decoding."""
    figure = base_figure(barmode="group", hovermode="closest")
    for index, name in enumerate(dict.fromkeys(cell.name for cell in found)):
        mine = [cell for cell in found if cell.name == name]
        tasks = [escape(cell.task, quote=False) for cell in mine]  # Plotly would interpret some markup
        figure.add_bar(x=tasks, name=name, marker_color=colour(index), **bars(mine))
    plain_line(figure)
    figure.update_yaxes(title=title)
    fit_axis(figure)
    return figure


def _passes(result: Bench) -> go.Figure:
    figure = base_figure()
    measured = {name: facts.costs for name, facts in result.engines.items() if facts.costs is not None}
    for index, (engine, costs) in enumerate(measured.items()):
        lengths = list(range(1, len(costs.verify) + 1))
        figure.add_scatter(
            x=lengths,
            y=[metrics.verify_cost(costs, n) for n in lengths],
            name=engine,
            mode="lines+markers",
            line={"color": colour(index)},
            hovertemplate="%{y:.2f}",
        )
    figure.update_xaxes(title="tokens")
    figure.update_yaxes(title="v(n)")
    return figure
