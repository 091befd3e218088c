"""Visitors' activities on the engine: runs, repeats, loading and measurements. A visitor can stop each of them."""

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event
from time import monotonic
from typing import Any, NamedTuple, Self

from specdemo.capabilities import EngineName
from specdemo.engines.base import check_prompt
from specdemo.errors import EngineError, ServerError, SpecdemoError
from specdemo.exports import schema
from specdemo.files import json_text
from specdemo.racing.trials import REPEAT_SECONDS, with_repeats
from specdemo.racing.worker import Job, Preload, WithEngine, Worker, if_loaded
from specdemo.records import Comparison, ModelPair, Phase, Request, Side, Slice, Turn
from specdemo.results.metrics import answer, race_seconds
from specdemo.results.simulation import RunValues
from specdemo.results.words import is_chat
from specdemo.settings import GenerationSettings
from specdemo.ui.feed import Feed, end_event, repeating_event
from specdemo.ui.parts import alert, notice, phase_text

_NOUNS = {"run": "race", "find": "search", "measure": "measurement", "load": "pair"}  # activities, for other visitors
_INITIAL_SETTINGS = GenerationSettings()  # of a first run, as far as loading depends on it


class Visitors:
    """Each visitor's activities in progress. Two may have the same name: the repeats of two runs, for example."""

    def __init__(self) -> None:
        self._busy: list[tuple[str, str, Event]] = []

    @contextmanager
    def busy(self, visitor: str, activity: str) -> Iterator[Event]:
        """Yield an event, which is set when the visitor stops the activity."""
        entry = visitor, activity, Event()
        self._busy.append(entry)
        try:
            yield entry[2]
        finally:
            self._busy.remove(entry)

    def events(self, visitor: str, activity: str) -> list[Event]:
        return [event for *name, event in [*self._busy] if name == [visitor, activity]]

    def others(self, visitor: str) -> str | None:
        """Return the activity of another visitor that holds the engine; None if there is none."""
        return next((activity for name, activity, _ in [*self._busy] if name != visitor and activity in _NOUNS), None)

    def stop(self, visitor: str, activity: str) -> None:
        for event in self.events(visitor, activity):
            event.set()


UPDATE_SECONDS = 0.35  # about a slice of both sides; each update of a race takes CPU time from the engine


class Update(NamedTuple):
    """`feed` None: the page keeps the last result. `turn`: the chat's new turn, once answered."""

    feed: str | None
    message: str
    turn: Turn | None = None
    finished: "FinishedRun | None" = None


class FinishedRun(NamedTuple):
    """Compressed, because a server may hold hundreds. `events`: how many events the page has received."""

    run: str
    events: int
    record: bytes
    measured: RunValues | None  # for the simulator

    @classmethod
    def of(cls, run: str, events: int, comparison: Comparison) -> Self:
        packed = zlib.compress(json_text(schema.to_json(comparison)).encode())
        return cls(run, events, packed, RunValues.of(comparison))

    @property
    def comparison(self) -> Comparison:
        return schema.from_json(json.loads(zlib.decompress(self.record)))


class Sessions:
    def __init__(self, worker: Worker, visitors: Visitors | None = None) -> None:
        self._worker = worker
        self._visitors = visitors or Visitors()

    def run(
        self, visitor: str, pair: ModelPair, prompt: str, settings: GenerationSettings, history: Sequence[Turn] = ()
    ) -> Iterator[Update]:
        """Errors become messages; closing the iterator frees the engine."""
        chat = is_chat(pair, settings)
        pair = with_chat_cache(pair, settings)
        feed = Feed(pair, prompt, settings, history)
        started, due = set[Side](), 0.0
        message, ended = "", False
        try:
            check_prompt(Request.of(prompt, settings, tuple(history)))
            with self._visitors.busy(visitor, "run") as cancelled:
                for progress in self._worker.compare(pair, prompt, settings, cancelled, history):
                    match progress:
                        case None:
                            yield Update(None, message)
                        case Phase():
                            feed.phase(phase_text(progress))
                            yield Update(feed.next_update(), "")
                        case Slice():
                            feed.add(progress)
                            if monotonic() >= due or progress.side not in started:  # show a first token at once
                                started.add(progress.side)
                                due = monotonic() + UPDATE_SECONDS
                                yield Update(feed.next_update(), "")
                        case Comparison():
                            ended = True
                            message = "".join(alert(ServerError(text)) for text in progress.failures.values())
                            turn = _turn(prompt, progress) if chat else None
                            finished = FinishedRun.of(feed.run, len(feed) + 1, progress)
                            yield Update(end_event(progress, feed.run, len(feed)), message, turn, finished)
            if not ended:  # a run that has started ends with a comparison
                stopped = "Stopped before the first token."
                feed.fail(stopped)
                yield Update(feed.next_update() if feed.shown else None, notice(stopped))
        except Exception as error:  # whatever it is, the feed ends
            failure = as_failure(error, "The run failed")
            feed.fail(str(failure))
            yield Update(feed.next_update(), alert(failure))

    def preload(self, pair: ModelPair, settings: GenerationSettings, *, load: bool = False) -> None:
        """Warm up for a run while nobody else needs the engine. `load`: even if that replaces another pair."""
        job = Preload(settings.engine, with_chat_cache(pair, settings), settings)
        with suppress(SpecdemoError):  # the run reports it
            for _ in self._worker.run_idle(job if load else partial(if_loaded, job=job)):
                pass

    def stop(self, visitor: str, activity: str) -> None:
        self._visitors.stop(visitor, activity)

    def update_settings(self, visitor: str, settings: GenerationSettings) -> None:
        for event in self._visitors.events(visitor, "run"):
            self._worker.update_settings(event, settings)

    def repeat(
        self, visitor: str, pair: ModelPair, finished: FinishedRun
    ) -> Iterator[tuple[str, FinishedRun] | None]:
        """Repeat a finished race while nobody else needs the engine. Yield an event for the page and the run: at the
        beginning and, updated, at the end, if there were repeats; None meanwhile.
        """
        before = last = finished.comparison
        if before.repeats:  # after a refused run, the earlier run is still in place
            return
        pair = with_chat_cache(pair, before.settings)
        chosen = pair.model_dump(exclude={"translated"})  # known once loaded
        if chosen != before.pair.model_dump(exclude={"translated"}):  # the visitor has chosen another pair since
            return
        engine, bound = before.settings.engine, max(REPEAT_SECONDS, race_seconds(before))  # as the repeats
        with self._visitors.busy(visitor, "repeat") as cancelled, suppress(SpecdemoError):  # the race is still valid
            yield repeating_event(finished.run, finished.events), finished
            # step costs come last: measuring them cannot always be stopped, which would delay the next run
            for calibrate in (False, True):
                job = WithEngine(engine, pair, partial(with_repeats, comparison=last), calibrate, bound)
                for progress in self._worker.run_idle(partial(if_loaded, job=job), cancelled):
                    last = progress if isinstance(progress, Comparison) else last
                    yield None
                    if cancelled.is_set():  # step costs may take a moment to end, which the page need not wait for
                        break
                if cancelled.is_set() or last.costs is not None:
                    break
        if last is not before:
            event = end_event(last, finished.run, finished.events + 1)
            yield event, FinishedRun.of(finished.run, finished.events + 2, last)

    def load(self, visitor: str, engine: EngineName, pair: ModelPair) -> Iterator[str]:
        """Load a pair in place of the current one. Yield messages; if the last one is empty, the pair is loaded."""
        with self._visitors.busy(visitor, "load") as cancelled:
            for phase in self._worker.run(Preload(engine, with_chat_cache(pair)), cancelled):
                yield notice(phase_text(phase)) if phase is not None else ""
            yield notice("Stopped; the next run may load the previous pair again.") if cancelled.is_set() else ""

    def waiting_notice(self, visitor: str) -> str:
        """Say why this visitor's next run waits; empty if it does not."""
        if self._visitors.events(visitor, "load"):
            return notice("The other pair is still loading; the run starts when it is ready.")
        busy = self._visitors.others(visitor)
        return notice(f"Another visitor's {_NOUNS[busy]} is in progress; this run waits for it.") if busy else ""

    def measure(self, visitor: str, activity: str, job: Job) -> Iterator[Any]:
        """Yield what `Worker.run` yields, until the job ends or this visitor stops it."""
        with self._visitors.busy(visitor, activity) as cancelled:
            yield from self._worker.run(job, cancelled)

    def compare(self, pair: ModelPair, prompt: str, settings: GenerationSettings) -> Iterator[dict[str, Any] | None]:
        """Yield None from time to time, and at the end an object of schema 3."""
        due = 0.0
        for progress in self._worker.compare(pair, prompt, settings):
            if isinstance(progress, Comparison):
                yield schema.to_json(progress)
            elif monotonic() >= due:
                due = monotonic() + UPDATE_SECONDS
                yield None


def as_failure(error: Exception, what: str) -> SpecdemoError:
    if isinstance(error, SpecdemoError):
        return error
    failure = EngineError.of(error, what)
    failure.__cause__ = error
    return failure


def _turn(prompt: str, comparison: Comparison) -> Turn | None:
    """None if the run was stopped, or cut off while the model was thinking."""
    text = answer(comparison.plain.text)
    return Turn(prompt=prompt, answer=text) if text and comparison.plain.finish_reason != "cancelled" else None


def with_chat_cache(pair: ModelPair, settings: GenerationSettings = _INITIAL_SETTINGS) -> ModelPair:
    """Enable prefix caching, so that a chat's next turn prefills only its new tokens, on both sides. A server manages
    its own cache.
    """
    if pair.servers is not None or not is_chat(pair, settings):
        return pair
    runtime = pair.runtime.model_copy(update={"enable_prefix_caching": True})
    return pair.model_copy(update={"runtime": runtime})
