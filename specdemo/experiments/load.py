"""Load: plain and speculative decoding of the same requests at increasing concurrency.

A row is one block. Each repeat takes the concurrency levels in another order and, at each level, runs all strategies
one after the other, in reverse order in every second repeat, so that drift of the machine favours none. A speculative
block is compared with the plain one of the same repeat and concurrency.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from random import Random
from typing import ClassVar, NamedTuple

from specdemo.engines import BatchEngine, Engine, load_engine
from specdemo.errors import SettingsError
from specdemo.experiments.checkpoint import EngineFacts, Header, Row
from specdemo.experiments.load_points import PLAIN, LoadHeader, LoadRow
from specdemo.experiments.load_result import Load
from specdemo.experiments.plan import Extras, Kind, Option, Plan, Range, Session, Stop, begin, never
from specdemo.measure import Loader, NamedRequest, batch_engine, decode_at_once, measure_memory, serve, shuffled
from specdemo.models.checks import check_concurrent, with_tokenizers_compared
from specdemo.records import MOST_IN_FLIGHT, SIDES, Block, Costs, ModelPair, Request
from specdemo.settings import GenerationSettings
from specdemo.strategies import CONCURRENT

LEVELS = (1, 2, 4, 8, 16, 32)
LOOKAHEADS = (1, 2, 3, 4, 5, 6, 8)
REPEATS = 6
_FIRST_LEVELS = 4  # preselected on the page, lowest first: eight at once takes a minute or two
_WARM_UP_TOKENS = 8


class Step(NamedTuple):
    """A block to measure; `level` is its concurrency."""

    repeat: int
    level: int
    method: str


@dataclass(frozen=True)
class LoadPlan(Plan[Step, LoadRow, Load]):
    """Blocks of every task at each `concurrency`, in each repeat.

    Concurrency 1 is always measured, as the reference for outputs. Several `lookaheads` are compared with each other.
    A block serves at least `requests` requests, and at least twice its concurrency.
    """

    repeats: int = field(default=REPEATS, kw_only=True)
    concurrency: Sequence[int] = LEVELS
    lookaheads: Sequence[int] = ()
    requests: int = 0

    row: ClassVar[type[Row]] = LoadRow
    calibrates: ClassVar[bool] = False

    @cached_property
    def variants(self) -> dict[str, GenerationSettings]:
        """Speculative strategies to compare, by name: the plan's own, or one per lookahead.

        Raises:
            SettingsError: a lookahead is out of range, or has no effect with these settings.
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
        """The run's identity, shared by all its rows.

        Raises:
            SettingsError: as `variants`.
            LoadError: a model is not converted yet.
        """
        common = Header.of(self.pair, self.settings, (PLAIN, *self.variants), self.tasks)
        levels = tuple(sorted({1, *self.concurrency}))
        return LoadHeader(**dict(common), levels=levels, requests=self.requests, seed=self.seed)

    def check(self) -> None:
        """Check that the engine can serve concurrent requests with comparable outputs.

        Raises:
            PairError, SettingsError: it cannot.
            LoadError: a model's tokenizer cannot be loaded.
        """
        if self.settings.engine not in CONCURRENT:
            raise SettingsError(
                f"The {self.settings.engine} engine serves one request at a time; choose the {CONCURRENT[0]} engine."
            )
        if self.settings.do_sample:
            raise SettingsError("Outputs under load are compared, so decoding must be greedy; switch sampling off.")
        if not self.concurrency or min(self.concurrency) < 1 or max(self.concurrency) > MOST_IN_FLIGHT:
            raise SettingsError(f"Concurrent requests are from 1 to {MOST_IN_FLIGHT}; choose other numbers.")
        models = with_tokenizers_compared(self.pair)
        for each in self.variants.values():
            check_concurrent(models, each.engine, each.strategy, each.sampling)

    def covers(self, row: LoadRow) -> bool:
        return row.repeat < self.repeats

    def missing(self, rows: Sequence[LoadRow]) -> list[Session[Step]]:
        """Return the remaining blocks, in order."""
        finished = {row.key for row in rows}
        left = [step for step in self.order() if step not in finished]
        return [Session(self.settings.engine, self.settings.engine, self.pair, left)] if left else []

    def order(self) -> Iterator[Step]:
        """Yield all blocks, in the order to measure them."""
        header = self.header
        methods = Random(self.seed).sample(header.methods, len(header.methods))
        for repeat in range(self.repeats):
            for level in Random(f"{self.seed} {repeat}").sample(header.levels, len(header.levels)):
                for method in methods if repeat % 2 else reversed(methods):
                    yield Step(repeat, level, method)

    def measure(self, engine: Engine, costs: Costs | None, steps: Sequence[Step], stop: Stop) -> Iterator[LoadRow]:
        """Serve the blocks, warming up each kind first; once `stop` returns True, the unfinished block is dropped.

        Raises:
            SettingsError: the engine serves one request at a time.
        """
        server, warm = _Server(batch_engine(engine), self, stop), set[tuple[str, int]]()
        for step in steps:
            if (step.method, step.level) not in warm and not server.warm_up(step):
                return
            warm.add((step.method, step.level))
            block = server.block(step)
            if block is None:
                return
            yield LoadRow(method=step.method, repeat=step.repeat, block=block)

    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[LoadRow]) -> Load:
        first = next(iter(facts.values()), None)
        return Load(
            header=self.header,
            variants=self.variants,
            tasks=tuple(self.tasks),
            date=self.today,
            repeats=self.repeats,
            environment=first.environment if first is not None else None,
            rows=tuple(rows),
        )

    def extras(self, found: Load, stop: Stop) -> Load:
        return with_memory(found, stop=stop)


def has_lookahead(settings: GenerationSettings) -> bool:
    """Check if these settings have a lookahead that can be varied."""
    return "num_assistant_tokens" in settings.strategy.parameters()


def with_memory(result: Load, load: Loader = load_engine, *, stop: Callable[[], bool] = never) -> Load:
    """Return the result with each side's memory at the highest concurrency, measured in separate processes.

    Once `stop` returns True, the result is unchanged.

    Raises:
        SpecdemoError: a model cannot be loaded, or a child process died.
    """
    if result.header.pair.target.server is not None:  # nothing runs on this machine
        return result
    level, prompt = max(result.header.levels), result.tasks[0].prompt
    settings, work = next(iter(result.variants.values())), partial(decode_at_once, level=level)
    uses = [
        measure_memory(result.header.pair, prompt, settings, side, load, stop, work=work, at_once=level)
        for side in SIDES
    ]
    return result if stop() else result.model_copy(update={"memory": tuple(filter(None, uses))})


class _Server:
    """Server of blocks, with the same requests on all sides."""

    def __init__(self, engine: BatchEngine, plan: LoadPlan, stop: Stop) -> None:
        self._engine = engine
        self._prompts = {task.name: task.prompt for task in plan.tasks}
        self._plain = Request.of("", plan.settings).plain
        self._requests = {name: Request.of("", each) for name, each in plan.variants.items()}
        self._least = max(plan.requests, len(plan.tasks))
        self._seed = plan.seed
        self._stop = stop

    def warm_up(self, step: Step) -> bool:
        """Decode a few tokens, since the first passes of a shape compile kernels; return False if stopped."""
        request = self._requests.get(step.method, self._plain)
        short = replace(request, max_new_tokens=min(_WARM_UP_TOKENS, request.max_new_tokens))
        return self._serve(step, short, step.level) is not None

    def block(self, step: Step) -> Block | None:
        """Serve one block; return None if stopped."""
        return self._serve(step, self._requests.get(step.method, self._plain), max(self._least, 2 * step.level))

    def _serve(self, step: Step, request: Request, number: int) -> Block | None:
        names = shuffled(list(self._prompts), f"{self._seed} {step.repeat} {step.level}")
        requests = (NamedRequest(name, replace(request, prompt=self._prompts[name])) for name in names)
        with closing(self._engine.batch(request.strategy)) as batch:
            return serve(batch, requests, step.level, number, self._stop, thoroughness=self._engine.thoroughness)


_begins = partial(begin, on=CONCURRENT[0])
"""Initial settings of a pair, on an engine that serves several requests at once."""


def _lookaheads(pair: ModelPair) -> tuple[int, ...]:
    return LOOKAHEADS if has_lookahead(_begins(pair)) else ()


def _first_lookahead(pair: ModelPair) -> list[int]:
    begins = _begins(pair).num_assistant_tokens
    return [min(LOOKAHEADS, key=lambda lookahead: abs(lookahead - begins))]


KIND = Kind(
    name="load",
    tab="Load",
    title="Several requests at once",
    explanation="The same requests, decoded plainly and speculatively with more and more of them at once: "
    "speculation gains less the larger the batch, and at some size it costs throughput. A stopped run keeps its "
    "finished blocks and resumes from there.",
    help="measure how the speedup changes with several requests at once",
    start="Measure under load",
    plan=LoadPlan,
    options=(
        Option(
            "concurrency",
            "Concurrency",
            "requests at once; 1 is always measured",
            "integers",
            LEVELS,
            aliases=("levels",),
            choices=lambda pair: LEVELS,
            first=lambda pair: LEVELS[:_FIRST_LEVELS],
        ),
        Option(
            "lookaheads",
            "Lookaheads",
            "several to compare, such as 2,4,6",
            "integers",
            (),
            choices=_lookaheads,
            first=_first_lookahead,
        ),
        Option(
            "requests",
            "Requests",
            "at least N in each block (default: every prompt, and twice the concurrency)",
            "count",
            0,
        ),
    ),
    begin=_begins,
    without=("do_sample", "temperature", "top_p", "top_k", "seed", "alternatives", "kv_cache", "sequential"),
    extras=Extras("memory", "Memory", "loads each side again, in a separate process"),
    turns=False,
    prompts=Range(32, 8),
    repeats=Range(12, REPEATS),
    tokens=Range(256, 64),
    limit=8,
    why="6 or more give an interval",
    charts=("latency", "speedup"),
    tables=("best", "table", "positions"),
)
