"""An experiment: a plan whose steps are measured one row at a time, and a result that follows from the rows.

A plan says what its steps are and how one is measured; everything else is here. `run` loads what a step needs, once
for all steps that need the same; keeps finished rows in a checkpoint, so that a run that was stopped or crashed
resumes; and yields the result so far after every row. `trials.TrialPlan` is the base of the plans whose rows are
speculative runs between plain ones.

Whoever adds a kind of experiment writes its plan and result in one module, and declares it there with a `Kind`: what
can be chosen, and the plan that follows. Its command, its tab and its reports follow from that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, cast

from specdemo.engines.base import Engine
from specdemo.errors import FileError
from specdemo.experiments.checkpoint import Checkpoint, EngineFacts, Header, Row, SavedRows
from specdemo.experiments.report import Report
from specdemo.experiments.suites import Task
from specdemo.measure.step_costs import measure_costs
from specdemo.models.pairs import default_drafter, initial_settings
from specdemo.records import Costs, Environment, ModelPair, Progress, Record
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName

S = TypeVar("S")
R = TypeVar("R", bound=Row)
Load = Callable[..., Engine]
"""Loads an engine by its name, with the plan's pair, or with another one that is given, too."""
Stop = Callable[[], bool]


def never() -> bool:
    """Stop of a run that nothing stops."""
    return False


class Result(Record):
    """What an experiment found so far: plain data, from which tables, charts and conclusions follow."""

    @property
    @abstractmethod
    def total(self) -> int:
        """Number of rows when it is complete."""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """Number of rows so far."""

    @property
    def measured(self) -> bool:
        """Whether there is any row."""
        return self.row_count > 0

    @property
    def complete(self) -> bool:
        """Whether everything was measured."""
        return self.row_count == self.total

    @property
    def so_far(self) -> str | None:
        """The main figure so far, for progress; None if there is none yet."""
        return None

    @abstractmethod
    def report(self) -> Report:
        """The result in words, tables and charts."""


F = TypeVar("F", bound=Result)


class LoadedEngine(NamedTuple):
    """An engine that is loaded already, with its step costs; it stays loaded."""

    engine: Engine
    costs: Costs | None


@dataclass(frozen=True)
class Session(Generic[S]):
    """Steps that need the same engine and pair; what is found out about them is kept under `name`."""

    name: str
    engine: EngineName
    pair: ModelPair
    steps: Sequence[S]


@dataclass(frozen=True)
class Plan(ABC, Generic[S, R, F]):
    """What to measure, on which prompts, `repeats` times. `seed` is that of all orders."""

    pair: ModelPair
    tasks: Sequence[Task]
    settings: GenerationSettings
    repeats: int = field(default=3, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    row: ClassVar[type[Row]]
    """The type of its rows, `R`."""
    calibrates: ClassVar[bool] = True
    """Whether step costs are measured when an engine is loaded."""

    @property
    @abstractmethod
    def header(self) -> Header:
        """What rows of this experiment have in common.

        Raises:
            SpecdemoError: something in the plan does not fit the pair.
        """

    def check(self) -> None:
        """Check what can be checked before anything is loaded.

        Raises:
            SpecdemoError: it cannot be measured.
        """

    def fitted(self, engine: Engine, costs: Costs | None) -> Self:
        """The plan without what a loaded engine cannot do."""
        return self

    @abstractmethod
    def missing(self, rows: Sequence[R]) -> Sequence[Session[S]]:
        """Steps to measure besides these rows. What comes last may depend on what was found."""

    @abstractmethod
    def measure(self, engine: Engine, costs: Costs | None, steps: Sequence[S], stop: Stop) -> Iterator[R]:
        """Measure the steps; yield each finished row.

        Raises:
            SpecdemoError: a step cannot be run, or the engine failed.
        """

    @abstractmethod
    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[R]) -> F:
        """The result with these rows."""

    def extras(self, found: F, stop: Stop) -> F:
        """The complete result with what is measured apart from its rows, such as memory."""
        return found

    @property
    def today(self) -> str:
        """The date of a result: of its beginning or, after an interruption, of its going on."""
        return datetime.now(UTC).date().isoformat()

    def saved(self, checkpoint: Checkpoint | None) -> SavedRows[R]:
        """What a checkpoint holds of this experiment.

        Raises:
            FileError: it holds a different one, or cannot be read.
        """
        return SavedRows({}, []) if checkpoint is None else cast(SavedRows[R], checkpoint.open(self.header, self.row))

    def seconds_left(self) -> float | None:
        """How long it still takes, where the plan knows; else what is left follows from the rows so far."""
        return None

    def ended(self, found: F) -> F:
        """The result once nothing is left to measure."""
        return found

    def covers(self, row: R) -> bool:
        """Whether a row of a checkpoint belongs to this plan, which may have fewer repeats."""
        return True


def run(
    plan: Plan[S, R, F],
    load: Load | None = None,
    *,
    loaded: LoadedEngine | None = None,
    checkpoint: Checkpoint | None = None,
    stop: Stop = never,
) -> Iterator[Progress[F]]:
    """Measure what the checkpoint does not hold yet; yield a state first, and after every row.

    Either `load` makes the engines, which are closed again, or one is `loaded`. Once `stop` returns True, finished
    rows stand.

    Raises:
        FileError: the checkpoint holds a different experiment, or one from another machine.
        SpecdemoError: the plan does not fit the pair, or an engine failed.
    """
    plan.check()
    if loaded is not None:
        plan = plan.fitted(*loaded)
    facts, earlier = plan.saved(checkpoint)
    rows: dict[Hashable, R] = {row.key: row for row in earlier if plan.covers(row)}
    found, new, spent = plan.result(facts, list(rows.values())), 0, 0.0

    def progress(doing: str, left: float | None = None) -> Progress[F]:
        return Progress(len(rows), found.total, left, found, doing)

    yield progress("starting")
    while sessions := plan.missing(list(rows.values())):
        session, before = sessions[0], len(rows)
        if stop():
            return
        if loaded is None:
            yield progress(f"loading {session.name}")
        with _opened(plan, session, load, loaded) as engine:
            if session.name in facts:
                check_environment(facts[session.name].environment, engine.environment)
            costs = _costs(plan, engine, loaded, stop)
            if stop():
                return
            facts[session.name] = EngineFacts(environment=engine.environment, costs=costs)
            if checkpoint is not None:
                checkpoint.add_facts(session.name, facts[session.name])
            steps = session.steps
            while steps and not stop():
                began, at = perf_counter(), len(rows)
                for row in plan.measure(engine, costs, steps, stop):
                    rows[row.key] = row
                    if checkpoint is not None:
                        checkpoint.add(row)
                    found = plan.result(facts, list(rows.values()))
                    new, spent, began = new + 1, spent + perf_counter() - began, perf_counter()
                    left = plan.seconds_left()
                    left = spent / new * (found.total - len(rows)) if left is None else left
                    yield progress(found.so_far or row.doing, left)
                rest = plan.missing(list(rows.values())) if len(rows) > at else ()
                steps = next((each.steps for each in rest if each.name == session.name), ())
        if stop() or len(rows) == before:
            return
    ended = plan.ended(found)
    if ended is not found:
        found = ended
        yield progress(found.so_far or "finished", 0.0)


def run_with_extras(
    plan: Plan[S, R, F], load: Load, *, checkpoint: Checkpoint | None = None, stop: Stop = never
) -> Iterator[Progress[F]]:
    """`run`, and the plan's extras once every row is there."""
    last = None
    for last in run(plan, load, checkpoint=checkpoint, stop=stop):
        yield last
    if last is not None and last.result.complete:
        yield replace(last, doing="memory and bandwidth", seconds_left=None)
        yield replace(last, result=plan.extras(last.result, stop))


def check_environment(earlier: Environment, here: Environment) -> None:
    """Check that a run goes on where it was begun.

    Raises:
        FileError: its rows so far were measured elsewhere.
    """
    if earlier != here:
        raise FileError(
            "The rows so far were measured with other versions or settings of OpenVINO; choose another "
            "output path, or delete the file that ends in .rows.jsonl."
        )


def _opened(plan: Plan[Any, Any, Any], session: Session[Any], load: Load | None, loaded: LoadedEngine | None) -> Any:
    if loaded is not None:
        return nullcontext(loaded.engine)
    assert load is not None, "one of both is given"
    same = session.pair is plan.pair
    return closing(load(session.engine) if same else load(session.engine, session.pair))


def _costs(plan: Plan[Any, Any, Any], engine: Engine, loaded: LoadedEngine | None, stop: Stop) -> Costs | None:
    if loaded is not None:
        return loaded.costs
    return measure_costs(engine, stop=stop) if plan.calibrates else None


Choices = Callable[[ModelPair], Sequence[Any]]


@dataclass(frozen=True)
class Option:
    """Something to choose besides prompts, repeats and generation settings.

    Values are of `type`: "count" is a whole number, the others are several values. The page offers `choices`, which
    may depend on the pair, with those of `first` chosen. The terminal takes any, also under `aliases`.
    """

    name: str
    title: str
    help: str
    type: Literal["names", "integers", "numbers", "count"]
    default: Any = None
    choices: Choices | None = None
    first: Choices | None = None
    aliases: tuple[str, ...] = ()


class Range(NamedTuple):
    """A slider's last value, and the one it begins with."""

    most: int
    first: int


def begin(pair: ModelPair, *, on: EngineName | None = None, **chosen: Any) -> GenerationSettings:
    """The settings that a pair begins with; prompt lookup proposes where it has no draft.

    `on`: the engine that pairs on this machine begin with; None: their own.
    """
    here = {} if on is None or pair.target.server is not None else {"engine": on, "policy": "constant"}
    return initial_settings(pair.target, **{"drafter": default_drafter(pair)} | here | chosen)


_PROMPTS, _REPEATS, _TOKENS = Range(32, 4), Range(12, 6), Range(512, 64)


@dataclass(frozen=True)
class Kind:
    """A kind of experiment. `name` is its command's and its tab's; `tab` the tab's label, `start` its button's.

    `plan(pair, tasks, settings, repeats=…, seed=…, **options)` makes the plan. `begin(pair, **chosen)` makes the
    settings that the page begins with; `settings` the same in the terminal, None for those of one strategy, as in a
    comparison. `without` are settings that it varies itself; without `turns`, only the first of a chat is asked.
    With `compares`, another such benchmark can be given to compare with.
    `extras` is what can be measured after the rows. `limit` is the terminal's number of prompts. `charts` and
    `tables` are those of its reports, in the page's order.
    """

    name: str
    tab: str
    title: str
    explanation: str
    help: str
    start: str
    plan: Callable[..., Plan[Any, Any, Any]]
    options: tuple[Option, ...] = ()
    settings: Callable[..., GenerationSettings] | None = None
    begin: Callable[..., GenerationSettings] = begin
    turns: bool = True
    compares: bool = False
    without: Collection[str] = ()
    extras: str | None = None
    prompts: Range = _PROMPTS
    repeats: Range = _REPEATS
    tokens: Range = _TOKENS
    limit: int | None = None
    charts: tuple[str, ...] = ()
    tables: tuple[str, ...] = ("table",)
    why: str = "of every run; more narrow the intervals"
