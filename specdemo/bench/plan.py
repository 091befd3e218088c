"""What a benchmark is to run, and in which order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from random import Random

from specdemo.bench.methods import available
from specdemo.bench.results import Bench, Header, JournalLine, Row
from specdemo.bench.suites import Task
from specdemo.errors import SettingsError, quoted
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import ENGINES, EngineName

REPEATS = 3

Batch = list[tuple[int, Task, list[str]]]
"""Repeats, prompts, and the methods to run, in their order."""


@dataclass(frozen=True)
class BenchPlan:
    """Every task with each of these methods, or with all that the pair supports, in each of `repeats`.

    `seed` is that of all orders.
    """

    pair: ModelPair
    tasks: Sequence[Task]
    settings: GenerationSettings
    methods: Sequence[str] | None = None
    repeats: int = REPEATS
    seed: int = 0

    @cached_property
    def strategies(self) -> dict[str, GenerationSettings]:
        """The settings of each method.

        Raises:
            SettingsError: there is no such method for this pair.
            LoadError: a model's tokenizer cannot be loaded.
        """
        strategies = available(self.pair, self.settings)
        chosen = tuple(dict.fromkeys(strategies if self.methods is None else self.methods))
        unknown = next((name for name in chosen if name not in strategies), None)
        if unknown is not None or not chosen:
            raise SettingsError(
                f"There is no method {quoted(unknown)} for this pair; choose from {', '.join(strategies)}."
            )
        return {name: strategies[name] for name in chosen}

    @cached_property
    def header(self) -> Header:
        """What rows of this benchmark have in common.

        Raises:
            SettingsError: as `ways`.
            LoadError: a model is not converted yet.
        """
        return Header.of(self.pair, self.settings, tuple(self.strategies), self.tasks)

    def begun(self, lines: Sequence[JournalLine]) -> Bench:
        """The benchmark with what a journal holds of it."""
        rows = {line.row.key: line.row for line in lines if line.row is not None and line.row.repeat < self.repeats}
        return Bench(
            header=self.header,
            tasks=tuple(self.tasks),
            date=datetime.now(UTC).date().isoformat(),
            repeats=self.repeats,
            engines={line.engine: line.facts for line in lines if line.engine is not None and line.facts is not None},
            rows=tuple(rows.values()),
        )

    def ways_of(self, engine: EngineName) -> dict[str, GenerationSettings]:
        """The settings of the methods of one engine."""
        return {name: settings for name, settings in self.strategies.items() if settings.engine == engine}

    def missing(self, rows: Iterable[Row]) -> dict[EngineName, list[Batch]]:
        """What is left to run besides these rows, for each engine that has something left."""
        finished, random = {row.key for row in rows}, Random(self.seed)
        left = {engine: self._batches(engine, finished, random) for engine in ENGINES}
        return {engine: batches for engine, batches in left.items() if batches}

    def _batches(self, engine: EngineName, finished: set[tuple[str, str, int]], random: Random) -> list[Batch]:
        """One batch per drafter: GenAI keeps one kind of speculative pipeline, and a new one starts cold."""
        batches, strategies = [], self.ways_of(engine)
        for drafter in dict.fromkeys(settings.drafter for settings in strategies.values()):
            mine, batch = (
                sorted(strategy for strategy in strategies if strategies[strategy].drafter == drafter),
                Batch(),
            )
            for repeat in range(self.repeats):
                for task in random.sample(self.tasks, len(self.tasks)):
                    order = random.sample(mine, len(mine))
                    missing = [strategy for strategy in order if (strategy, task.name, repeat) not in finished]
                    if missing:
                        batch.append((repeat, task, missing))
            if batch:
                batches.append(batch)
        return batches
