"""Pairs of models, and the measurements they offer.

A `Pair` runs its engines in a separate process, as the page does: a crash there ends one measurement and not the
notebook, and step costs are measured once per engine. Models are loaded when needed, one engine at a time; `close`,
or the end of a `with` block, frees everything.

Settings have the same names as on the page and in the terminal; `specdemo compare --help` lists them. They default to
the pair's own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, NamedTuple, Self

from specdemo.api.runs import Experiment, Run
from specdemo.engines import Engine, load_engine
from specdemo.engines.server import remote_pair
from specdemo.errors import UnknownNameError, UsageError, quoted
from specdemo.experiments import PRESETS, Axes, chosen_tasks, fastest, run, typed_tasks
from specdemo.models.catalogue import Entry, catalogue, suggestion
from specdemo.models.hub import download, download_source
from specdemo.models.library import entry_folders, library, resolve
from specdemo.models.pairs import default_pair, initial_runtime, pair_of, pair_settings
from specdemo.race import race
from specdemo.records import (
    Comparison,
    Costs,
    Model,
    ModelPair,
    Phase,
    Progress,
    Round,
    Server,
    Servers,
    Side,
    Slice,
    Turn,
)
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import EngineName
from specdemo.trials import confirmed
from specdemo.worker import EngineFactory, Job, WithEngine, WithLoader, Worker

Name = str | Path
OnProgress = Callable[[Progress[Any]], None]
"""Callback with the progress after every run of an experiment."""
OWN_DRAFT = "own"
"""The catalogue's draft for a target, if it is on this machine."""


class LiveRound(NamedTuple):
    """A decoded round; number 0 is the side's prefill."""

    side: Side
    number: int
    round: Round


LiveEvent = Phase | LiveRound
"""Events of a live comparison: phases such as loading, then rounds."""


class Pair:
    """A target and its draft, and the process that runs them."""

    def __init__(self, models: ModelPair, *, engines: EngineFactory = load_engine) -> None:
        """Wrap a model pair; `engines(name, pair)` loads an engine in the pair's process, and must be picklable."""
        self.models = models
        self._engines = engines
        self._worker: Worker | None = None

    @property
    def name(self) -> str:
        return self.models.name

    def settings(self, **chosen: Any) -> GenerationSettings:
        """Return the pair's default settings, changed as given; without a draft, the drafter is prompt lookup.

        Raises:
            SettingsError: a setting is out of range, or two contradict each other.
        """
        return pair_settings(self.models, **chosen)

    def stream(
        self, prompt: str, *, repeats: int | None = None, history: Sequence[Turn] = (), **settings: Any
    ) -> "LiveRun":
        """Return a comparison to iterate over while it runs; see `compare`.

        Raises:
            SettingsError: a setting is out of range, or two contradict each other.
        """
        return LiveRun(self, prompt, self.settings(**settings), repeats, tuple(history))

    def costs(self, engine: EngineName | None = None) -> Costs | None:
        """Return step costs in an engine, measured at its first use; None if they cannot be measured.

        Raises:
            SpecdemoError: the pair cannot be loaded.
        """
        found = [*self.work(WithEngine(engine or self.settings().engine, self.models, _costs))]
        return next((each for each in found if isinstance(each, Costs)), None)

    def work(self, job: Job, stopped: Event | None = None) -> Iterator[Any]:
        """Run a job in the pair's process and yield its events; closing the iterator or setting `stopped` ends it.

        Raises:
            SpecdemoError: the job failed, or its process died.
        """
        if self._worker is None:
            self._worker = Worker(self._engines)
        for message in self._worker.run(job, stopped):
            if message is not None:
                yield message

    def close(self) -> None:
        """End the process and free the models; the next use of the pair loads them again."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        models = (self.models.target, self.models.draft)
        words = (f"{model.name}, {model.weights}" for model in models if model is not None)
        return f"<Pair {self.name}: {' | '.join(words)}>"


class LiveRun:
    """A comparison that runs while you iterate over it, once, with `for` or `async for`; `run` is its result.

    `stop`, or leaving the loop, ends it early and keeps the result so far.
    """

    def __init__(
        self, pair: Pair, prompt: str, settings: GenerationSettings, repeats: int | None, history: tuple[Turn, ...]
    ) -> None:
        work = partial(_compared, prompt=prompt, settings=settings, history=history, number=repeats)
        self._pair, self._job = pair, WithEngine(settings.engine, pair.models, work)
        self._stopped = Event()
        self._comparison: Comparison | None = None

    @property
    def run(self) -> Run:
        """Result so far.

        Raises:
            UsageError: there is no result yet.
        """
        if self._comparison is None:
            raise UsageError("This comparison has no result yet; iterate over it to its end first.")
        return Run(self._comparison)

    def stop(self) -> None:
        """End the comparison after the current round."""
        self._stopped.set()

    def __iter__(self) -> Iterator[LiveEvent]:
        """Yield phases and rounds as they happen."""
        numbers: dict[Side, int] = {"plain": 0, "speculative": 0}
        for event in self._pair.work(self._job, self._stopped):
            if isinstance(event, Comparison):
                self._comparison = event
            elif isinstance(event, Slice):
                for each in event.rounds:
                    yield LiveRound(event.side, numbers[event.side], each)
                    numbers[event.side] += 1
            else:
                yield event

    async def __aiter__(self) -> AsyncIterator[LiveEvent]:
        """Yield phases and rounds as they happen, without blocking the event loop."""
        events = iter(self)
        try:
            while (event := await asyncio.to_thread(next, events, None)) is not None:
                yield event
        finally:
            self.stop()

    def result(self) -> Run:
        """Run to the end and return the result.

        Raises:
            SpecdemoError: the comparison cannot be run, or failed.
        """
        for _ in self:
            pass
        return self.run

    async def wait(self) -> Run:
        """Run to the end without blocking the event loop, and return the result."""
        async for _ in self:
            pass
        return self.run


def _costs(engine: Engine, *, stop: Callable[[], bool], costs: Costs | None) -> Iterator[Costs | None]:
    yield costs


def _compared(
    engine: Engine,
    *,
    stop: Callable[[], bool],
    costs: Costs | None,
    prompt: str,
    settings: GenerationSettings,
    history: tuple[Turn, ...],
    number: int | None,
) -> Iterator[Any]:
    """Race, then repeat; yield the comparison after each repeat, and finally with the engine's own counters."""
    for event in race(engine, prompt, settings, history=history, stop=stop, costs=costs):
        yield event
        if isinstance(event, Comparison):
            yield from confirmed(engine, event, number=number, stop=stop)


def load(
    target: Name | None = None,
    draft: Name | None = OWN_DRAFT,
    *,
    models_dir: Path | None = None,
    url: str | None = None,
    plain_url: str | None = None,
    **runtime: Any,
) -> Pair:
    """Return a pair by the names of its models, which are loaded when needed.

    A model is named as by `specdemo models list`, or by a folder, a GGUF file or its id on the Hub, from which it is
    downloaded if necessary. Without a target, the page's initial pair is used. By default, the draft is the
    catalogue's for this target, if it is on this machine; None stands for no draft, so that prompt lookup proposes.
    `url` and `plain_url` name servers to use instead of local models. `runtime` are runtime settings, such as
    `device` or `precision`.

    Raises:
        SpecdemoError: there is no such model, or the models do not fit each other.
    """
    if url is not None or plain_url is not None:
        if target is not None:
            raise UsageError("Servers have their own models; leave the target out, or the servers' URLs.")
        named = {"speculative": url, "plain": plain_url}
        return Pair(remote_pair(Servers(**{side: Server(url=each) for side, each in named.items() if each})))
    if target is None:
        return Pair(default_pair(**runtime))
    entry = _entry_of(str(target))
    models = [_model(str(target), models_dir, entry)]
    if draft == OWN_DRAFT:
        folders = entry_folders(entry, models_dir) if entry is not None else ()
        models += [_at(folder, models_dir) for folder in folders[1:] if folder is not None]
    elif draft is not None:
        models.append(_model(str(draft), models_dir, None))
    chosen = RuntimeSettings.checked(**initial_runtime(models[0]).model_dump() | runtime)
    return Pair(pair_of(*models, runtime=chosen))


def _entry_of(name: str) -> Entry | None:
    """Return the catalogue entry with this name, target name or target repository."""
    return next((each for each in catalogue() if name in (each.name, each.target.name, each.target.repository)), None)


def _model(name: str, directory: Path | None, entry: Entry | None) -> Model:
    """Return a model by any of its names, downloading it from the Hub if necessary."""
    if entry is not None:
        folder = entry_folders(entry, directory)[0]
        if folder is None:
            *_, last = download_source(entry.target)
            folder = last.result
        assert folder is not None, "nobody stops the download"
        return _at(folder, directory)
    try:
        return resolve(name, directory)
    except UnknownNameError:
        if "/" not in name:
            raise
    for _ in download(name):
        pass
    return resolve(name, directory)


def _at(folder: Path, directory: Path | None) -> Model:
    """Return the library's model in this folder."""
    return next(model for model in library(directory).models if model.path == folder)


def compare(
    pair: Pair | Name,
    prompt: str,
    *,
    repeats: int | None = None,
    history: Sequence[Turn] = (),
    **settings: Any,
) -> Run:
    """Race plain against speculative decoding of a prompt, then repeat the race to measure the speedup.

    Chat models get the prompt as a message after the turns of `history`. More `repeats` narrow the speedup's
    interval; None chooses their number as the page does.

    Raises:
        SpecdemoError: the comparison cannot be run, or failed; the message says what to do.
    """
    with _opened(pair) as used:
        return used.stream(prompt, repeats=repeats, history=history, **settings).result()


def experiment(
    pair: Pair | Name,
    prompts: str | Sequence[str] | Path | None = None,
    *,
    preset: str = "measure",
    limit: int | None = None,
    repeats: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    **chosen: Any,
) -> Experiment:
    """Measure prompts × settings × repeats, as `specdemo measure` does, or a preset such as "tune" or "bench".

    `prompts` are texts, a `Path` to JSON lines, or by default the bundled suite, of which at most `limit` are used.
    `chosen` are what varies, such as `lookaheads=[2, 4]` or `strategies=["all"]`, and settings. `on_progress` is
    called with a `Progress` after every run.

    Raises:
        SpecdemoError: it cannot be measured, or failed; the message says what to do.
    """
    if preset not in PRESETS:
        raise UsageError(f"There is no preset {quoted(preset)}; {suggestion(preset, [*PRESETS])}.")
    named = PRESETS[preset]
    axes = {name: tuple(chosen.pop(name)) for name in Axes.model_fields if name in chosen}
    with _opened(pair) as used:
        settings = named.settings(used.models, **chosen)
        if prompts is None or isinstance(prompts, Path):
            tasks = chosen_tasks(
                prompts, used.models.target.prompts, limit or (named.limit if prompts is None else None)
            )
        else:
            tasks = typed_tasks([prompts] if isinstance(prompts, str) else prompts)
        plan = named.plan(used.models, tasks, settings, axes, repeats=repeats, minutes=minutes, seed=seed)
        last = None
        for progress in used.work(WithLoader(used.models, partial(run, plan, fastest=fastest))):
            if isinstance(progress, Progress):
                last = progress
                if on_progress is not None:
                    on_progress(progress)
    assert last is not None, "an experiment begins with a state"
    return Experiment(last.result)


@contextmanager
def _opened(pair: Pair | Name) -> Iterator[Pair]:
    """Yield an open pair as it is; a pair given by name is loaded, and closed at the end."""
    if isinstance(pair, Pair):
        yield pair
        return
    with load(pair) as opened:
        yield opened
