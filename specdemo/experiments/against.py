"""Side-by-side comparison of two benchmarks, from different machines, versions or settings.

Each speedup is relative to neighbouring plain runs on its own machine. Decoding speed is compared directly, in tokens
per second, for plain decoding and for each method: over the prompts in common, with a bootstrap over prompts and
runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from specdemo.errors import FileError, quoted
from specdemo.estimate import ENOUGH, LEVEL, Interval, interval_of
from specdemo.experiments.bench_result import Bench
from specdemo.experiments.plan import Result
from specdemo.experiments.report import Chart, Line, Report, Table, speedup_lines, times
from specdemo.experiments.trials import ALL, Cell, TrialRow, cells
from specdemo.files import json_value, read_bytes
from specdemo.records import Record, Trial

PLACE = "against"
"""Name of the table and the chart in reports."""
_MOST_BYTES = 256 * 2**20
_DRAWS = 2000
_COLUMNS = (
    "task", "method", "speedup here", "speedup there", "tokens/s here", "tokens/s there", "here / there",
    "plain, here / there", "prompts",
)  # fmt: skip


class Comparison(Record):
    """One method on one task category in both benchmarks; `speculative` and `plain` are tokens/s here / there."""

    method: str
    task: str
    here: Cell
    there: Cell
    speculative: Interval
    plain: Interval
    prompts: int


def read_bench(path: Path) -> Bench:
    """Read a benchmark that `bench --json` or the page wrote.

    Raises:
        FileError: the file is not a benchmark, or cannot be read.
    """
    advice = f"{quoted(path.name)} is not a benchmark; choose a file that `specdemo bench --json` wrote."
    try:
        value: Any = json_value(read_bytes(path, _MOST_BYTES, "a benchmark").decode())
        return Bench.model_validate(value)
    except (ValueError, ValidationError) as error:
        raise FileError(advice) from error


def compare(here: Bench, there: Bench) -> list[Comparison]:
    """Compare the methods and task categories that share at least one prompt."""
    other = {(cell.name, cell.task): cell for cell in cells(there)}
    found = []
    for cell in cells(here):
        match = other.get((cell.name, cell.task))
        pairs = [] if match is None else _common(here, there, cell)
        if match is None or not pairs:
            continue
        found.append(
            Comparison(
                method=cell.name,
                task=cell.task,
                here=cell,
                there=match,
                speculative=_ratio([[(t.tokens, t.seconds) for t in side] for pair in pairs for side in pair]),
                plain=_ratio([[(t.tokens, t.plain_seconds) for t in side] for pair in pairs for side in pair]),
                prompts=len(pairs),
            )
        )
    return found


def report_against(found: Result, there: tuple[Bench, str] | None = None) -> Report:
    """Return the report of a result; a benchmark may be compared with another one, given with its file name."""
    if there is None or not isinstance(found, Bench):
        return found.report()
    return with_other(found.report(), found, *there)


def with_other(report: Report, here: Bench, there: Bench, name: str) -> Report:
    """Add a comparison with another benchmark, read from a file called `name`, to a benchmark's report."""
    found = compare(here, there)
    overall = [each for each in found if each.task == ALL]
    if not overall:
        return replace(report, opening=[*report.opening, *_sentences(found, name)])
    table = Table(
        f"Against {name}",
        _COLUMNS,
        [_row(each) for each in found],
        f"Here / there: tokens per second of both, over the prompts in common; {LEVEL * 100:.0f} % intervals by a "
        "bootstrap over prompts and runs.",
    )
    lines = [
        Line("with speculation", [each.method for each in overall], [each.speculative for each in overall]),
        Line("plain decoding", [each.method for each in overall], [each.plain for each in overall]),
    ]
    figure = speedup_lines(lines, "method", y_title="tokens/s here / there")
    chart = Chart(f"Tokens per second, here / {name}", figure, table.remark)
    return replace(
        report,
        opening=[*report.opening, *_sentences(found, name), *differences(here, there)],
        charts={**report.charts, PLACE: chart},
        tables={**report.tables, PLACE: table},
        data=lambda: {**report.data(), PLACE: [each.model_dump(mode="json") for each in found]},
        headline={
            **report.headline,
            PLACE: {each.method: _rounded(each.speculative) for each in overall},
        },
    )


def differences(here: Bench, there: Bench) -> Iterator[str]:
    """Yield a sentence on how the two setups differ, apart from the measurements."""
    pairs = [
        (here.engines[engine].environment, there.engines[engine].environment)
        for engine in here.engines
        if engine in there.engines
    ]
    chosen = (here.header.settings, there.header.settings), (here.header.pair.runtime, there.header.pair.runtime)
    found = [text for one, other in [*pairs, *chosen] for text in _changed(one.model_dump(), other.model_dump())]
    if here.header.pair.name != there.header.pair.name:
        found.append(f"pair {here.header.pair.name} (there {there.header.pair.name})")
    elif here.header.models != there.header.models:
        found.append("files of the models")
    words = "; ".join(dict.fromkeys(found))
    yield f"Different: {words}." if found else "Same machine, versions and settings, as far as is recorded."


def _changed(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    for name, value in ours.items():
        if value != theirs.get(name):
            yield f"{name.replace('_', ' ')} {value} (there {theirs.get(name)})"


def _sentences(found: Sequence[Comparison], name: str) -> Iterator[str]:
    overall = [each for each in found if each.task == ALL]
    if not overall:
        yield f"Nothing can be compared with {name}: it has no method on the same prompts; run both on the same ones."
        return
    best = max(overall, key=lambda each: each.here.tokens_per_second)
    yield (
        f"Against {name}, on {times(best.prompts, 'prompt')} of both: {best.method} decodes {best.speculative} the "
        f"tokens per second, plain decoding {best.plain}. Speculation gains {best.here.speedup} here and "
        f"{best.there.speedup} there."
    )


def _row(each: Comparison) -> tuple[str, ...]:
    return (
        each.task,
        each.method,
        str(each.here.speedup),
        str(each.there.speedup),
        f"{each.here.tokens_per_second:.0f}",
        f"{each.there.tokens_per_second:.0f}",
        str(each.speculative),
        str(each.plain),
        str(each.prompts),
    )


def _rounded(interval: Interval) -> dict[str, float | None]:
    return {name: value and round(value, 3) for name, value in interval.model_dump(exclude={"limit"}).items()}


def _common(here: Bench, there: Bench, cell: Cell) -> list[tuple[list[Trial], list[Trial]]]:
    """Return the trials of both benchmarks for each prompt in common, matched by text."""
    ours, theirs = _by_prompt(here, cell), _by_prompt(there, cell)
    return [(ours[prompt], theirs[prompt]) for prompt in ours if prompt in theirs]


def _by_prompt(bench: Bench, cell: Cell) -> dict[tuple[str, ...], list[Trial]]:
    texts = {task.name: (*task.before, task.prompt) for task in bench.tasks}
    found: dict[tuple[str, ...], list[Trial]] = {}
    rows: Iterator[TrialRow] = (row for row in bench.rows if row.name == cell.name and row.prompt in texts)
    for row in rows:
        if row.trial is not None and cell.task in (row.task, ALL):
            found.setdefault(texts[row.prompt], []).append(row.trial)
    return found


def _ratio(sides: Sequence[Sequence[tuple[int, float]]], seed: int = 0) -> Interval:
    """Return tokens per second here / there, from (tokens, seconds) per prompt, here and there alternating.

    Prompts, if there are enough, are drawn jointly for both sides; runs are then drawn for each side separately.
    """
    random = np.random.default_rng(seed)
    ours, theirs = ([np.asarray(side, float) for side in sides[offset::2]] for offset in (0, 1))
    middle = _rate(ours) / _rate(theirs)
    prompts, runs = len(ours), min(sum(map(len, ours)), sum(map(len, theirs)))
    if runs < ENOUGH:
        return Interval(middle=middle)
    share = np.full(prompts, 1 / prompts)
    weights = random.multinomial(prompts, share, _DRAWS) if prompts >= ENOUGH else np.ones((_DRAWS, prompts))

    def rates(side: Sequence[Any]) -> Any:
        """Return tokens per second in each draw."""
        drawn = [random.multinomial(len(runs), np.full(len(runs), 1 / len(runs)), _DRAWS) @ runs for runs in side]
        tokens, seconds = (weights[:, :, None] * np.stack(drawn, axis=1)).sum(axis=1).T
        return tokens / seconds

    draws = rates(ours) / rates(theirs)
    return interval_of(middle, draws)


def _rate(sides: Sequence[Any]) -> float:
    tokens, seconds = np.concatenate(list(sides)).sum(axis=0)
    return float(tokens / seconds)
