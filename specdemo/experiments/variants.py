"""Experiments that vary one thing: α, τ and speedup of every variant, with intervals, as one table and three charts.

Kinds whose variants lie on an axis, such as temperature, subclass `Variants` and say what the axis is.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from specdemo.analysis.intervals import ENOUGH, LEVEL, Call, Interval
from specdemo.analysis.metrics import FORMULAS
from specdemo.experiments.report import Chart, Line, Report, Table, measured_on, speedup_lines, times
from specdemo.experiments.trials import ALL, Cell, TrialResult, cell_of, problems
from specdemo.presentation.warnings import doubts_of
from specdemo.presentation.wording import common_words
from specdemo.records import Record
from specdemo.settings import GenerationSettings

_DRAWS = 2000
_CALLS: dict[Call, str] = {
    "faster": "speculation clearly pays at",
    "slower": "it costs time at",
    "about even": "it makes no difference at",
    "too noisy to call": "it is too noisy to call at",
}


class VariantPoint(Record):
    """What one variant reached: speedup, α and τ, each with an interval where there are enough runs."""

    name: str
    value: float | str
    cell: Cell
    acceptance_rate: Interval | None
    mean_accepted_length: Interval | None
    comparable: bool
    """Whether its outputs can be compared with those of plain decoding: not when sampling."""


class Variants(TrialResult):
    """Trials of several variants, finished or not. `variants` are their settings, by name."""

    variants: dict[str, GenerationSettings]
    axis: ClassVar[str] = "variant"
    title: ClassVar[str] = "Variants"

    def value_of(self, name: str) -> float | str:
        """Where a variant lies on the axis."""
        return name.partition(" ")[2]

    @property
    def points(self) -> list[VariantPoint]:
        """Every variant with a trial, in their order."""
        found = []
        for name, settings in self.variants.items():
            rows = [row for row in self.rows if row.name == name]
            trials = [row.trial for row in rows if row.trial is not None]
            cell = cell_of(ALL, rows)
            if cell is None:
                continue
            point = VariantPoint(
                name=name,
                value=self.value_of(name),
                cell=cell,
                acceptance_rate=ratio([(trial.accepted, trial.proposed) for trial in trials]),
                mean_accepted_length=ratio([(trial.run_tokens, trial.rounds) for trial in trials]),
                comparable=not settings.do_sample,
            )
            found.append(point)
        return found

    def conclusion(self) -> str:
        """What it comes to, in a sentence: where speculation clearly pays."""
        points = self.points
        if not points:
            return "Nothing could be measured."
        calls: dict[str, list[str]] = {}
        for point in points:
            calls.setdefault(point.cell.speedup.call, []).append(str(point.value))
        best = max(points, key=lambda point: point.cell.speedup.middle)
        if not best.cell.speedup.known:
            return f"Too few runs to be sure: {self.axis} {best.value} is fastest so far, {best.cell.speedup}."
        parts = [f"{self.axis.capitalize()} {best.value} is fastest, {best.cell.speedup}"]
        parts += [f"{_CALLS[name]} {listed(calls[name])}" for name in _CALLS if name in calls]
        return "; ".join(parts) + "."

    def remarks(self) -> Iterator[str]:
        """What is to be said of this kind besides."""
        yield from ()

    def report(self) -> Report:
        """The variants as a report."""
        points = self.points
        environment = next((facts.environment for facts in self.engines.values()), None)
        return Report(
            title=f"{self.title} of {self.header.pair.name}",
            opening=[
                self.conclusion(),
                *(f"{point.value}: {doubt.reason}" for point in points for doubt in doubts_of(point.cell)),
                *measured_on(self.date, environment),
                f"Settings: {common_words(self.header.settings)}; {times(len(self.tasks), 'prompt')}, "
                f"{times(self.repeats, 'repeat')}.",
            ],
            charts=self._charts(points),
            tables={"table": Table(f"Every {self.axis}", self._columns, [self._row(point) for point in points])},
            notes=list(self._notes()),
            data=lambda: {
                **self.model_dump(mode="json"),
                "points": [point.model_dump(mode="json") for point in points],
                "headline": self._headline(points),
            },
            headline=self._headline(points),
            figures=[self._figures(point) for point in points],
        )

    @property
    def _columns(self) -> Sequence[str]:
        return (self.axis, "speedup", "α", "τ", "outputs", "tokens/s", "plain tokens/s", "runs")

    def _row(self, point: VariantPoint) -> tuple[str, ...]:
        cell = point.cell
        outputs = "identical" if cell.identical else f"{cell.identical_runs} of {cell.runs} identical"
        return (
            str(point.value),
            str(cell.speedup),
            words(point.acceptance_rate),
            words(point.mean_accepted_length),
            outputs if point.comparable else "sampled",
            f"{cell.tokens_per_second:.0f}",
            f"{cell.plain_tokens_per_second:.0f}",
            str(cell.runs),
        )

    def _figures(self, point: VariantPoint) -> dict[str, Any]:
        named = {
            "speedup": point.cell.speedup,
            "acceptance_rate": point.acceptance_rate,
            "mean_accepted_length": point.mean_accepted_length,
        }
        figures: dict[str, Any] = {self.axis: point.value}
        for name, interval in named.items():
            ends = (None, None, None) if interval is None else (interval.middle, interval.low, interval.high)
            figures |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        return figures | {"runs": point.cell.runs, "identical_runs": point.cell.identical_runs}

    def _headline(self, points: Sequence[VariantPoint]) -> dict[str, Any]:
        return {
            "pair": self.header.pair.name,
            "complete": self.complete,
            "conclusion": self.conclusion(),
            "speedups": {str(point.value): round(point.cell.speedup.middle, 3) for point in points},
        }

    def _charts(self, points: Sequence[VariantPoint]) -> Mapping[str, Chart]:
        shown = {}
        measured: tuple[tuple[str, str, list[Interval | None], str], ...] = (
            ("speedup", "Speedup", [point.cell.speedup for point in points], "speedup"),
            ("acceptance", "Acceptance rate α", [point.acceptance_rate for point in points], "acceptance_rate"),
            ("length", "Mean acceptance length τ", [p.mean_accepted_length for p in points], "mean_accepted_length"),
        )
        for name, title, values, formula in measured:
            known = [(point, value) for point, value in zip(points, values, strict=True) if value is not None]
            if not known:
                continue
            line = Line(
                name, [point.value for point, _ in known], [value for _, value in known], [words(v) for _, v in known]
            )
            figure = speedup_lines([line], self.axis, y_title=title, plain=name != "acceptance")
            shown[name] = Chart(f"{title} by {self.axis}", figure, f"{FORMULAS[formula].capitalize()}.")
        return shown

    def _notes(self) -> Iterator[str]:
        if not self.complete:
            yield f"Unfinished: {len(self.rows)} of {times(self.total, 'run')}."
        yield from self.remarks()
        for problem, rows in problems(self).items():
            values = ", ".join(dict.fromkeys(str(self.value_of(row.name)) for row in rows))
            yield f"Left out for {values}: {problem}"
        for name in ("speedup", "acceptance_rate", "mean_accepted_length"):
            yield f"{name.replace('_', ' ').capitalize()}: {FORMULAS[name]}."


def ratio(pairs: Sequence[tuple[float | None, float | None]], seed: int = 0) -> Interval | None:
    """Σ first / Σ second with a bootstrap interval over the pairs; None where one is unknown, or the sum is 0."""
    if not pairs or any(a is None or b is None for a, b in pairs):
        return None
    values = np.asarray(pairs, dtype=float)
    total = values.sum(axis=0)
    if not total[1]:
        return None
    middle = float(total[0] / total[1])
    if len(values) < ENOUGH:
        return Interval(middle=middle)
    drawn = np.random.default_rng(seed).integers(len(values), size=(_DRAWS, len(values)))
    sums = values[drawn].sum(axis=1)
    drawn_ratios = sums[:, 0] / np.maximum(sums[:, 1], 1e-12)
    low, high = np.quantile(drawn_ratios, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(middle=middle, low=float(low), high=float(high))


def words(interval: Interval | None) -> str:
    """A figure with its interval, without a unit."""
    if interval is None:
        return "–"
    return f"{interval.middle:.2f}" + (f" ({interval.low:.2f}–{interval.high:.2f})" if interval.known else "")


def listed(names: Sequence[str]) -> str:
    """Names as in a sentence: "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
