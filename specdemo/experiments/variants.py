"""Experiments that vary one thing: α, τ and speedup of every variant, with intervals, in one table and three charts.

Temperature: a draft proposes its likeliest token, or samples one; the target accepts it with a probability that falls
as both distributions flatten and diverge. Temperature 0 is greedy decoding. Each repeat has its own seed, the same on
both sides.

Precision of target, draft and KV cache: each variant is loaded separately, so each is compared with plain decoding at
its own precision; tokens per second show which is fastest overall.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from specdemo.errors import SettingsError, listed, quoted
from specdemo.estimate import ENOUGH, Call, Interval, interval_of
from specdemo.experiments.checkpoint import EngineFacts
from specdemo.experiments.plan import Kind, Option, Range, begin
from specdemo.experiments.report import Chart, Line, Report, Table, measured_on, speedup_lines, times
from specdemo.experiments.trials import ALL, Cell, TrialPlan, TrialResult, TrialRow, cell_of, problems
from specdemo.metrics import FORMULAS
from specdemo.models.checks import check_strategy, with_tokenizers_compared
from specdemo.presentation.warnings import warnings_of
from specdemo.presentation.wording import common_words, length_words
from specdemo.records import ModelPair, Record
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import ENGINES

_DRAWS = 2000
_CALLS: dict[Call, str] = {
    "faster": "speculation clearly pays at",
    "slower": "it costs time at",
    "about even": "it makes little difference at",
    "too noisy to call": "it is too noisy to call at",
}


class VariantPoint(Record):
    """Speedup, α and τ of one variant, each with an interval if there are enough runs."""

    name: str
    value: float | str
    cell: Cell
    acceptance_rate: Interval | None
    mean_accepted_length: Interval | None
    comparable: bool
    """True if its outputs can be compared with plain decoding's, which they cannot when sampling."""


class Variants(TrialResult):
    """Trials of several variants, finished or not. `variants` are their settings, by name."""

    variants: dict[str, GenerationSettings]
    axis: ClassVar[str] = "variant"
    title: ClassVar[str] = "Variants"

    def value_of(self, name: str) -> float | str:
        """Return a variant's position on the axis."""
        return name.partition(" ")[2]

    @property
    def points(self) -> list[VariantPoint]:
        """Every variant with a trial, in order."""
        found = []
        for name, settings in self.variants.items():
            rows = [row for row in self.rows if row.name == name]
            trials = [(row.prompt, row.trial) for row in rows if row.trial is not None]
            cell = cell_of(ALL, rows)
            if cell is None:
                continue
            point = VariantPoint(
                name=name,
                value=self.value_of(name),
                cell=cell,
                acceptance_rate=ratio([(prompt, trial.accepted, trial.proposed) for prompt, trial in trials]),
                mean_accepted_length=ratio([(prompt, trial.run_tokens, trial.rounds) for prompt, trial in trials]),
                comparable=not settings.do_sample,
            )
            found.append(point)
        return found

    def conclusion(self) -> str:
        """Return a sentence on which variant is fastest and where speculation clearly pays."""
        points = self.points
        if not points:
            return "Nothing could be measured."
        calls: dict[str, list[str]] = {}
        for point in points:
            calls.setdefault(point.cell.speedup.call, []).append(str(point.value))
        best = max(points, key=lambda point: point.cell.speedup.middle)
        if not best.cell.speedup.has_interval:
            return f"Too few runs to be sure: {self.axis} {best.value} is fastest so far, {best.cell.speedup}."
        parts = [f"{self.axis.capitalize()} {best.value} is fastest, {best.cell.speedup}"]
        parts += [f"{_CALLS[name]} {listed(calls[name])}" for name in _CALLS if name in calls]
        return "; ".join(parts) + "."

    def words_of(self, settings: GenerationSettings) -> str:
        """Describe the settings that all variants share."""
        return common_words(settings)

    def remarks(self) -> Iterator[str]:
        """Yield notes specific to this experiment."""
        yield from ()

    def report(self) -> Report:
        points = self.points
        environment = next((facts.environment for facts in self.engines.values()), None)
        return Report(
            title=f"{self.title} of {self.header.pair.name}",
            opening=[
                self.conclusion(),
                *(f"{point.value}: {warning.reason}" for point in points for warning in warnings_of(point.cell)),
                *measured_on(self.date, environment),
                f"Settings: {self.words_of(self.header.settings)}; {times(len(self.tasks), 'prompt')}, "
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


def ratio(counts: Sequence[tuple[Hashable, float | None, float | None]], seed: int = 0) -> Interval | None:
    """Return Σ second / Σ third of (prompt, count, count), with a bootstrap interval over prompts if there are six.

    Repeats of a prompt do not narrow it: greedy decoding counts the same each time. None if a count is unknown, or
    Σ third is 0.
    """
    sums: dict[Hashable, list[float]] = {}
    for prompt, above, below in counts:
        if above is None or below is None:
            return None
        one = sums.setdefault(prompt, [0.0, 0.0])
        one[0], one[1] = one[0] + above, one[1] + below
    values = np.array(list(sums.values()), dtype=float).reshape(-1, 2)
    total = values.sum(axis=0)
    if not total[1]:
        return None
    middle = float(total[0] / total[1])
    if len(values) < ENOUGH:
        return Interval(middle=middle)
    drawn = np.random.default_rng(seed).integers(len(values), size=(_DRAWS, len(values)))
    sums = values[drawn].sum(axis=1)
    drawn_ratios = sums[:, 0] / np.maximum(sums[:, 1], 1e-12)
    return interval_of(middle, drawn_ratios)


def words(interval: Interval | None) -> str:
    """Format a unitless figure with its interval."""
    if interval is None:
        return "–"
    return f"{interval.middle:.2f}" + (f" ({interval.low:.2f}–{interval.high:.2f})" if interval.has_interval else "")


TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)


class Temperatures(Variants):
    """A temperature sweep, finished or not."""

    axis: ClassVar[str] = "temperature"
    title: ClassVar[str] = "Temperature sweep"

    def value_of(self, name: str) -> float:
        return float(name.rpartition(" ")[2])

    def words_of(self, settings: GenerationSettings) -> str:
        return length_words(settings)

    def remarks(self) -> Iterator[str]:
        """Yield how tokens were sampled, and how exact that is."""
        settings = self.header.settings
        yield (
            f"Sampled with top-p {settings.top_p:g}, top-k {settings.top_k}, and another seed in every repeat; 0 is "
            "greedy decoding."
        )
        if ENGINES[settings.engine].samples_exactly is False:
            yield (
                "GenAI's acceptance when sampling does not preserve the target's distribution, so its α is not that "
                "of exact speculative sampling; the traced engine's is."
            )


@dataclass(frozen=True)
class TemperaturePlan(TrialPlan[Temperatures]):
    """Every prompt at each of these temperatures, with one decoding strategy."""

    temperatures: Sequence[float] = TEMPERATURES

    @cached_property
    def variants(self) -> dict[str, GenerationSettings]:
        """Settings at each temperature.

        Raises:
            SettingsError: a temperature is out of range.
        """
        found = {}
        for value in sorted(set(self.temperatures)):
            sampled = {"do_sample": True, "temperature": value} if value else {"do_sample": False}
            found[f"{self.settings.engine} temperature {value:g}"] = GenerationSettings.checked(
                **dict(self.settings) | sampled
            )
        return found

    def check(self) -> None:
        """Check that the strategy can sample.

        Raises:
            PairError, SettingsError: it cannot, or a temperature is out of range.
        """
        pair = with_tokenizers_compared(self.pair)
        for each in self.variants.values():
            check_strategy(pair, each.engine, each.strategy, each.sampling)

    def settings_of(self, variant: str, repeat: int) -> GenerationSettings:
        """Return a temperature's settings, with a different seed in each repeat."""
        settings = self.variants[variant]
        return settings.model_copy(update={"seed": settings.seed + repeat}) if settings.do_sample else settings

    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[TrialRow]) -> Temperatures:
        return Temperatures(**self.common(facts, rows), variants=self.variants)


TEMPERATURE = Kind(
    name="temperature",
    tab="Experiments",
    title="What temperature does to acceptance",
    explanation="The same prompts, sampled more and more freely, with one decoding strategy: acceptance, tokens per "
    "round and speedup at each temperature.",
    help="measure how acceptance and speedup change with the sampling temperature",
    start="Vary the temperature",
    plan=TemperaturePlan,
    options=(
        Option(
            "temperatures",
            "Temperatures",
            "such as 0,0.4,0.8; 0 is greedy decoding",
            "numbers",
            TEMPERATURES,
            choices=lambda pair: TEMPERATURES,
            first=lambda pair: TEMPERATURES[::2],
        ),
    ),
    begin=partial(begin, on=next(name for name, engine in ENGINES.items() if engine.samples_exactly)),
    without=("do_sample", "temperature", "alternatives", "sequential"),
    prompts=Range(32, 4),
    limit=8,
    charts=("speedup", "acceptance", "length"),
)


PARTS = {"target": "precision", "draft": "draft_precision", "cache": "kv_cache_precision"}
"""Components with a precision of their own, and the runtime setting of each."""
PRECISIONS = ("as loaded", "target f32", "target bf16", "draft f32", "draft bf16", "cache f32", "cache u8")


class Precisions(Variants):
    """A precision sweep, finished or not."""

    axis: ClassVar[str] = "precision"
    title: ClassVar[str] = "Precision sweep"

    def remarks(self) -> Iterator[str]:
        """Yield the precisions in use, as reported by the device."""
        yield "Every precision is compared with plain decoding at the same precision of target and KV cache."
        for name, facts in self.engines.items():
            environment = facts.environment
            yield (
                f"{name}: target {environment.inference_precision}, draft {environment.draft_inference_precision}, "
                f"KV cache {environment.kv_cache_precision}."
            )


@dataclass(frozen=True)
class PrecisionPlan(TrialPlan[Precisions]):
    """Every prompt at each of these precisions, such as "cache u8" or "target bf16 + draft f32"."""

    precisions: Sequence[str] = PRECISIONS

    @cached_property
    def runtimes(self) -> dict[str, RuntimeSettings]:
        """Runtime settings of each variant.

        Raises:
            SettingsError: a name is not a precision.
        """
        return {f"{self.settings.engine} {each}": self._runtime(each) for each in dict.fromkeys(self.precisions)}

    def _runtime(self, name: str) -> RuntimeSettings:
        changes: dict[str, str] = {}
        for part in [] if name == "as loaded" else name.split("+"):
            what, _, value = part.strip().partition(" ")
            if what not in PARTS or not value:
                raise SettingsError(
                    f"{quoted(part.strip())} is not a precision of {', '.join(PARTS)}; write such as 'cache u8'."
                )
            changes[PARTS[what]] = value
        return RuntimeSettings.checked(**self.pair.runtime.model_dump() | changes)

    @cached_property
    def variants(self) -> dict[str, GenerationSettings]:
        return dict.fromkeys(self.runtimes, self.settings)

    def check(self) -> None:
        """Check that the models are on this machine.

        Raises:
            SettingsError: a server decodes, or a name is not a precision.
        """
        if self.pair.target.server is not None:
            raise SettingsError("A server chose its precision when it was started; choose a pair on this machine.")
        if not self.runtimes:
            raise SettingsError("There is nothing to compare; give at least one precision.")

    def pair_of(self, variant: str) -> ModelPair:
        """Return the pair at a variant's precision."""
        runtime = self.runtimes[variant]
        return self.pair if runtime == self.pair.runtime else self.pair.model_copy(update={"runtime": runtime})

    def session_of(self, variant: str) -> str:
        """Return a session per variant, since each is loaded separately."""
        return variant

    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[TrialRow]) -> Precisions:
        return Precisions(**self.common(facts, rows), variants=self.variants)


PRECISION = Kind(
    name="precision",
    tab="Experiments",
    title="What precision does to acceptance",
    explanation="The same prompts with target, draft and KV cache at other precisions; each is loaded in turn.",
    help="measure how acceptance and speedup change with the precision of target, draft and KV cache",
    start="Vary the precision",
    plan=PrecisionPlan,
    options=(
        Option(
            "precisions",
            "Precisions",
            "such as 'as loaded,target bf16,cache u8', of target, draft and cache, or several joined with +",
            "names",
            PRECISIONS,
            choices=lambda pair: [each for each in PRECISIONS if pair.draft is not None or "draft" not in each],
            first=lambda pair: ("as loaded", "target f32", "target bf16", "cache u8"),
        ),
    ),
    without=("alternatives", "sequential"),
    prompts=Range(32, 4),
    limit=8,
    charts=("speedup", "acceptance", "length"),
)
