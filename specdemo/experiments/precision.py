"""Precision: how that of target, draft and KV cache changes acceptance, speed, and whether outputs are identical.

Each variant is loaded anew, so each is compared with plain decoding at its own precision; tokens per second say which
is fastest in itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from specdemo.errors import SettingsError, quoted
from specdemo.experiments.checkpoint import EngineFacts
from specdemo.experiments.kind import Kind, Option, Range
from specdemo.experiments.trials import TrialPlan, TrialRow
from specdemo.experiments.variants import Variants
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings, RuntimeSettings

PARTS = {"target": "precision", "draft": "draft_precision", "cache": "kv_cache_precision"}
"""What has a precision of its own, with its runtime setting."""
PRECISIONS = ("as loaded", "target f32", "target bf16", "draft f32", "draft bf16", "cache f32", "cache u8")


class Precisions(Variants):
    """A precision sweep, finished or not."""

    axis: ClassVar[str] = "precision"
    title: ClassVar[str] = "Precision sweep"

    def remarks(self) -> Iterator[str]:
        """What was in use, as far as the device says."""
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
        """The runtime settings of each variant.

        Raises:
            SettingsError: one is not a precision.
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
        """The same settings for each."""
        return dict.fromkeys(self.runtimes, self.settings)

    def check(self) -> None:
        """Check that there is a model here to load.

        Raises:
            SettingsError: a server decodes, or something is not a precision.
        """
        if self.pair.target.server is not None:
            raise SettingsError("A server chose its precision when it was started; choose a pair on this machine.")
        if not self.runtimes:
            raise SettingsError("There is nothing to compare; give at least one precision.")

    def pair_of(self, variant: str) -> ModelPair:
        """The pair at a variant's precision."""
        runtime = self.runtimes[variant]
        return self.pair if runtime == self.pair.runtime else self.pair.model_copy(update={"runtime": runtime})

    def session_of(self, variant: str) -> str:
        """Each variant is loaded on its own."""
        return variant

    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[TrialRow]) -> Precisions:
        """The sweep with these rows."""
        return Precisions(**self.common(facts, rows), variants=self.variants)


KIND = Kind(
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
