"""Common measurements, as names in the terminal and choices on the page; every one is a plan with other defaults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specdemo.experiments.plan import ALL, Axes, Plan, grid
from specdemo.experiments.suites import Task
from specdemo.models.pairs import pair_settings
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import CONCURRENT, ENGINES, EngineName


def _begin(pair: ModelPair, on: EngineName | None = None, **chosen: Any) -> GenerationSettings:
    """Return a pair's initial settings, with a constant lookahead on this engine if one is given."""
    here = {} if on is None or pair.target.server is not None else {"engine": on, "policy": "constant"}
    return pair_settings(pair, **here | chosen)


@dataclass(frozen=True)
class Preset:
    """What varies, and for how long. `settings` are those that do not vary; `limit` is the number of prompts."""

    name: str
    title: str
    help: str
    axes: Axes = field(default_factory=Axes)
    settings: Callable[..., GenerationSettings] = _begin
    limit: int | None = None
    repeats: int = 3
    minutes: float | None = None
    confirm: bool = False

    def plan(
        self,
        pair: ModelPair,
        tasks: Sequence[Task],
        settings: GenerationSettings,
        axes: Mapping[str, Any] | None = None,
        *,
        repeats: int | None = None,
        minutes: float | None = None,
        seed: int = 0,
    ) -> Plan:
        """Return the plan with these axes in place of the preset's.

        Without `repeats` and `minutes`, the preset's count. Within a time limit, repeats go on until it is over.

        Raises:
            SpecdemoError: the pair does not support it, or a value is out of range.
        """
        chosen = Axes.checked(**dict(self.axes) | dict(axes or {}))
        if chosen.concurrency:  # a chat's later turns would need the answers to the earlier ones
            tasks = [task for task in tasks if not task.before]
        limit = minutes if minutes is not None or repeats is not None else self.minutes
        return Plan(
            pair,
            tasks,
            settings,
            grid(pair, settings, chosen),
            repeats=repeats or (_MANY if limit is not None else self.repeats),
            seed=seed,
            minutes=limit,
            confirm=self.confirm,
        )


_MANY = 12  # repeats within a time limit: more would hardly narrow an interval that covers prompts and drift


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "tune",
            "The fastest setting",
            "find the fastest lookahead, confidence threshold or policy for your prompts",
            # eight lookaheads show the curve; more, between which it hardly changes, would leave each fewer runs
            Axes(lookaheads=(1, 2, 3, 4, 5, 6, 8, 10), thresholds=(0.3, 0.6), policies=(ALL,)),
            limit=2,
            minutes=2,
            confirm=True,
        ),
        Preset(
            "bench", "Every strategy", "measure every decoding strategy on suites of tasks", Axes(strategies=(ALL,))
        ),
        Preset(
            "load",
            "Several requests at once",
            "measure how the speedup changes with several requests at once",
            Axes(concurrency=(1, 2, 4, 8, 16)),
            partial(_begin, on=CONCURRENT[0]),
            limit=8,
            repeats=6,  # one row a repeat, and an interval needs six
        ),
        Preset(
            "temperature",
            "Sampling temperature",
            "measure how acceptance and speedup change with the sampling temperature",
            Axes(temperatures=(0.0, 0.4, 0.8, 1.2)),
            partial(_begin, on=next(name for name, engine in ENGINES.items() if engine.samples_exactly)),
            limit=8,
        ),
        Preset(
            "precision",
            "Precision",
            "measure how acceptance and speedup change with the precision of target, draft and KV cache",
            Axes(precisions=("as loaded", "target f32", "target bf16", "cache u8")),
            limit=8,
        ),
        Preset("measure", "Nothing", "measure prompts × settings × repeats: give what varies"),
    )
}
