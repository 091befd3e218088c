"""What to measure: prompts × settings × repeats, and presets for common measurements.

Variants combine one alternative from every axis that varies. Strategies, lookaheads and thresholds share one axis,
since a run has one strategy, which takes one of these numbers or none. Every prompt runs with each variant in every
repeat, in an order that is shuffled each time and between plain runs, so that neither drift of the machine nor a
variant's neighbours favour any of them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any, NamedTuple

from pydantic import Field

from specdemo.capabilities import DEFAULT_ENGINE, ENGINES, EngineName, strategies, supports
from specdemo.errors import PairError, SettingsError, SpecdemoError, listed, quoted
from specdemo.experiments.prompts import Task
from specdemo.models.catalogue import changed_settings, pair_settings
from specdemo.models.checks import check_strategy, with_tokenizers_compared
from specdemo.records import MAX_CONCURRENCY, ModelPair, Record
from specdemo.settings import GenerationSettings, SettingsModel
from specdemo.strategies import STRATEGIES

ALL_STRATEGIES, SAME_DRAFTER = "all", "same"  # that the pair supports; of the same engine and drafter
MAX_VARIANTS = 500  # bounds a table and its charts; the widest useful grid has about 60
MAX_REPEATS = 1000  # bounds the time and the file of a run
MAX_MINUTES = 24 * 60  # a day
MAX_REPEATS_IN_TIME = 12  # within a time limit: more would hardly narrow an interval that covers prompts and drift
# conditions rather than choices: the fastest setting is looked for under each of them
CONDITIONS = ("temperature", "concurrency")
# the axis of a strategy's number; the field of `Axes` is its plural
_AXES = {"num_assistant_tokens": "lookahead", "assistant_confidence_threshold": "threshold"}


class Variant(Record):
    """A combination. `values` are its places on the axes, such as {"lookahead": 4, "concurrency": 8}."""

    name: str
    values: dict[str, float | str]
    settings: GenerationSettings

    @property
    def concurrency(self) -> int | None:
        """Requests decoded at once; None if they run one at a time, between plain runs."""
        return int(self.values["concurrency"]) if "concurrency" in self.values else None


class Axes(SettingsModel):
    """The axes that vary; an empty one does not. Strategies are combined with the numbers that they take."""

    lookaheads: tuple[int, ...] = Field((), description="such as 1-8,12")
    thresholds: tuple[float, ...] = Field((), description="confidence thresholds, such as 0.3,0.6")
    strategies: tuple[str, ...] = Field(
        (),
        description="engine and strategy, such as 'traced auto,genai constant'; all: those that the pair supports; "
        "same: those of the same engine and drafter",
    )
    temperatures: tuple[float, ...] = Field((), description="such as 0,0.4,0.8; 0 is greedy decoding")
    concurrency: tuple[int, ...] = Field(
        (), max_length=MAX_CONCURRENCY, description="numbers of requests at once, such as 1,2,4,8"
    )


class _Alternative(NamedTuple):
    """Places on axes, and their part of a variant's name; left out if it is `optional` and a pair refuses it."""

    values: dict[str, float | str]
    changes: dict[str, Any]
    name: str
    optional: bool = False


def grid(
    pair: ModelPair, settings: GenerationSettings, axes: Axes, preset: Collection[str] = ()
) -> dict[str, Variant]:
    """All variants by name; the settings alone if nothing varies. `preset`: axes that may have no effect.

    SettingsError, PairError: a value is out of range, the pair does not support a variant, or there are too many.
    LoadError: OpenVINO refused a tokenizer.
    """
    pair = with_tokenizers_compared(pair)
    lists = [
        _strategies(pair, settings, axes, preset),
        [_Alternative({"temperature": each}, _sampling(each), f"temperature {each:g}") for each in axes.temperatures],
        [_Alternative({"concurrency": number}, {}, f"concurrency {number}") for number in axes.concurrency],
    ]
    combinations = [*product(*filter(None, lists))]
    if len(combinations) > MAX_VARIANTS:
        raise SettingsError(f"These are {len(combinations)} combinations; vary at most {MAX_VARIANTS}.")
    variants: dict[str, Variant] = {}
    refused: SpecdemoError | None = None
    for alternatives in combinations:
        try:
            variant = _variant(pair, settings, alternatives)
            _check(pair, variant)
            variants[variant.name] = variant
        except (PairError, SettingsError) as error:
            if not any(alternative.optional for alternative in alternatives):
                raise
            refused = error
    if refused is not None and not variants:
        raise refused
    return variants


def _variant(pair: ModelPair, settings: GenerationSettings, alternatives: Sequence[_Alternative]) -> Variant:
    changes = {name: value for alternative in alternatives for name, value in alternative.changes.items()}
    chosen = changed_settings(pair, settings, **changes)
    return Variant(
        name=", ".join(alternative.name for alternative in alternatives) or chosen.strategy.description,
        values={axis: value for alternative in alternatives for axis, value in alternative.values.items()},
        settings=chosen,
    )


def _check(pair: ModelPair, variant: Variant) -> None:
    settings, concurrency = variant.settings, variant.concurrency
    if concurrency is not None:
        if not ENGINES[settings.engine].concurrent:
            raise SettingsError(
                f"The {settings.engine} engine serves one request at a time; choose {DEFAULT_ENGINE}."
            )
        if settings.do_sample:
            raise SettingsError("Outputs of several requests at once are compared; switch sampling off.")
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise SettingsError(f"Concurrent requests are from 1 to {MAX_CONCURRENCY}; choose other numbers.")
    check_strategy(pair, settings.engine, settings.strategy, settings.sampling)


def available_strategies(pair: ModelPair, settings: GenerationSettings) -> dict[str, dict[str, Any]]:
    """Changes of settings by strategy, such as `traced auto`. LoadError: OpenVINO refused a tokenizer."""
    able, pair, fields = {}, with_tokenizers_compared(pair), GenerationSettings.model_fields.items()
    for engine in ENGINES:
        lacking = {name: setting.default for name, setting in fields if not supports(engine, name)}
        for strategy in strategies(engine, pair.draft_kind):
            changes = {**lacking, "engine": engine, "drafter": strategy.drafter.name, "policy": strategy.policy.name}
            try:
                chosen = changed_settings(pair, settings, **changes)
                check_strategy(pair, engine, chosen.strategy, chosen.sampling)
            except (PairError, SettingsError):  # not with these settings
                continue
            able[f"{engine} {strategy.name}"] = changes
    return able


def _strategies(
    pair: ModelPair, settings: GenerationSettings, axes: Axes, preset: Collection[str]
) -> list[_Alternative]:
    """Strategies with each of the numbers that they take. Without `axes.strategies`, those of the same engine and
    drafter that take one.
    """
    numbers: dict[str, tuple[float, ...]] = {setting: getattr(axes, f"{axis}s") for setting, axis in _AXES.items()}
    if not (axes.strategies or any(numbers.values())):
        return []
    able, alternatives = available_strategies(pair, settings), list[_Alternative]()
    for name in axes.strategies:
        if name not in (*able, ALL_STRATEGIES, SAME_DRAFTER):
            raise SettingsError(f"There is no strategy {quoted(name)} for this pair; choose from {', '.join(able)}.")
    alone = not {*axes.strategies} - {SAME_DRAFTER}  # then names need no strategy
    own = settings.engine, settings.drafter
    groups = {
        ALL_STRATEGIES: [*able],
        SAME_DRAFTER: [name for name, of in able.items() if (of["engine"], of["drafter"]) == own],
    }
    named = axes.strategies or (SAME_DRAFTER,)
    chosen = dict.fromkeys(name for entry in named for name in groups.get(entry, [entry]))
    taken = {setting for name in chosen for setting in STRATEGIES[name.split()[1]].parameters()}
    for setting, values_of in numbers.items():
        if values_of and setting not in taken and not alone and f"{_AXES[setting]}s" not in preset:
            raise SettingsError(
                f"A {_AXES[setting]} has no effect with {listed([*chosen])}; choose other strategies."
            )
    for name in chosen:
        strategy, optional = STRATEGIES[name.split()[1]], bool(axes.strategies) and name not in axes.strategies
        numbered = [(setting, value) for setting in strategy.parameters() for value in numbers.get(setting, ())]
        for setting, value in numbered:
            axis = _AXES[setting]
            place, changes = f"{axis} {value:g}", able[name] | {setting: value}
            values: dict[str, float | str] = {axis: value} if alone else {"strategy": name, axis: value}
            alternatives.append(_Alternative(values, changes, place if alone else f"{name}, {place}", optional))
        if axes.strategies and not numbered:
            shown = f"policy {strategy.policy.name}" if alone else name
            alternatives.append(_Alternative({"strategy": name}, able[name], shown, optional))
    if not alternatives:
        raise SettingsError(
            f"Lookaheads and thresholds do not affect {settings.strategy.description}; vary something else."
        )
    return alternatives


def _sampling(temperature: float) -> dict[str, Any]:
    return {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}


class Group(NamedTuple):
    """Runs that share their plain neighbours: a prompt in one repeat, and the variants in the `order` to run them.
    Without a prompt, all of them are decoded at the variants' concurrency.
    """

    repeat: int
    task: Task | None
    order: Sequence[str]


class Stage(NamedTuple):
    """Groups that need the same engine, and the share of the time limit until which they may run."""

    engine: EngineName
    groups: Sequence[Group]
    until: float


@dataclass(frozen=True)
class Plan:
    """`minutes` include loading and step costs; one run at least is finished."""

    pair: ModelPair
    tasks: Sequence[Task]
    settings: GenerationSettings
    variants: Mapping[str, Variant]
    repeats: int = 3
    minutes: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= MAX_REPEATS:
            raise SettingsError(f"Repeats are from 1 to {MAX_REPEATS}; choose another number.")
        if self.minutes is not None and not 0 < self.minutes <= MAX_MINUTES:
            raise SettingsError(f"Minutes are from 0 to {MAX_MINUTES}; choose another number.")
        if not self.tasks:
            raise SettingsError("There is no prompt to measure; give one.")

    @property
    def total(self) -> int:
        single = sum(variant.concurrency is None for variant in self.variants.values())
        per_repeat = single * len(self.tasks) + len(self.variants) - single
        return per_repeat * self.repeats

    def stages(self) -> Iterator[Stage]:
        """GenAI keeps one speculative pipeline, so each drafter has its own stage."""
        kinds: dict[tuple[str, str, bool], list[Variant]] = {}
        for variant in self.variants.values():
            kind = variant.settings.engine, variant.settings.drafter, variant.concurrency is not None
            kinds.setdefault(kind, []).append(variant)
        done = 0
        for variants in kinds.values():
            groups = [  # every stage begins with the same prompts
                Group(repeat, task, order)
                for repeat in range(self.repeats)
                for task, order in self._shuffled(variants, Random(repeat))
            ]
            done += len(variants)
            yield Stage(variants[0].settings.engine, groups, done / len(self.variants))

    def _shuffled(self, variants: Sequence[Variant], random: Random) -> Iterator[tuple[Task | None, Sequence[str]]]:
        by_concurrency: dict[int | None, list[str]] = {}
        for variant in sorted(variants, key=lambda variant: variant.name):
            by_concurrency.setdefault(variant.concurrency, []).append(variant.name)
        for concurrency in random.sample([*by_concurrency], len(by_concurrency)):
            names = by_concurrency[concurrency]
            for task in random.sample(self.tasks, len(self.tasks)) if concurrency is None else [None]:
                yield task, random.sample(names, len(names))

    def settings_of(self, name: str, repeat: int) -> GenerationSettings:
        """Each repeat samples with another seed."""
        settings = self.variants[name].settings
        return settings.model_copy(update={"seed": settings.seed + repeat}) if settings.do_sample else settings


@dataclass(frozen=True)
class Preset:
    """A command in the terminal, a choice on the page, and defaults of a plan. With `engine`, the default policy is a
    constant lookahead; `limit` is the number of prompts.
    """

    name: str
    title: str
    help: str
    axes: Axes = field(default_factory=Axes)
    engine: EngineName | None = None
    limit: int | None = None
    repeats: int = 3
    minutes: float | None = None

    def settings(self, pair: ModelPair, **chosen: Any) -> GenerationSettings:
        local = self.engine is not None and pair.target.server is None
        needed = {"engine": self.engine, "policy": "constant"} if local else {}
        return pair_settings(pair, **needed | chosen)

    def plan(
        self,
        pair: ModelPair,
        tasks: Sequence[Task],
        settings: GenerationSettings,
        axes: Mapping[str, Any] | None = None,
        *,
        repeats: int | None = None,
        minutes: float | None = None,
    ) -> Plan:
        """Put these axes in place of the preset's. Without `repeats` and `minutes`, the preset's count; within a time
        limit, repeats go on until it is over. SpecdemoError: a value is out of range, or the pair refuses it.
        """
        chosen = Axes.checked(**dict(self.axes) | dict(axes or {}))
        if chosen.concurrency:  # a chat's later turns would need the answers to the earlier ones
            tasks = [task for task in tasks if not task.before]
        limit = minutes if minutes is not None or repeats is not None else self.minutes
        repeats = repeats or (MAX_REPEATS_IN_TIME if limit is not None else self.repeats)
        preset = Axes.model_fields.keys() - (axes or {}).keys()
        return Plan(pair, tasks, settings, grid(pair, settings, chosen, preset), repeats, limit)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "tune",
            "Find the fastest setting",
            "find the fastest lookahead, confidence threshold or policy for your prompts",
            # eight lookaheads show the curve; more, between which it hardly changes, would leave each fewer runs
            Axes(lookaheads=(1, 2, 3, 4, 5, 6, 8, 10), thresholds=(0.3, 0.6), strategies=(SAME_DRAFTER,)),
            limit=2,
            minutes=2,
        ),
        Preset(
            "bench",
            "Compare all strategies",
            "measure every decoding strategy on suites of tasks",
            Axes(strategies=(ALL_STRATEGIES,)),
        ),
        Preset(
            "load",
            "Test several requests at once",
            "measure how the speedup changes with several requests at once",
            Axes(concurrency=(1, 2, 4, 8, 16)),
            DEFAULT_ENGINE,
            limit=8,
            repeats=6,  # one row a repeat; the interval of fewer than five is a guess
        ),
        Preset("measure", "Nothing", "measure a grid; options with several values are its axes"),
    )
}
