"""What to measure: prompts × settings × repeats.

An axis lists alternatives, each with the settings that it changes. Lookaheads, thresholds and policies share one
axis, since a run has one of them; strategies, temperatures, precisions and concurrency are axes of their own.
Variants are the combinations of one alternative from every axis that varies.

Every prompt runs with each variant in every repeat, in an order that is shuffled each time and between plain runs, so
that neither drift of the machine nor a variant's neighbours favour any of them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any, NamedTuple, Self

from pydantic import Field, ValidationError

from specdemo.errors import PairError, SettingsError, SpecdemoError, listed, quoted
from specdemo.experiments.suites import Task
from specdemo.models.checks import check_concurrent, check_strategy, with_tokenizers_compared
from specdemo.records import MOST_IN_FLIGHT, ModelPair, Record
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import CONCURRENT, ENGINES, EngineName, strategies, supports

ALL = "all"  # stands for every policy or strategy that the pair supports
MOST_VARIANTS = 500  # bounds a table and its charts; the widest useful grid has about 60
MOST_REPEATS = 1000  # bounds the time and the file of a run; an interval needs 6
MOST_MINUTES = 24 * 60  # a day
FRESH = 8  # fresh runs of the fastest setting, at least: 6 give an interval, 2 more make it worth quoting
CONDITIONS = ("temperature", "precision", "concurrency", "file")
"""Axes that one does not choose by their speedup. The conclusion says which setting is fastest at each of them."""

PARTS = {"target": "precision", "draft": "draft_precision", "cache": "kv_cache_precision"}
"""Components with a precision of their own, and the runtime setting of each."""
_AS_LOADED = "as loaded"


class Variant(Record):
    """A combination. `values` are its places on the axes, such as {"lookahead": 4, "concurrency": 8}.

    Without `concurrency`, requests run one at a time; with it, so many are decoded at once.
    """

    name: str
    values: dict[str, float | str]
    settings: GenerationSettings
    runtime: RuntimeSettings
    concurrency: int | None = None

    @property
    def session(self) -> str:
        """Name of the engine as loaded."""
        return f"{self.settings.engine} {self.values.get('precision', '')}".strip()


class Axes(Record):
    """What varies; an empty axis does not. Policies and strategies may be "all"."""

    lookaheads: tuple[int, ...] = ()
    thresholds: tuple[float, ...] = ()
    policies: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = ()
    precisions: tuple[str, ...] = ()
    concurrency: tuple[int, ...] = Field((), max_length=MOST_IN_FLIGHT)

    @classmethod
    def checked(cls, **values: Any) -> Self:
        """Build the axes.

        Raises:
            SettingsError: there is no such axis, or a value has another type.
        """
        unknown = values.keys() - cls.model_fields.keys()
        if unknown:
            raise SettingsError(f"There is no axis {quoted(min(unknown))}; vary {listed([*cls.model_fields])}.")
        try:
            return cls(**values)
        except ValidationError as error:
            where = str(error.errors()[0]["loc"][0])
            raise SettingsError(f"{where.capitalize()} cannot be {quoted(values[where])}; give a list.") from error


class _Alternative(NamedTuple):
    """A place on an axis. One that is `optional` is left out where the pair does not support it."""

    axis: str
    value: float | str
    changes: dict[str, Any]
    optional: bool = False

    @property
    def name(self) -> str:
        bare = self.axis in ("strategy", "precision")
        return (
            str(self.value)
            if bare
            else f"{self.axis} {self.value if isinstance(self.value, str) else f'{self.value:g}'}"
        )


def grid(pair: ModelPair, settings: GenerationSettings, axes: Axes) -> dict[str, Variant]:
    """Return all variants by name; the settings alone if nothing varies.

    Raises:
        SettingsError, PairError: a value is out of range, the pair does not support a variant, or there are too many.
        LoadError: OpenVINO refused a tokenizer.
    """
    pair = with_tokenizers_compared(pair)
    choices = [*_choices(pair, settings, axes)]
    if not choices and (axes.lookaheads or axes.thresholds or axes.policies):
        raise SettingsError(f"Lookaheads and thresholds have no effect with {settings.strategy.words}; vary others.")
    lists = [
        _strategies(pair, settings, axes.strategies),
        choices,
        [_temperature(value) for value in axes.temperatures],
        [_Alternative("precision", name, _precision(name)) for name in axes.precisions],
        [_Alternative("concurrency", number, {}) for number in axes.concurrency],
    ]
    combinations = [*product(*filter(None, lists))]
    if len(combinations) > MOST_VARIANTS:
        raise SettingsError(f"These are {len(combinations)} combinations; vary at most {MOST_VARIANTS}.")
    found: dict[str, Variant] = {}
    refused: SpecdemoError | None = None
    for alternatives in combinations:
        variant = _variant(pair, settings, alternatives)
        try:
            _check(pair, variant)
            found[variant.name] = variant
        except (PairError, SettingsError) as error:
            if not any(each.optional for each in alternatives):
                raise
            refused = error
    if not found:
        raise refused or SettingsError("There is nothing to try; give at least one value.")
    return found


def _variant(pair: ModelPair, settings: GenerationSettings, alternatives: Sequence[_Alternative]) -> Variant:
    changes = {name: value for each in alternatives for name, value in each.changes.items()}
    runtime = {name: changes.pop(name) for name in PARTS.values() if name in changes}
    values = {each.axis: each.value for each in alternatives}
    chosen = GenerationSettings.checked(**dict(settings) | changes)
    if "num_assistant_tokens" in changes and "num_assistant_tokens" not in chosen.strategy.parameters():
        raise SettingsError(f"A lookahead has no effect with {chosen.strategy.words}; leave one of them out.")
    return Variant(
        name=", ".join(each.name for each in alternatives) or chosen.strategy.words,
        values=values,
        settings=chosen,
        runtime=RuntimeSettings.checked(**pair.runtime.model_dump() | runtime),
        concurrency=int(values["concurrency"]) if "concurrency" in values else None,
    )


def _check(pair: ModelPair, variant: Variant) -> None:
    """Check that the pair supports a variant, before anything is loaded."""
    settings = variant.settings
    if variant.runtime != pair.runtime and pair.target.server is not None:
        raise SettingsError("A server chose its precision when it was started; choose a pair on this machine.")
    if variant.concurrency is None:
        check_strategy(pair, settings.engine, settings.strategy, settings.sampling)
        return
    if settings.engine not in CONCURRENT:
        raise SettingsError(f"The {settings.engine} engine serves one request at a time; choose {CONCURRENT[0]}.")
    if settings.do_sample:
        raise SettingsError("Outputs of several requests at once are compared; switch sampling off.")
    if not 1 <= variant.concurrency <= MOST_IN_FLIGHT:
        raise SettingsError(f"Concurrent requests are from 1 to {MOST_IN_FLIGHT}; choose other numbers.")
    check_concurrent(pair, settings.engine, settings.strategy, settings.sampling)


def _choices(pair: ModelPair, settings: GenerationSettings, axes: Axes) -> Iterator[_Alternative]:
    """Yield lookaheads, thresholds and policies of the settings' engine and drafter."""
    numbers = {"num_assistant_tokens": axes.lookaheads, "assistant_confidence_threshold": axes.thresholds}
    if axes.strategies:  # which name their policy
        if axes.thresholds or axes.policies:
            raise SettingsError("Thresholds and policies are part of a strategy; leave one of them out.")
        yield from (_Alternative("lookahead", n, {"num_assistant_tokens": n}) for n in axes.lookaheads)
        return
    able = [*strategies(settings.engine, pair.draft_kind, settings.drafter)]
    policies = {each.policy.name: each for each in able}
    unknown = next((name for name in axes.policies if name != ALL and name not in policies), None)
    if unknown is not None:
        raise SettingsError(f"There is no policy {quoted(unknown)} here; choose from {listed([*policies])}.")
    for axis, setting in (("lookahead", "num_assistant_tokens"), ("threshold", "assistant_confidence_threshold")):
        for each in able:
            for value in numbers[setting] if setting in each.parameters() else ():
                changes = {"policy": each.policy.name, setting: value}
                yield _Alternative(axis, value, changes, optional=len(able) > 1)
    for name, each in policies.items():
        if name in axes.policies or (ALL in axes.policies and not numbers.keys() & {*each.parameters()}):
            yield _Alternative("policy", name, {"policy": name}, optional=name not in axes.policies)


def available(pair: ModelPair, settings: GenerationSettings) -> dict[str, dict[str, Any]]:
    """Return every strategy that the pair supports, as changes of settings by names such as `traced auto`.

    Raises:
        LoadError: OpenVINO refused a tokenizer.
    """
    found, pair = {}, with_tokenizers_compared(pair)
    for engine in ENGINES:
        lacking = {
            name: GenerationSettings.model_fields[name].default for name, _ in settings if not supports(engine, name)
        }
        for strategy in strategies(engine, pair.draft_kind):
            changes = {**lacking, "engine": engine, "drafter": strategy.drafter.name, "policy": strategy.policy.name}
            try:
                chosen = GenerationSettings.checked(**dict(settings) | changes)
                check_strategy(pair, engine, chosen.strategy, chosen.sampling)
            except (PairError, SettingsError):  # not with these settings
                continue
            found[f"{engine} {strategy.name}"] = changes
    return found


def _strategies(pair: ModelPair, settings: GenerationSettings, names: Sequence[str]) -> list[_Alternative]:
    able = available(pair, settings) if names else {}
    for name in names:
        if name != ALL and name not in able:
            raise SettingsError(f"There is no strategy {quoted(name)} for this pair; choose from {', '.join(able)}.")
    chosen = able if ALL in names else dict.fromkeys(names)
    return [_Alternative("strategy", name, able[name]) for name in chosen]


def _temperature(value: float) -> _Alternative:
    """Return a temperature; 0 is greedy decoding."""
    return _Alternative(
        "temperature", value, {"do_sample": True, "temperature": value} if value else {"do_sample": False}
    )


def _precision(name: str) -> dict[str, str]:
    """Return the runtime settings of a precision such as "cache u8" or "target bf16 + draft f32"."""
    changes: dict[str, str] = {}
    for part in [] if name == _AS_LOADED else name.split("+"):
        what, _, value = part.strip().partition(" ")
        if what not in PARTS or not value:
            raise SettingsError(
                f"{quoted(part.strip())} is not a precision of {', '.join(PARTS)}; write such as 'cache u8'."
            )
        changes[PARTS[what]] = value
    return changes


class Group(NamedTuple):
    """Runs that share their plain neighbours: a prompt in one repeat, and the variants in the `order` to run them.

    Without a prompt, all of them are decoded at this `concurrency`.
    """

    repeat: int
    task: Task | None
    order: Sequence[str]
    fresh: bool = False
    concurrency: int | None = None


class Stage(NamedTuple):
    """Groups that need the same engine, and the share of the time limit until which they may run."""

    session: str
    engine: EngineName
    pair: ModelPair
    groups: Sequence[Group]
    until: float


Key = tuple[str, str, int, bool]
"""Variant, prompt, repeat, and whether it is a fresh run."""
TRYING = 0.6  # of a time limit, if the fastest runs again: more shrinks its interval, less tries too few settings


@dataclass(frozen=True)
class Plan:
    """What to measure. `seed` determines all orders.

    With `confirm`, the fastest variant runs again at the end, and only these fresh runs are quoted, since the fastest
    of many is partly the luckiest. `minutes` is an approximate time limit, counted from the first run; every variant
    runs at least once.
    """

    pair: ModelPair
    tasks: Sequence[Task]
    settings: GenerationSettings
    variants: Mapping[str, Variant]
    repeats: int = 3
    seed: int = 0
    minutes: float | None = None
    confirm: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= MOST_REPEATS:
            raise SettingsError(f"Repeats are from 1 to {MOST_REPEATS}; choose another number.")
        if self.minutes is not None and not 0 < self.minutes <= MOST_MINUTES:
            raise SettingsError(f"Minutes are from 0 to {MOST_MINUTES}; choose another number.")
        if not self.tasks:
            raise SettingsError("There is no prompt to measure; give one.")

    @property
    def total(self) -> int:
        """Number of rows without a time limit."""
        single = sum(variant.concurrency is None for variant in self.variants.values())
        per_repeat = single * len(self.tasks) + len(self.variants) - single
        return per_repeat * self.repeats + self.confirm * self.again * len(self.tasks)

    @property
    def again(self) -> int:
        """Number of fresh runs of the fastest variant on each prompt."""
        return max(-(-FRESH // len(self.tasks)), self.repeats if self.minutes is not None else 0)

    def covers(self, key: Key) -> bool:
        """Check if a row of a checkpoint belongs to this plan, which may have fewer repeats."""
        return key[2] < (self.again if key[3] else self.repeats)

    def stages(self, finished: Collection[Key]) -> Iterator[Stage]:
        """Yield what is left. GenAI keeps one speculative pipeline, so each drafter has its own stage."""
        kinds: dict[tuple[str, str, bool], list[Variant]] = {}
        for variant in self.variants.values():
            kind = variant.session, variant.settings.drafter, variant.concurrency is not None
            kinds.setdefault(kind, []).append(variant)
        done = 0
        for variants in kinds.values():
            done += len(variants)
            until = done / len(self.variants) * (TRYING if self.confirm else 1)
            yield self._stage(variants, finished, range(self.repeats), until)

    def confirming(self, name: str, finished: Collection[Key]) -> Stage:
        """Return the fresh runs of the fastest variant."""
        return self._stage([self.variants[name]], finished, range(self.again), 1.0, fresh=True)

    def _stage(
        self,
        variants: Sequence[Variant],
        finished: Collection[Key],
        repeats: range,
        until: float,
        *,
        fresh: bool = False,
    ) -> Stage:
        first = variants[0]
        groups = [*(self._blocks if first.concurrency else self._singles)(variants, repeats)]
        left = [
            group._replace(order=order, fresh=fresh)
            for group in groups
            if (order := [name for name in group.order if key_of(name, group, fresh=fresh) not in finished])
        ]
        pair = self.pair
        if first.runtime != pair.runtime:
            pair = pair.model_copy(update={"runtime": first.runtime})
        return Stage(first.session, first.settings.engine, pair, left, until)

    def _singles(self, variants: Sequence[Variant], repeats: range) -> Iterator[Group]:
        names = sorted(variant.name for variant in variants)
        for repeat in repeats:
            random = Random(f"{self.seed} {variants[0].session} {variants[0].settings.drafter} {repeat}")
            for task in random.sample(self.tasks, len(self.tasks)):
                yield Group(repeat, task, random.sample(names, len(names)))

    def _blocks(self, variants: Sequence[Variant], repeats: range) -> Iterator[Group]:
        levels = sorted({variant.concurrency or 1 for variant in variants})
        for repeat in repeats:
            random = Random(f"{self.seed} {repeat}")
            for level in random.sample(levels, len(levels)):
                names = [variant.name for variant in variants if variant.concurrency == level]
                yield Group(repeat, None, random.sample(names, len(names)), concurrency=level)

    def settings_of(self, name: str, repeat: int) -> GenerationSettings:
        """Return a variant's settings; each repeat samples with another seed."""
        settings = self.variants[name].settings
        return settings.model_copy(update={"seed": settings.seed + repeat}) if settings.do_sample else settings


def key_of(variant: str, group: Group, *, fresh: bool) -> Key:
    return variant, "" if group.task is None else group.task.name, group.repeat, fresh
