"""What a benchmark found, and the table that follows from it.

A row is one finished trial. A speedup is never reported without whether the outputs were identical.
"""

import hashlib
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, Self

from specdemo.analysis.intervals import Summary, summarise
from specdemo.bench.journal import Heading
from specdemo.bench.suites import Task
from specdemo.measure.hardware import Bound, MemoryUse
from specdemo.models.converted import folder_of
from specdemo.models.folder import files_digest
from specdemo.records import Costs, Environment, ModelPair, Record, Servers, Trial
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName

ALL = "all tasks"
_DIGITS = 4  # so many addresses share them that guessing does not tell which one is meant


class Row(Record):
    """One trial: which decoding strategy, which prompt, which repeat. Without a `trial`, `problem` says why."""

    engine: EngineName
    method: str
    task: str
    prompt: str
    repeat: int
    trial: Trial | None
    problem: str | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Engine and method, prompt, and repeat."""
        return f"{self.engine} {self.method}", self.prompt, self.repeat


class Cell(Summary):
    """The results of one decoding strategy on one kind of task.

    `mean` and `deviation`, a sample standard deviation, are over the repeats, each of which contributes the plain
    seconds of all its trials / the speculative ones. `deviation` is None for a single repeat. Tokens per second are
    those of the speculative runs and of their plain neighbours.
    """

    engine: EngineName
    method: str
    task: str
    mean: float
    deviation: float | None
    repeats: int
    identical_runs: int
    runs: int
    tokens_per_second: float
    plain_tokens_per_second: float


class EngineFacts(Record):
    """What is known about an engine apart from the trials."""

    environment: Environment
    costs: Costs | None


class JournalLine(Record):
    """A finished row, or the facts about an engine."""

    row: Row | None = None
    engine: EngineName | None = None
    facts: EngineFacts | None = None


class Header(Heading):
    """What a benchmark measures; rows of a different one must not be mixed in.

    `models` are digests of the files of target and draft, since a folder of the same name can hold other weights;
    `servers` those of which server each side has, which are too short to find an address with.
    """

    pair: ModelPair
    models: tuple[str, ...]
    servers: tuple[str, ...] = ()
    settings: GenerationSettings
    methods: tuple[str, ...]
    prompts: str  # digest

    @classmethod
    def of(cls, pair: ModelPair, settings: GenerationSettings, methods: Sequence[str], tasks: Sequence[Task]) -> Self:
        """The header of a benchmark of these."""
        digest = hashlib.sha256("\n".join(task.model_dump_json() for task in tasks).encode()).hexdigest()
        here = [model for model in (pair.target, pair.draft) if model is not None and model.path is not None]
        models = tuple(files_digest(folder_of(model)) for model in here)
        return cls(
            pair=pair,
            models=models,
            servers=_digests(pair.servers),
            settings=settings,
            methods=tuple(methods),
            prompts=digest,
        )

    def differences(self, begun: Self) -> list[str]:
        """How that one differs, in words; the order of methods does not matter."""
        runtime, begun_runtime = self.pair.runtime, begun.pair.runtime
        pair, begun_pair = (each.pair.model_dump(mode="json", exclude={"runtime"}) for each in (self, begun))
        same = {
            "another pair": pair == begun_pair,  # paths are left out when it is dumped
            "other model files": self.models == begun.models,
            "other servers": self.servers == begun.servers,
            "other settings": (self.settings, runtime) == (begun.settings, begun_runtime),
            "other methods": set(self.methods) == set(begun.methods),
            "other prompts": self.prompts == begun.prompts,
        }
        return [difference for difference, equal in same.items() if not equal]


def _digests(servers: Servers | None) -> tuple[str, ...]:
    """A few digits for each side's server, by which another one is noticed though addresses are not kept."""
    told = [] if servers is None else [servers.plain, servers.speculative]
    texts = ["" if each is None else f"{each.url} {each.model} {each.kind}" for each in told]
    return tuple(hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for text in texts)


class Bench(Record):
    """A benchmark, finished or not. `memory` and `bound` are None if they were not measured."""

    header: Header
    tasks: tuple[Task, ...]
    date: str = ""  # on which it began or, after an interruption, went on
    repeats: int
    engines: dict[EngineName, EngineFacts]
    rows: tuple[Row, ...]
    memory: tuple[MemoryUse, ...] = ()
    bound: Bound | None = None

    @property
    def total(self) -> int:
        """Number of rows."""
        return len(self.tasks) * self.repeats * len(self.header.methods)

    @property
    def complete(self) -> bool:
        """Whether every method ran on every prompt in every repeat."""
        return len(self.rows) == self.total


def cells(result: Bench) -> list[Cell]:
    """The table: every decoding strategy on every kind of task, then on all; cells without a trial are left out."""
    kinds = [*dict.fromkeys(task.task for task in result.tasks), ALL]
    rows: dict[tuple[EngineName, str], dict[str, list[Row]]] = {}
    for row in result.rows:
        strategy = rows.setdefault((row.engine, row.method), {})
        for kind in (row.task, ALL):
            strategy.setdefault(kind, []).append(row)
    found = []
    for engine, method in sorted(rows, key=lambda strategy: result.header.methods.index(" ".join(strategy))):
        for kind in kinds:
            cell = _cell(engine, method, kind, rows[engine, method].get(kind, []))
            if cell is not None:
                found.append(cell)
    return found


def problems(result: Bench) -> dict[str, list[Row]]:
    """Rows without a trial, which the table lacks, by the reason."""
    found: dict[str, list[Row]] = {}
    for row in result.rows:
        if row.problem is not None:
            found.setdefault(row.problem, []).append(row)
    return found


def headline(result: Bench) -> dict[str, Any]:
    """The headline figures: speedups over all tasks, each with whether outputs were identical."""
    overall = [cell for cell in cells(result) if cell.task == ALL]
    return {
        "pair": result.header.pair.name,
        "complete": result.complete,
        "runs": len(result.rows),
        "speedups": {
            f"{cell.engine} {cell.method}": {
                "mean": round(cell.mean, 3),
                "deviation": None if cell.deviation is None else round(cell.deviation, 3),
                "identical": cell.identical,
                "tau": cell.mean_accepted_length and round(cell.mean_accepted_length, 2),
            }
            for cell in overall
        },
    }


def _cell(engine: EngineName, method: str, task: str, rows: Sequence[Row]) -> Cell | None:
    done = [(row.repeat, row.trial) for row in rows if row.trial is not None]
    if not done:
        return None
    ran = [trial for _, trial in done]
    each = []
    for repeat in sorted({repeat for repeat, _ in done}):
        mine = [trial for number, trial in done if number == repeat]
        each.append(sum(trial.plain_seconds for trial in mine) / sum(trial.seconds for trial in mine))
    return Cell(
        **summarise(ran).model_dump(),
        engine=engine,
        method=method,
        task=task,
        mean=fmean(each),
        deviation=stdev(each) if len(each) > 1 else None,
        repeats=len(each),
        identical_runs=sum(trial.identical for trial in ran),
        runs=len(ran),
        tokens_per_second=sum(trial.tokens for trial in ran) / sum(trial.seconds for trial in ran),
        plain_tokens_per_second=sum(trial.tokens for trial in ran) / sum(trial.plain_seconds for trial in ran),
    )
