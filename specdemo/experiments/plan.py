"""Experiments: a plan, whose steps are measured one row at a time, and a result derived from the rows.

A plan defines its steps and how to measure one. `run` does the rest: it loads each engine once for all the steps that
need it, saves finished rows to a checkpoint so that a stopped or crashed run resumes, and yields the result so far
after every row. `trials.TrialPlan` is the base of plans whose rows are speculative runs between plain ones.

To add a kind of experiment, write its plan and result in one module and declare a `Kind` there, with the options and
the plan to make from them. Command, tab and reports follow from that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, cast

from specdemo.engines import Engine
from specdemo.errors import FileError
from specdemo.experiments.checkpoint import Checkpoint, EngineFacts, Header, Row, SavedRows
from specdemo.experiments.report import Report
from specdemo.experiments.suites import Task
from specdemo.measure import measure_costs
from specdemo.models.pairs import pair_settings
from specdemo.records import Costs, Environment, ModelPair, Progress, Record
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName

S = TypeVar("S")
R = TypeVar("R", bound=Row)
Load = Callable[..., Engine]
"""Function that loads an engine by name, with the plan's pair unless another one is given."""
Stop = Callable[[], bool]


def never() -> bool:
    """Never stop a run."""
    return False


class Result(Record):
    """Results of an experiment so far: plain data, from which tables, charts and conclusions are derived."""

    @property
    @abstractmethod
    def total(self) -> int:
        """Number of rows when complete."""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """Number of rows so far."""

    @property
    def measured(self) -> bool:
        """True if there is any row."""
        return self.row_count > 0

    @property
    def complete(self) -> bool:
        """True if every row was measured."""
        return self.row_count == self.total

    @property
    def so_far(self) -> str | None:
        """Main figure so far, for progress; None if there is none yet."""
        return None

    @abstractmethod
    def report(self) -> Report:
        """Return the result as sentences, tables and charts."""


F = TypeVar("F", bound=Result)


class LoadedEngine(NamedTuple):
    """An engine loaded beforehand, with its step costs; it stays loaded."""

    engine: Engine
    costs: Costs | None


@dataclass(frozen=True)
class Session(Generic[S]):
    """Steps that need the same engine and pair; facts about these are saved under `name`."""

    name: str
    engine: EngineName
    pair: ModelPair
    steps: Sequence[S]


@dataclass(frozen=True)
class Plan(ABC, Generic[S, R, F]):
    """What to measure, on which prompts, `repeats` times. `seed` determines all orders."""

    pair: ModelPair
    tasks: Sequence[Task]
    settings: GenerationSettings
    repeats: int = field(default=3, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    row: ClassVar[type[Row]]
    """Row type `R`."""
    calibrates: ClassVar[bool] = True
    """True if step costs are measured after loading an engine."""

    @property
    @abstractmethod
    def variants(self) -> Mapping[str, GenerationSettings]:
        """Settings to compare, by name.

        Raises:
            SpecdemoError: one of them does not fit the pair.
        """

    @property
    @abstractmethod
    def header(self) -> Header:
        """The experiment's identity, shared by all its rows.

        Raises:
            SpecdemoError: part of the plan does not fit the pair.
        """

    def check(self) -> None:
        """Check the plan as far as possible before loading anything.

        Raises:
            SpecdemoError: the plan cannot be measured.
        """

    def fitted(self, engine: Engine, costs: Costs | None) -> Self:
        """Return the plan without what a loaded engine cannot do."""
        return self

    @abstractmethod
    def missing(self, rows: Sequence[R]) -> Sequence[Session[S]]:
        """Return the steps not covered by these rows. The last steps may depend on the results."""

    @abstractmethod
    def measure(self, engine: Engine, costs: Costs | None, steps: Sequence[S], stop: Stop) -> Iterator[R]:
        """Measure the steps, yielding each finished row.

        Raises:
            SpecdemoError: a step cannot be run, or the engine failed.
        """

    @abstractmethod
    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[R]) -> F:
        """Return the result with these rows."""

    def extras(self, found: F, stop: Stop) -> F:
        """Add measurements other than rows, such as memory, to a complete result."""
        return found

    @property
    def today(self) -> str:
        """Date on which the run started or, after an interruption, resumed (UTC, ISO 8601)."""
        return datetime.now(UTC).date().isoformat()

    def saved(self, checkpoint: Checkpoint | None) -> SavedRows[R]:
        """Return the checkpoint's rows and facts for this experiment.

        Raises:
            FileError: the checkpoint holds a different experiment, or cannot be read.
        """
        return SavedRows({}, []) if checkpoint is None else cast(SavedRows[R], checkpoint.open(self.header, self.row))

    def seconds_left(self) -> float | None:
        """Return the remaining seconds if the plan limits its time; None to extrapolate from the rows so far."""
        return None

    def ended(self, found: F) -> F:
        """Return the final result, once nothing is left to measure."""
        return found

    def covers(self, row: R) -> bool:
        """Check if a checkpoint's row belongs to this plan, which may have fewer repeats."""
        return True


def run(
    plan: Plan[S, R, F],
    load: Load | None = None,
    *,
    loaded: LoadedEngine | None = None,
    checkpoint: Checkpoint | None = None,
    stop: Stop = never,
) -> Iterator[Progress[F]]:
    """Measure what the checkpoint lacks; yield progress first and after every row.

    Engines come either from `load`, and are closed afterwards, or from `loaded`. Once `stop` returns True, the run
    ends with the rows so far.

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
    """Run the plan, then measure its extras once every row is there."""
    last = None
    for last in run(plan, load, checkpoint=checkpoint, stop=stop):
        yield last
    if last is not None and last.result.complete:
        yield replace(last, doing="measuring memory", seconds_left=None)
        yield replace(last, result=plan.extras(last.result, stop))


def check_environment(earlier: Environment, here: Environment) -> None:
    """Check that a run resumes in the environment where it started.

    Raises:
        FileError: the rows so far were measured with other versions or settings.
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
    """An option besides prompts, repeats and generation settings.

    Values are of `type`: "count" is one whole number, the others are lists. The page offers `choices`, which may
    depend on the pair, with those of `first` preselected. The terminal accepts any value, also under `aliases`.
    """

    name: str
    title: str
    help: str
    type: Literal["names", "integers", "numbers", "count"]
    default: Any = None
    choices: Choices | None = None
    first: Choices | None = None
    aliases: tuple[str, ...] = ()


class Extras(NamedTuple):
    """What can be measured after the rows: its name in the terminal and from Python, and its label on the page."""

    name: str
    title: str
    info: str


class Range(NamedTuple):
    """A slider's maximum and initial value."""

    most: int
    first: int


def begin(pair: ModelPair, *, on: EngineName | None = None, **chosen: Any) -> GenerationSettings:
    """Return the initial settings of a pair, with prompt lookup if it has no draft model.

    `on`: the engine for pairs on this machine; None for the default.
    """
    here = {} if on is None or pair.target.server is not None else {"engine": on, "policy": "constant"}
    return pair_settings(pair, **here | chosen)


_PROMPTS, _REPEATS, _TOKENS = Range(32, 4), Range(12, 6), Range(512, 64)


@dataclass(frozen=True)
class Kind:
    """A kind of experiment. `name` is that of its command and tab, `tab` the tab's label, `start` the button's.

    `plan(pair, tasks, settings, repeats=…, seed=…, **options)` makes the plan. `begin(pair, **chosen)` makes the
    page's initial settings; `settings` does so for the terminal, where None means a single strategy's, as in a
    comparison. `without` are settings that the experiment varies itself. If `turns` is False, only the first turn of
    a chat is measured. With `compares`, an earlier benchmark can be given for comparison. `extras` is what can be
    measured after the rows. `limit` is the terminal's default number of prompts. `charts` and `tables` are those of
    its reports, in the page's order.
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
    extras: Extras | None = None
    prompts: Range = _PROMPTS
    repeats: Range = _REPEATS
    tokens: Range = _TOKENS
    limit: int | None = None
    charts: tuple[str, ...] = ()
    tables: tuple[str, ...] = ("table",)
    why: str = "of every run; more narrow the intervals"
