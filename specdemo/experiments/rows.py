"""Running a plan: one row after another, each saved to a checkpoint at once, so that a stopped run resumes.

A row is a trial: a speculative run between two plain runs of the same prompt. If the machine gets warmer or busier, a
run and its neighbours are affected almost equally, so they are compared with each other, never with distant runs.
With several requests at once, a row is a block of them, compared with the plain block of the same repeat.

A checkpoint is a file of JSON lines: the experiment's digest, then facts about engines and finished rows. A
crash can truncate only the last line, which is dropped when the file is reopened. A lock keeps a second run out.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from time import perf_counter
from typing import NamedTuple, Self

from filelock import FileLock, Timeout
from pydantic import ValidationError

from specdemo.costs import measure_costs
from specdemo.engines.base import Engine
from specdemo.errors import FileError, PromptError, RunError, SpecdemoError, quoted
from specdemo.experiments.concurrent import Block, NamedRequest, serve
from specdemo.experiments.plan import Group, Key, Plan, Stage, Variant
from specdemo.experiments.suites import Task
from specdemo.metrics import answer
from specdemo.models.converted import folder_of
from specdemo.models.folder import files_digest
from specdemo.race import run_alone
from specdemo.records import Costs, Environment, ModelPair, Progress, Record, Request, Servers, Trial, Turn
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.trials import can_run, rehearse, trials
from specdemo.warm_up import WARM_UP_PROMPT

Load = Callable[[EngineName, ModelPair], Engine]
Stop = Callable[[], bool]

_NO_COSTS = "It needs step costs, which are unknown for this pair."
_NO_TEXT = "The text ended at its first token."
_WARM_UP_TOKENS = 8  # before the first block of a kind: its first passes compile kernels
_DIGITS = 4  # of a server's digest, so short that many addresses share it, and guessing cannot recover the address


class Row(Record):
    """One trial of a variant. Without it, `problem` gives the reason.

    A block of several requests at once has no prompt of its own; `ttft` and `tpot` are the medians of its requests,
    plain and speculative, in seconds.
    """

    variant: str
    task: str
    prompt: str
    prompt_tokens: int | None = None
    repeat: int
    fresh: bool = False
    trial: Trial | None
    ttft: tuple[float, float] | None = None
    tpot: tuple[float, float] | None = None
    problem: str | None = None

    @property
    def key(self) -> Key:
        return self.variant, self.prompt, self.repeat, self.fresh


class EngineFacts(Record):
    """Facts shared by all rows of an engine. `costs` are its step costs, if measured."""

    environment: Environment
    costs: Costs | None = None


class Header(Record):
    """Identity of an experiment; rows of a different one must not be mixed in.

    `models` are digests of the target's and draft's files, since a folder of the same name can hold other weights.
    `servers` are digests of each side's server, too short to recover its address.
    """

    pair: ModelPair
    models: tuple[str, ...]
    servers: tuple[str, ...] = ()
    settings: GenerationSettings
    variants: tuple[str, ...]
    prompts: str  # digest

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return a plan's header.

        Raises:
            LoadError: a model is not converted yet.
        """
        pair = plan.pair
        here = [model for model in (pair.target, pair.draft) if model is not None and model.path is not None]
        prompts = "\n".join(task.model_dump_json(exclude_defaults=True) for task in plan.tasks)
        return cls(
            pair=pair,
            models=tuple(files_digest(folder_of(model)) for model in here),
            servers=_server_digests(pair.servers),
            settings=plan.settings,
            variants=tuple(sorted(plan.variants)),
            prompts=hashlib.sha256(prompts.encode()).hexdigest(),
        )

    @property
    def digest(self) -> str:
        """Name of this experiment, in its checkpoint. Dumps leave out paths."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


class Result(Record):
    """Rows of an experiment, finished or not; figures, tables and the conclusion are derived from them.

    `total` is the number of rows when complete; a time limit lowers it at the end. `engines` holds facts about each
    engine that ran, by session.
    """

    header: Header
    variants: dict[str, Variant]
    tasks: tuple[Task, ...]
    date: str
    total: int
    engines: dict[str, EngineFacts]
    rows: tuple[Row, ...]

    @property
    def complete(self) -> bool:
        return len(self.rows) >= self.total

    @property
    def measured(self) -> bool:
        """True if there is any trial."""
        return any(row.trial is not None for row in self.rows)


class Line(Record):
    """A line after the header: a finished row, or facts about an engine."""

    row: Row | None = None
    engine: str | None = None
    facts: EngineFacts | None = None


@dataclass
class Saved:
    """Facts by engine, and rows by key."""

    facts: dict[str, EngineFacts] = field(default_factory=dict)
    rows: dict[Key, Row] = field(default_factory=dict)


class Checkpoint:
    """A file with the finished rows of one experiment. Messages leave out its folder, which may be a server's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = path.with_name(path.name + ".lock")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out.

        Raises:
            FileError: another run uses this file.
            SpecdemoError: nothing can be written here.
        """
        lock = FileLock(self._lock, blocking=False)
        try:
            lock.acquire()
        except Timeout:
            raise FileError("Another run is measuring the same; wait until it ends, or stop it.") from None
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            yield
        finally:
            lock.release()

    def open(self, header: Header) -> Saved:
        """Return the rows so far, creating the file if necessary.

        Raises:
            FileError: the file holds rows of another experiment, or cannot be read.
            SpecdemoError: the file cannot be written.
        """
        lines, name, saved = self._lines(), quoted(self.path.name), Saved()
        if not lines:
            self._write(f'"{header.digest}"\n', "w")
        elif lines[0] != f'"{header.digest}"':
            raise FileError(
                f"{name} holds rows of another pair, of other settings, prompts or things to vary; choose another "
                "output path, or delete it."
            )
        for number, line in enumerate(lines[1:], 2):
            try:
                found = Line.model_validate_json(line)
            except ValidationError as error:
                raise FileError(f"Line {number} of {name} is damaged; delete that line or the file.") from error
            if found.row is not None:
                saved.rows[found.row.key] = found.row
            if found.facts is not None and found.engine is not None:
                saved.facts[found.engine] = found.facts
        return saved

    def add(self, line: Line) -> None:
        self._write(f"{line.model_dump_json()}\n", "a")

    def delete(self) -> None:
        """Remove the file, once its rows are saved elsewhere."""
        self.path.unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)

    def _lines(self) -> list[str]:
        """Return the complete lines, cutting a truncated one off the file so that appending starts a new line."""
        if not self.path.exists():
            return []
        try:
            data = self.path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                with self.path.open("r+b") as file:
                    file.truncate(len(whole))
        except OSError as error:
            raise FileError(
                f"Cannot read {quoted(self.path.name)} ({error.strerror}); choose another path."
            ) from error
        # not `splitlines`: JSON strings may contain other line separators
        return whole.decode(errors="replace").split("\n")[:-1]

    def _write(self, text: str, mode: str) -> None:
        try:
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> SpecdemoError:
        return SpecdemoError(f"Cannot write {quoted(self.path.name)} ({error.strerror}); choose another path.")


class Loaded(NamedTuple):
    """An engine loaded beforehand, with its step costs; it stays loaded."""

    engine: Engine
    costs: Costs | None


def run(
    plan: Plan,
    load: Load | None = None,
    *,
    loaded: Loaded | None = None,
    checkpoint: Checkpoint | None = None,
    fastest: Callable[[Result], str | None] = lambda result: None,
    stop: Stop = lambda: False,
) -> Iterator[Progress[Result]]:
    """Measure what the checkpoint lacks; yield progress first and after every row.

    Engines come either from `load`, and are closed afterwards, or from `loaded`. `fastest` names the variant to
    confirm. Once `stop` returns True, the run ends with the rows so far.

    Raises:
        FileError: the checkpoint holds a different experiment, or another run uses it.
        SpecdemoError: an engine failed, or nothing could be measured.
    """
    with nullcontext() if checkpoint is None else checkpoint.locked():
        yield from _Run(plan, load, loaded, checkpoint, fastest, stop)


class _Run:
    """The state of a run: rows so far, the engine in use, and the clock, which starts with the first run."""

    def __init__(
        self,
        plan: Plan,
        load: Load | None,
        loaded: Loaded | None,
        checkpoint: Checkpoint | None,
        fastest: Callable[[Result], str | None],
        stop: Stop,
    ) -> None:
        self.plan, self.load, self.loaded, self.stop = plan, load, loaded, stop
        self.checkpoint, self.fastest, self.header = checkpoint, fastest, Header.of(plan)
        saved = Saved() if checkpoint is None else checkpoint.open(self.header)
        self.facts = saved.facts
        self.rows = {key: row for key, row in saved.rows.items() if plan.covers(key)}
        self.earlier, self.began = len(self.rows), None if loaded is None else perf_counter()
        self.engine: Engine | None = None
        self.session = ""
        self.answers: dict[tuple[str, ...], str] = {}  # the target's own, by all turns of the chat so far

    def __iter__(self) -> Iterator[Progress[Result]]:
        yield self.progress("starting")
        try:
            for stage in self.stages():
                if stage.groups and not self.stop():
                    yield from self.measure(stage)
        finally:
            self.close()
        if self.stop():
            return
        found = self.result()
        problem = next((row.problem for row in found.rows if row.problem is not None), None)
        if problem is not None and not found.measured:
            raise RunError(f"Nothing could be measured: {problem}")
        if not found.complete:  # the time is over
            found = found.model_copy(update={"total": len(found.rows)})
        yield Progress(len(found.rows), found.total, 0.0, found, "finished")

    def stages(self) -> Iterator[Stage]:
        yield from self.plan.stages(self.rows.keys())
        best = self.fastest(self.result()) if self.plan.confirm else None
        if best is not None and not self.stop():
            yield self.plan.confirming(best, self.rows.keys())

    def measure(self, stage: Stage) -> Iterator[Progress[Result]]:
        if self.loaded is None and self.session != stage.session:
            yield self.progress(f"loading {stage.session}")
            self.close()
            assert self.load is not None, "one of both is given"
            self.engine, self.session = self.load(stage.engine, stage.pair), stage.session
        engine = self.engine if self.loaded is None else self.loaded.engine
        assert engine is not None
        costs = yield from self.costs(stage, engine)
        self.began = self.began or perf_counter()
        enough = False  # every variant runs at least once

        def over() -> bool:
            return self.stop() or (enough and self.over(stage.until))

        for group in stage.groups:
            if over():
                return
            if group is stage.groups[0] and group.task is not None:
                names = sorted({name for each in stage.groups for name in each.order})
                able = [self.plan.variants[name].settings for name in names]
                able = [settings for settings in able if can_run(engine.pair, settings, costs)]
                rehearse(engine, WARM_UP_PROMPT, able, costs, self.stop)
            measured = (
                self.trials(engine, costs, group, over) if group.task else _blocks(self.plan, engine, group, over)
            )
            for row in measured:
                self.rows[row.key] = row
                if self.checkpoint is not None:
                    self.checkpoint.add(Line(row=row))
                yield self.progress("measuring")
            enough = True

    def trials(self, engine: Engine, costs: Costs | None, group: Group, stop: Stop) -> Iterator[Row]:
        """Yield a row for each variant of a group, with its trial or the reason why there is none."""
        task = group.task
        assert task is not None
        able = [name for name in group.order if can_run(engine.pair, self.plan.variants[name].settings, costs)]
        length: int | None = None
        done = 0

        def row(name: str, trial: Trial | None, problem: str | None) -> Row:
            return Row(
                variant=name,
                task=task.task,
                prompt=task.name,
                prompt_tokens=length,
                repeat=group.repeat,
                fresh=group.fresh,
                trial=trial,
                problem=problem,
            )

        yield from (row(name, None, _NO_COSTS) for name in group.order if name not in able)
        try:
            history = self.history(engine, task, stop)
            length = engine.count_tokens(
                " ".join([*(text for turn in history for text in (turn.prompt, turn.answer)), task.prompt])
            )
            settings = [self.plan.settings_of(name, group.repeat) for name in able]
            for trial in trials(engine, task.prompt, settings, costs, stop, history):
                done += 1
                yield row(able[done - 1], trial, None if trial is not None else _NO_TEXT)
        except PromptError as error:
            yield from (row(name, None, str(error)) for name in able[done:])

    def history(self, engine: Engine, task: Task, stop: Stop) -> tuple[Turn, ...]:
        """Return the turns before a prompt, with the target's greedy answers, decoded untimed."""
        greedy = self.plan.settings.model_copy(update={"do_sample": False})
        history: tuple[Turn, ...] = ()
        for index, prompt in enumerate(task.before, 1):
            turns = task.before[:index]
            if turns not in self.answers:
                said = run_alone(engine.decoder(Request.of(prompt, greedy, history).plain), stop=stop)
                self.answers[turns] = answer(said.text)
            history = (*history, Turn(prompt=prompt, answer=self.answers[turns]))
        return history

    def costs(self, stage: Stage, engine: Engine) -> Generator[Progress[Result], None, Costs | None]:
        """Measure step costs once per session; blocks do not need them."""
        before = self.facts.get(stage.session)
        if before is not None and before.environment != engine.environment:
            raise FileError(
                "The rows so far were measured with other versions or settings of OpenVINO; choose another output "
                "path, or delete the file that ends in .rows.jsonl."
            )
        costs = None if before is None else before.costs
        if self.loaded is not None:
            costs = self.loaded.costs
        elif costs is None and any(group.task is not None for group in stage.groups):
            yield self.progress("measuring step costs")
            costs = measure_costs(engine, stop=self.stop)
        facts = EngineFacts(environment=engine.environment, costs=costs)
        if facts != before:
            self.facts[stage.session] = facts
            if self.checkpoint is not None:
                self.checkpoint.add(Line(engine=stage.session, facts=facts))
        return costs

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.engine, self.session = None, ""

    @property
    def seconds(self) -> float:
        return 0.0 if self.began is None else perf_counter() - self.began

    def over(self, share: float) -> bool:
        return self.plan.minutes is not None and self.seconds > share * self.plan.minutes * 60

    def result(self) -> Result:
        return Result(
            header=self.header,
            variants=dict(self.plan.variants),
            tasks=tuple(self.plan.tasks),
            date=datetime.now(UTC).date().isoformat(),
            total=self.plan.total,
            engines=dict(self.facts),
            rows=tuple(self.rows.values()),
        )

    def progress(self, doing: str) -> Progress[Result]:
        new, left = len(self.rows) - self.earlier, None
        if self.plan.minutes is not None and new:
            left = max(self.plan.minutes * 60 - self.seconds, 0.0)
        elif new:
            left = self.seconds / new * max(self.plan.total - len(self.rows), 0)
        return Progress(len(self.rows), max(self.plan.total, len(self.rows)), left, self.result(), doing)


def _blocks(plan: Plan, engine: Engine, group: Group, stop: Stop) -> Iterator[Row]:
    """Decode the same requests plainly and with each variant; yield a row for each.

    Whenever one ends, another begins: every prompt is decoded, and at least twice as many requests as run at once.
    Every second repeat reverses the order, so that drift favours no side.
    """
    level, prompts = group.concurrency or 1, {task.name: task.prompt for task in plan.tasks}
    plain = Request.of("", plan.variants[group.order[0]].settings).plain
    requests = {"": plain} | {name: Request.of("", plan.variants[name].settings) for name in group.order}
    blocks: dict[str, Block] = {}
    for name in [*requests] if group.repeat % 2 else reversed(requests):
        request, number = requests[name], max(len(prompts), 2 * level)
        short = replace(request, max_new_tokens=min(_WARM_UP_TOKENS, request.max_new_tokens))
        for each, served in ((short, level), (request, number)):  # warm up first
            with closing(engine.batch(each.strategy)) as batch:
                wanted = _endless(each, prompts, f"{plan.seed} {group.repeat} {level}")
                block = serve(batch, wanted, level, served, stop, thoroughness=engine.thoroughness)
            if block is None:
                return
            blocks[name] = block
    for name in group.order:
        yield Row(
            variant=name,
            task="",
            prompt="",
            repeat=group.repeat,
            fresh=group.fresh,
            trial=blocks[name].against(blocks[""]),
            ttft=(blocks[""].ttft, blocks[name].ttft),
            tpot=(blocks[""].tpot, blocks[name].tpot),
        )


def _endless(request: Request, prompts: Mapping[str, str], seed: str) -> Iterator[NamedRequest]:
    """Yield requests endlessly: all prompts in a random order, then all in another."""
    random = Random(seed)
    for _ in count():
        for name in random.sample([*prompts], len(prompts)):
            yield NamedRequest(name, replace(request, prompt=prompts[name]))


def _server_digests(servers: Servers | None) -> tuple[str, ...]:
    """Digest each side's server, to notice a change without storing addresses."""
    sides = [] if servers is None else [servers.plain, servers.speculative]
    texts = ["" if each is None else f"{each.url} {each.model} {each.kind}" for each in sides]
    return tuple(hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for text in texts)
