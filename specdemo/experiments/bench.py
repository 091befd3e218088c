"""The benchmark: suites of tasks, decoded with every strategy that the pair supports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specdemo.engines import load_engine
from specdemo.errors import PairError, SettingsError, quoted
from specdemo.experiments.bench_result import Bench
from specdemo.experiments.checkpoint import EngineFacts
from specdemo.experiments.plan import Extras, Kind, Option, Range, Stop, never
from specdemo.experiments.trials import TrialPlan, TrialRow
from specdemo.measure import WARM_UP_PROMPT, Loader, measure_bound, measure_memory
from specdemo.models.checks import check_strategy, with_tokenizers_compared
from specdemo.models.pairs import default_drafter, initial_settings
from specdemo.records import SIDES, ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import ENGINES, STRATEGIES, EngineName, strategies, supports

REPEATS = 3
_FIRST = ("traced constant", "traced auto", "genai constant")  # preselected on the page


def methods() -> list[str]:
    """Return the short names of all strategies except those behind a switch, which have settings of their own."""
    return [name for name, strategy in STRATEGIES.items() if strategy.switch is None]


def widest(pair: ModelPair) -> EngineName:
    """Return the engine that supports the most decoding strategies for this pair."""
    able = [name for name in ENGINES if ENGINES[name].local == (pair.target.server is None)]
    return max(able, key=lambda name: len([*strategies(name, pair.draft_kind)]))


def available(pair: ModelPair, settings: GenerationSettings) -> dict[str, GenerationSettings]:
    """Return every decoding strategy that this pair supports, keyed by names such as `traced auto`.

    Raises:
        LoadError: OpenVINO refused a tokenizer.
    """
    found, pair = {}, with_tokenizers_compared(pair)
    for engine in ENGINES:
        common = {name: value for name, value in settings if supports(engine, name)}
        for strategy in strategies(engine, pair.draft_kind):
            if strategy.switch is not None:
                continue
            named = {"engine": engine, "drafter": strategy.drafter.name, "policy": strategy.policy.name}
            try:
                chosen = GenerationSettings.checked(**{**common, **named})
                check_strategy(pair, engine, chosen.strategy, chosen.sampling)
            except (PairError, SettingsError):  # not with these settings
                continue
            found[f"{engine} {strategy.name}"] = chosen
    return found


@dataclass(frozen=True)
class BenchPlan(TrialPlan[Bench]):
    """Every task with each of these methods; None means all that the pair supports."""

    methods: Sequence[str] | None = None

    @cached_property
    def variants(self) -> dict[str, GenerationSettings]:
        """Settings of each method.

        Raises:
            SettingsError: this pair has no such method.
            LoadError: a model's tokenizer cannot be loaded.
        """
        able = available(self.pair, self.settings)
        chosen = tuple(dict.fromkeys(able if self.methods is None else self.methods))
        unknown = next((name for name in chosen if name not in able), None)
        if unknown is not None or not chosen:
            raise SettingsError(f"There is no method {quoted(unknown)} for this pair; choose from {', '.join(able)}.")
        return {name: able[name] for name in chosen}

    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[TrialRow]) -> Bench:
        return Bench(**self.common(facts, rows))

    def extras(self, found: Bench, stop: Stop) -> Bench:
        """Add memory use and the bandwidth limit."""
        return with_hardware(found, stop=stop)


def with_hardware(result: Bench, load: Loader = load_engine, *, stop: Callable[[], bool] = never) -> Bench:
    """Return the result with memory use on every engine that ran, and the speed limit set by memory bandwidth.

    Once `stop` returns True, the result is unchanged.

    Raises:
        SpecdemoError: a model cannot be loaded, or a child process died.
    """
    pair, uses = result.header.pair, []
    if pair.target.server is not None:  # nothing runs on this machine
        return result
    ran = {row.prompt for row in result.rows if row.trial is not None}
    prompt = next((task.prompt for task in result.tasks if task.name in ran), WARM_UP_PROMPT)
    for engine in result.engines:
        settings = result.header.settings.model_copy(
            update={"engine": engine, "policy": "constant", "drafter": default_drafter(pair)}
        )
        uses += [measure_memory(pair, prompt, settings, side, load, stop) for side in SIDES]
    if stop():
        return result
    facts = next(iter(result.engines.values()), None)
    middle = result.header.settings.max_new_tokens // 2
    bound = measure_bound(pair, facts.environment, middle) if facts is not None else None
    return result.model_copy(update={"memory": tuple(filter(None, uses)), "bound": bound})


def _settings(pair: ModelPair, **chosen: Any) -> GenerationSettings:
    return initial_settings(pair, **{"engine": widest(pair)} | chosen)


def _methods(pair: ModelPair) -> list[str]:
    return list(available(pair, _settings(pair)))


def _first_methods(pair: ModelPair) -> list[str]:
    able = _methods(pair)
    return [method for method in _FIRST if method in able] or able[:1]


KIND = Kind(
    name="bench",
    tab="Benchmark",
    title="Every decoding strategy, on suites of tasks",
    explanation="Each speculative run stands between two plain runs of its engine. A stopped benchmark keeps its "
    "finished rows and resumes from there.",
    help="measure every decoding strategy on suites of tasks",
    start="Run the benchmark",
    plan=BenchPlan,
    options=(
        Option(
            "methods",
            "Methods",
            "such as 'traced auto,genai constant' (default: all that the pair supports of "
            + ", ".join(
                f"{engine} {name}" for engine in ENGINES for name in methods() if engine in STRATEGIES[name].engines
            )
            + ")",
            "names",
            choices=_methods,
            first=_first_methods,
        ),
    ),
    settings=_settings,
    begin=_settings,
    without=("engine", "drafter", "policy"),  # set by the method
    extras=Extras("hardware", "Memory and bandwidth", "loads each engine again, in separate processes"),
    compares=True,
    prompts=Range(50, 5),
    repeats=Range(10, REPEATS),
    why="of every run",
    charts=("speedup", "length", "position", "accepted", "passes", "against"),
    tables=("advice", "against", "table", "lengths", "positions", "thinking"),
)
