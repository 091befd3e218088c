"""Experiments whose rows are trials: one speculative run between two plain ones, for every variant and prompt."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import log
from operator import attrgetter
from random import Random
from statistics import fmean, stdev
from typing import Any, ClassVar, NamedTuple, TypeVar

from specdemo.engines import Engine
from specdemo.errors import PromptError
from specdemo.estimate import Summary, summarise
from specdemo.experiments.checkpoint import EngineFacts, Header, Row
from specdemo.experiments.plan import Plan, Result, Session, Stop
from specdemo.experiments.suites import Task
from specdemo.measure import WARM_UP_PROMPT, can_run, rehearse, run_alone, trials
from specdemo.metrics import answer
from specdemo.records import Costs, ModelPair, Request, Trial, Turn
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName

ALL = "all tasks"
Answers = dict[tuple[str, ...], str]
"""The target's own answer to the last turn, by all turns of the chat so far."""
_NO_COSTS = "It needs step costs, which are unknown for this pair."
_NO_TEXT = "The text ended at its first token."


class TrialRow(Row):
    """One trial of a method on an engine, by prompt and repeat. Without a `trial`, `problem` gives the reason.

    `prompt_tokens` counts the prompt and the turns before it; None in older files.
    """

    engine: EngineName
    method: str
    task: str
    prompt: str
    prompt_tokens: int | None = None
    repeat: int
    trial: Trial | None
    problem: str | None = None

    @property
    def name(self) -> str:
        """Engine and method."""
        return f"{self.engine} {self.method}"

    @property
    def key(self) -> tuple[str, str, int]:
        """Engine and method, prompt, and repeat."""
        return self.name, self.prompt, self.repeat

    @property
    def doing(self) -> str:
        """Engine and prompt."""
        return f"{self.engine}: {self.prompt}"


class Group(NamedTuple):
    """Runs that share their plain neighbours: one prompt in one repeat, and the variants in the `order` to run them.

    Groups are sorted by `drafter`: GenAI keeps one speculative pipeline at a time, and a new one starts cold.
    """

    drafter: str
    repeat: int
    task: Task
    order: Sequence[str]


class TrialResult(Result):
    """Result of trials, finished or not; `engines` holds the facts about each engine that ran."""

    header: Header
    tasks: tuple[Task, ...]
    date: str = ""  # on which it started or, after an interruption, resumed
    repeats: int
    engines: dict[str, EngineFacts]
    rows: tuple[TrialRow, ...]

    @property
    def total(self) -> int:
        """Number of rows when complete."""
        return len(self.tasks) * self.repeats * len(self.header.methods)

    @property
    def row_count(self) -> int:
        """Number of rows so far."""
        return len(self.rows)


F = TypeVar("F", bound=Result)


@dataclass(frozen=True)
class TrialPlan(Plan[Group, TrialRow, F]):
    """Every prompt with each of the `variants`, in each repeat, in an order that is shuffled each time.

    A variant's name consists of engine and method, such as "traced auto".
    """

    row: ClassVar[type[Row]] = TrialRow

    def pair_of(self, variant: str) -> ModelPair:
        """Return the pair for a variant: other runtime settings need a pair of their own."""
        return self.pair

    def session_of(self, variant: str) -> str:
        """Return the name under which facts about a variant's engine are saved."""
        return self.variants[variant].engine

    def settings_of(self, variant: str, repeat: int) -> GenerationSettings:
        return self.variants[variant]

    @cached_property
    def header(self) -> Header:
        """The experiment's identity, shared by all its rows."""
        return Header.of(self.pair, self.settings, tuple(self.variants), self.tasks)

    def common(self, facts: Mapping[str, EngineFacts], rows: Sequence[TrialRow]) -> dict[str, Any]:
        """Return the fields that all trial results share."""
        return {
            "header": self.header,
            "tasks": tuple(self.tasks),
            "date": self.today,
            "repeats": self.repeats,
            "engines": dict(facts),
            "rows": tuple(rows),
        }

    def covers(self, row: TrialRow) -> bool:
        """Check if the row belongs to one of the repeats."""
        return row.repeat < self.repeats

    def missing(self, rows: Sequence[TrialRow]) -> list[Session[Group]]:
        """Return the remaining groups, one session per engine."""
        return self.sessions({row.key for row in rows}, range(self.repeats), list(self.variants))

    def sessions(
        self, finished: set[tuple[str, str, int]], repeats: Sequence[int], variants: Sequence[str]
    ) -> list[Session[Group]]:
        """Return the unfinished groups of these repeats and variants, in an order independent of what is finished."""
        found = []
        for name in dict.fromkeys(map(self.session_of, variants)):
            mine = [variant for variant in variants if self.session_of(variant) == name]
            groups = [
                Group(drafter, repeat, task, left)
                for drafter in dict.fromkeys(self.variants[variant].drafter for variant in mine)
                for repeat, task, order in self._orders(name, drafter, repeats, mine)
                if (left := [each for each in order if (each, task.name, repeat) not in finished])
            ]
            if groups:
                engine = self.variants[mine[0]].engine
                found.append(Session(name, engine, self.pair_of(mine[0]), groups))
        return found

    def _orders(
        self, session: str, drafter: str, repeats: Sequence[int], variants: Sequence[str]
    ) -> Iterator[tuple[int, Task, list[str]]]:
        mine = sorted(variant for variant in variants if self.variants[variant].drafter == drafter)
        for repeat in repeats:
            random = Random(f"{self.seed} {session} {drafter} {repeat}")
            for task in random.sample(self.tasks, len(self.tasks)):
                yield repeat, task, random.sample(mine, len(mine))

    def measure(self, engine: Engine, costs: Costs | None, steps: Sequence[Group], stop: Stop) -> Iterator[TrialRow]:
        """Run the groups, after rehearsing what each drafter will run."""
        answers: Answers = {}
        for _, same in groupby(steps, attrgetter("drafter")):
            groups = list(same)
            used = sorted({variant for group in groups for variant in group.order})
            able = {variant for variant in used if can_run(engine.pair, self.variants[variant], costs)}
            rehearsed = [self.variants[variant] for variant in used if variant in able]
            rehearse(engine, WARM_UP_PROMPT, rehearsed, costs, stop)
            for group in groups:
                yield from self._tried(engine, costs, group, able, answers, stop)
                if stop():
                    return

    def _tried(
        self, engine: Engine, costs: Costs | None, group: Group, able: set[str], answers: Answers, stop: Stop
    ) -> Iterator[TrialRow]:
        """Yield a row for each variant of a group, with its trial or the reason why there is none."""
        ran, done, task = [variant for variant in group.order if variant in able], 0, group.task
        length: int | None = None

        def row(variant: str, trial: Trial | None, problem: str | None) -> TrialRow:
            engine_name, _, method = variant.partition(" ")
            return TrialRow(
                engine=engine_name,
                method=method,
                task=task.task,
                prompt=task.name,
                prompt_tokens=length,
                repeat=group.repeat,
                trial=trial,
                problem=problem,
            )

        yield from (row(variant, None, _NO_COSTS) for variant in group.order if variant not in able)
        settings = [self.settings_of(variant, group.repeat) for variant in ran]
        try:
            history = self._history(engine, task, answers, stop)
            said = [text for turn in history for text in (turn.prompt, turn.answer)]
            length = engine.count_tokens(" ".join([*said, task.prompt]))
            for trial in trials(engine, task.prompt, settings, costs, stop, history):
                done += 1
                yield row(ran[done - 1], trial, None if trial is not None else _NO_TEXT)
        except PromptError as error:
            yield from (row(variant, None, str(error)) for variant in ran[done:])

    def _history(self, engine: Engine, task: Task, answers: Answers, stop: Stop) -> tuple[Turn, ...]:
        """Return the turns before a prompt, with the target's greedy answers, decoded untimed."""
        greedy = self.settings.model_copy(update={"do_sample": False})
        history: tuple[Turn, ...] = ()
        for index, prompt in enumerate(task.before, 1):
            turns = task.before[:index]
            if turns not in answers:
                run = run_alone(engine.decoder(Request.of(prompt, greedy, history).plain), stop=stop)
                answers[turns] = answer(run.text)
            history = (*history, Turn(prompt=prompt, answer=answers[turns]))
        return history


class Cell(Summary):
    """Results of one method on one task category.

    `mean` and `deviation` (sample standard deviation, None for a single repeat) are over the repeats, each of which
    contributes the plain seconds of all its trials / the speculative ones. Tokens per second are those of the
    speculative runs and of their plain neighbours.
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

    @property
    def name(self) -> str:
        """Engine and method."""
        return f"{self.engine} {self.method}"


def cell_of(task: str, rows: Sequence[TrialRow]) -> Cell | None:
    """Summarise the rows of one method; None if none has a trial."""
    done = [(row, row.trial) for row in rows if row.trial is not None]
    if not done:
        return None
    ran, each = [trial for _, trial in done], []
    for repeat in sorted({row.repeat for row, _ in done}):
        mine = [trial for row, trial in done if row.repeat == repeat]
        each.append(sum(trial.plain_seconds for trial in mine) / sum(trial.seconds for trial in mine))
    return Cell(
        **summarise(ran, [row.prompt for row, _ in done]).model_dump(),
        engine=rows[0].engine,
        method=rows[0].method,
        task=task,
        mean=fmean(each),
        deviation=stdev(each) if len(each) > 1 else None,
        repeats=len(each),
        identical_runs=sum(trial.identical for trial in ran),
        runs=len(ran),
        tokens_per_second=sum(trial.tokens for trial in ran) / sum(trial.seconds for trial in ran),
        plain_tokens_per_second=sum(trial.tokens for trial in ran) / sum(trial.plain_seconds for trial in ran),
    )


def cells(result: TrialResult) -> list[Cell]:
    """Return every method's results by task category, then over all; those without a trial are left out."""
    rows: dict[tuple[str, str], list[TrialRow]] = {}
    for row in result.rows:
        for kind in (row.task, ALL):
            rows.setdefault((row.name, kind), []).append(row)
    tasks = [*dict.fromkeys(task.task for task in result.tasks), ALL]
    asked = ((name, task) for name in result.header.methods for task in tasks)
    return [cell for name, task in asked if (cell := cell_of(task, rows.get((name, task), []))) is not None]


_LENGTHS = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
_SHORT = 500


def by_length(result: TrialResult) -> list[Cell]:
    """Return every method's results by approximate prompt length; empty if all are alike, or lengths are unknown."""
    rows: dict[tuple[str, int], list[TrialRow]] = {}
    for row in result.rows:
        if row.prompt_tokens is not None and row.trial is not None:
            rows.setdefault((row.name, _length(row.prompt_tokens)), []).append(row)
    lengths = sorted({length for _, length in rows})
    if len(lengths) < 2:
        return []
    asked = ((name, length) for name in result.header.methods for length in lengths)
    words = {length: f"about {length:,}" if length else f"under {_SHORT}" for length in lengths}
    found = (cell_of(words[length], rows.get((name, length), [])) for name, length in asked)
    return [cell for cell in found if cell is not None]


def _length(tokens: int) -> int:
    """Return the nearest of the usual lengths; 0 for a short prompt."""
    return 0 if tokens < _SHORT else min(_LENGTHS, key=lambda length: abs(log(tokens / length)))


def problems(result: TrialResult) -> dict[str, list[TrialRow]]:
    """Return rows without a trial, grouped by reason."""
    found: dict[str, list[TrialRow]] = {}
    for row in result.rows:
        if row.problem is not None:
            found.setdefault(row.problem, []).append(row)
    return found
