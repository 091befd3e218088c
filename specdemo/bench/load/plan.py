"""What a load run is to measure, and in which order.

In every repeat all levels come in another order, and at a level all decoding strategies one after the other, in an
order that is reversed in every second repeat, so that drift of the machine favours none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from random import Random

from specdemo.bench.load.results import PLAIN, Load, LoadHeader, LoadLine
from specdemo.bench.results import Header
from specdemo.bench.suites import Task
from specdemo.errors import SettingsError
from specdemo.models.checks import check_strategy, compared
from specdemo.records import ModelPair
from specdemo.records.load import MOST_IN_FLIGHT
from specdemo.settings import GenerationSettings
from specdemo.strategies import CONCURRENT

LEVELS = (1, 2, 4, 8, 16, 32)
REPEATS = 6


@dataclass(frozen=True)
class LoadPlan:
    """Blocks of every task, with each number of requests in flight (`levels`), in each of `repeats`.

    One request at a time is always among the levels, to compare outputs with. Several `lookaheads` are compared with
    each other. A block serves at least twice as many requests as are in flight, and at least `requests`. `seed` is
    that of all orders.
    """

    pair: ModelPair
    tasks: Sequence[Task]
    settings: GenerationSettings
    levels: Sequence[int] = LEVELS
    lookaheads: Sequence[int] = ()
    repeats: int = REPEATS
    requests: int = 0
    seed: int = 0

    @cached_property
    def variants(self) -> dict[str, GenerationSettings]:
        """The speculative ways to compare, by name: these settings', or one for each lookahead.

        Raises:
            SettingsError: a lookahead is out of its range, or has no effect with these settings.
        """
        if self.lookaheads and not has_lookahead(self.settings):
            raise SettingsError(
                "Only a constant policy has a lookahead to vary; choose that, or leave lookaheads out."
            )
        tried = [
            GenerationSettings.checked(**dict(self.settings) | {"num_assistant_tokens": lookahead})
            for lookahead in self.lookaheads
        ]
        return {each.strategy.words: each for each in tried or [self.settings]}

    @cached_property
    def header(self) -> LoadHeader:
        """What rows of this run have in common.

        Raises:
            SettingsError: as `variants`.
            LoadError: a model is not converted yet.
        """
        common = Header.of(self.pair, self.settings, (PLAIN, *self.variants), self.tasks)
        levels = tuple(sorted({1, *self.levels}))
        return LoadHeader(**dict(common), levels=levels, requests=self.requests, seed=self.seed)

    def check(self) -> None:
        """Check that several requests can be served at once, with outputs to compare.

        Raises:
            PairError, SettingsError: they cannot.
            LoadError: a model's tokenizer cannot be loaded.
        """
        if self.settings.engine not in CONCURRENT:
            raise SettingsError(
                f"The {self.settings.engine} engine serves one request at a time; choose the {CONCURRENT[0]} engine."
            )
        if self.settings.do_sample:
            raise SettingsError("Outputs under load are compared, so decoding must be greedy; switch sampling off.")
        if not self.levels or min(self.levels) < 1 or max(self.levels) > MOST_IN_FLIGHT:
            raise SettingsError(f"Requests in flight are from 1 to {MOST_IN_FLIGHT}; choose other numbers.")
        strategies = self.variants.values()
        models = compared(self.pair)
        for each in strategies:
            check_strategy(models, each.engine, each.strategy, each.sampling)

    def begun(self, lines: Sequence[LoadLine]) -> Load:
        """The run with what a journal holds of it."""
        rows = {line.row.key: line.row for line in lines if line.row is not None and line.row.repeat < self.repeats}
        return Load(
            header=self.header,
            variants=self.variants,
            tasks=tuple(self.tasks),
            date=datetime.now(UTC).date().isoformat(),
            repeats=self.repeats,
            environment=next((line.environment for line in lines if line.environment is not None), None),
            rows=tuple(rows.values()),
        )

    def order(self) -> Iterator[tuple[int, int, str]]:
        """Repeat, level and method of every block, in the order in which to measure them."""
        header = self.header
        methods = Random(self.seed).sample(header.methods, len(header.methods))
        for repeat in range(self.repeats):
            for level in Random(f"{self.seed} {repeat}").sample(header.levels, len(header.levels)):
                for method in methods if repeat % 2 else reversed(methods):
                    yield repeat, level, method


def has_lookahead(settings: GenerationSettings) -> bool:
    """Whether these settings decode with a lookahead that can be varied."""
    return "num_assistant_tokens" in settings.strategy.parameters()
