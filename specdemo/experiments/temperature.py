"""Temperature: how α, τ and the speedup change as sampling gets freer.

A draft proposes its likeliest token, or draws one; the target accepts it with a probability that falls as both
distributions flatten and part. Greedy decoding stands for temperature 0. Every sampled run draws anew: repeats have
seeds of their own, the same on both sides.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

from specdemo.experiments.checkpoint import EngineFacts
from specdemo.experiments.kind import Kind, Option, Range, begin
from specdemo.experiments.trials import TrialPlan, TrialRow
from specdemo.experiments.variants import Variants
from specdemo.models.checks import check_strategy, compared
from specdemo.settings import GenerationSettings

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)


class Temperatures(Variants):
    """A temperature sweep, finished or not."""

    axis: ClassVar[str] = "temperature"
    title: ClassVar[str] = "Temperature sweep"

    def value_of(self, name: str) -> float:
        """The temperature."""
        return float(name.rpartition(" ")[2])

    def remarks(self) -> Iterator[str]:
        """What sampling means on this engine."""
        settings = self.header.settings
        yield (
            f"Sampled with top-p {settings.top_p:g}, top-k {settings.top_k}, and another seed in every repeat; 0 is "
            "greedy decoding."
        )
        if settings.engine == "genai":
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
        """The settings at each temperature.

        Raises:
            SettingsError: a temperature is out of its range.
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
            PairError, SettingsError: it cannot, or a temperature is out of its range.
        """
        pair = compared(self.pair)
        for each in self.variants.values():
            check_strategy(pair, each.engine, each.strategy, each.sampling)

    def settings_of(self, variant: str, repeat: int) -> GenerationSettings:
        """A temperature's settings, with a seed of this repeat."""
        settings = self.variants[variant]
        return settings.model_copy(update={"seed": settings.seed + repeat}) if settings.do_sample else settings

    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[TrialRow]) -> Temperatures:
        """The sweep with these rows."""
        return Temperatures(**self.common(facts, rows), variants=self.variants)


_begins = partial(begin, on="traced")
"""The settings that a pair begins with, on the engine that samples exactly."""


KIND = Kind(
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
    begin=_begins,
    without=("do_sample", "temperature", "alternatives", "sequential"),
    prompts=Range(32, 4),
    limit=8,
    charts=("speedup", "acceptance", "length"),
)
