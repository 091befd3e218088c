"""Jobs for the engine's process, what is loaded there, and that process from within."""

import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from operator import attrgetter
from typing import Any

from specdemo.child import send_all
from specdemo.engines.base import Engine
from specdemo.errors import EngineError, SettingsError, SpecdemoError
from specdemo.measure.conditions import prepare
from specdemo.measure.race import LiveSettings, race
from specdemo.measure.step_costs import measure_costs
from specdemo.models.gguf_convert import convert_pair
from specdemo.models.pairs import begun
from specdemo.progress import Phase
from specdemo.records import Costs, ModelPair, Turn
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.worker.watch import beat

EngineFactory = Callable[[EngineName, ModelPair], Engine]
Job = Callable[["Engines"], Iterator[Any]]
"""Work for the child to do with what is loaded there; `WithEngine` and `WithLoader` make jobs."""


class Engines:
    """What is loaded in the child: at most one engine, since each holds copies of the models; and what steps cost."""

    def __init__(
        self,
        factory: EngineFactory,
        stop: Callable[[], bool],
        moved: Callable[[], LiveSettings | None] = lambda: None,
    ) -> None:
        """`stop` says whether the current job should end, `moved` where its settings were moved."""
        self.factory = factory
        self.stop = stop
        self.moved = moved
        self._name: tuple[EngineName, ModelPair] | None = None
        self._engine: Engine | None = None
        self._costs: dict[tuple[EngineName, ModelPair], Costs | None] = {}

    def using(
        self, engine: EngineName, pair: ModelPair, *, calibrate: bool = True
    ) -> Generator[Phase, None, tuple[Engine, Costs | None]]:
        """Load this pair in this engine, after freeing what was loaded; measure its step costs once, if wanted."""
        name = (engine, pair)
        if self._engine is None or self._name != name:
            yield from converting(pair)
            yield Phase("loading")
            self.close()
            self._engine, self._name = self.factory(engine, pair), name
        if calibrate and self._costs.get(name) is None:
            yield Phase("calibrating")
            self._costs[name] = measure_costs(self._engine, stop=self.stop)
        return self._engine, self._costs.get(name)

    def has(self, engine: EngineName, pair: ModelPair) -> bool:
        """Whether this pair is loaded in this engine."""
        return self._engine is not None and self._name == (engine, pair)

    def close(self) -> None:
        """Free what is loaded."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._name = None


@dataclass(frozen=True)
class WithEngine:
    """Work with a pair in one engine: `work(engine, stop=…, costs=…)`.

    Work that does not need step costs is not kept waiting for them.
    """

    engine: EngineName
    pair: ModelPair
    work: Callable[..., Iterator[Any]]
    calibrate: bool = True

    def __call__(self, engines: Engines) -> Iterator[Any]:
        """Load and calibrate whatever is not ready yet, then work."""
        engine, costs = yield from engines.using(self.engine, self.pair, calibrate=self.calibrate)
        if not engines.stop():
            yield from self.work(engine, stop=engines.stop, costs=costs)


@dataclass(frozen=True)
class Prepare:
    """Make a pair ready for a race with these settings, so that it begins at once; without any, its initial ones.

    Loaded and warm come first. Without settings, step costs follow, which most races do without: whoever comes
    meanwhile may have to wait for one of their parts.
    """

    engine: EngineName
    pair: ModelPair
    settings: GenerationSettings | None = None

    def __call__(self, engines: Engines) -> Iterator[Any]:
        """Load, warm up and calibrate whatever is not ready yet."""
        settings = self.settings or self._initial()
        first = settings is not None and needs_costs(settings)
        engine, costs = yield from engines.using(self.engine, self.pair, calibrate=first)
        if not engine.remote and settings is not None and not engines.stop():
            yield from prepare(engine, settings, costs, engines.stop)
        if self.settings is None and not first and not engines.stop():
            yield from engines.using(self.engine, self.pair)

    def _initial(self) -> GenerationSettings | None:
        chosen = {"engine": self.engine} | ({"drafter": "lookup"} if self.pair.draft is None else {})
        with suppress(SettingsError):  # whoever runs it learns why
            return begun(self.pair.target, **chosen)
        return None


def needs_costs(settings: GenerationSettings) -> bool:
    """Whether the strategy depends on what steps cost."""
    strategy = settings.strategy
    return strategy.needs_costs or strategy.fixed_lookahead is None


@dataclass(frozen=True)
class Race:
    """A race whose settings can be moved; see `Worker.move`."""

    pair: ModelPair
    prompt: str
    settings: GenerationSettings
    history: tuple[Turn, ...] = ()

    def __call__(self, engines: Engines) -> Iterator[Any]:
        """Load whatever is not ready yet, measure step costs where the strategy depends on them, then race."""
        work = partial(race, prompt=self.prompt, settings=self.settings, history=self.history, moved=engines.moved)
        yield from WithEngine(self.settings.engine, self.pair, work, calibrate=needs_costs(self.settings))(engines)


@dataclass(frozen=True)
class WithLoader:
    """Work with a pair in several engines, which the work loads and closes itself: `work(load, stop=…)`.

    `load(name)` loads this pair; `load(name, pair)` the same at other runtime settings."""

    pair: ModelPair
    work: Callable[..., Iterator[Any]]

    def __call__(self, engines: Engines) -> Iterator[Any]:
        """Free what is loaded, then work."""
        engines.close()
        yield from converting(self.pair)

        def load(name: EngineName, pair: ModelPair = self.pair) -> Engine:
            return engines.factory(name, pair)

        yield from self.work(load, stop=engines.stop)


@dataclass(frozen=True)
class IfLoaded:
    """A job with a pair in one engine, but only if both are loaded already."""

    job: WithEngine | Prepare

    def __call__(self, engines: Engines) -> Iterator[Any]:
        """Work, or do nothing."""
        if engines.has(self.job.engine, self.job.pair):
            yield from self.job(engines)


def converting(pair: ModelPair) -> Iterator[Phase]:
    """Convert what of a pair is GGUF and not ready to be loaded."""
    for _, seconds in convert_pair(pair):
        yield Phase("converting", seconds=seconds)


def serve(
    connection: Connection,
    factory: EngineFactory,
    first: Job | None,
    stop: Event,
    ready: Event,
    controls: Sequence[float],
    pulse: Any,
) -> None:
    """The child: do jobs until the parent is gone. What failed to load is retried."""
    beat(pulse)

    def moved() -> LiveSettings | None:
        lookahead, threshold = controls
        return LiveSettings(int(lookahead), threshold) if lookahead else None

    engines = Engines(factory, stop.is_set, moved)
    if first is not None:
        with suppress(Exception):  # the job that needs it learns why, when loading is retried
            for name, phases in groupby(first(engines), attrgetter("name")):  # few, since nobody may be listening
                connection.send(next(phases))
                if name == "calibrating":  # whoever waits may do without
                    engines.stop = lambda: stop.is_set() or connection.poll()
        engines.stop = stop.is_set
    ready.set()
    while True:
        send_all(connection, _guarded(connection.recv(), engines))


def _guarded(job: Job, engines: Engines) -> Iterator[Any]:
    """What the job yields. Whatever goes wrong, the process survives for the next job."""
    try:
        yield from job(engines)
    except SpecdemoError:
        raise
    except Exception as failure:
        traceback.print_exception(failure)
        engines.close()
        raise EngineError from failure
