"""What a visitor's run does, step by step, without a widget in it; and who is doing what."""

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event
from time import monotonic
from typing import Any, NamedTuple, Self

from specdemo.analysis.metrics import answer
from specdemo.engines.base import Engine
from specdemo.errors import ServerError, SpecdemoError
from specdemo.files import json_text
from specdemo.measure.race import LiveSettings, with_counters
from specdemo.measure.trials import repeats
from specdemo.presentation import schema
from specdemo.presentation.feed import Feed, end_event
from specdemo.presentation.wording import is_chat
from specdemo.records import Comparison, Costs, ModelPair, Phase, Request, Side, Turn
from specdemo.runtime.text import check_prompt
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.ui.boards import anatomy
from specdemo.ui.parts import alert, describe, notice, phase_words
from specdemo.worker import IfLoaded, Job, Prepare, WithEngine, Worker


class Visitors:
    """What each visitor has in progress."""

    def __init__(self) -> None:
        self._cancelled: dict[tuple[str, str], Event] = {}

    @contextmanager
    def busy(self, visitor: str, what: str) -> Iterator[Event]:
        """The event that is set when this visitor stops it."""
        event = self._cancelled[visitor, what] = Event()
        try:
            yield event
        finally:
            self._cancelled.pop((visitor, what), None)

    def event(self, visitor: str, what: str) -> Event | None:
        """The event of a thing that this visitor has in progress, if there is one."""
        return self._cancelled.get((visitor, what))

    def stop(self, visitor: str, what: str) -> None:
        """Stop one thing that this visitor has in progress, if it has."""
        event = self.event(visitor, what)
        if event is not None:
            event.set()


UPDATE_SECONDS = 0.35
"""Between updates of the page; live playback can only advance when both sides have had their slice. Each update costs
server and browser time, which an engine on the same machine loses."""


class Update(NamedTuple):
    """What to show; None where there is nothing new, so that an earlier result stays.

    `turn` is what a chat can continue from, once a run has answered a message; `finished` is the run as it ended.
    """

    feed: str | None
    message: str
    anatomy: str | None = None
    turn: Turn | None = None
    finished: "FinishedRun | None" = None


class FinishedRun(NamedTuple):
    """A run that has ended, as the server keeps it for its visitor, and where the page's next event of it belongs.

    `record` is the comparison's JSON, compressed, since there may be hundreds of visitors.
    """

    run: str
    events: int
    record: bytes

    @classmethod
    def of(cls, run: str, events: int, comparison: Comparison) -> Self:
        """The run, after so many events."""
        return cls(run, events, zlib.compress(json_text(schema.to_json(comparison)).encode()))

    @property
    def comparison(self) -> Comparison:
        """What it ended with."""
        return schema.from_json(json.loads(zlib.decompress(self.record)))


class Sessions:
    """What visitors do with the engine."""

    def __init__(self, worker: Worker, visitors: Visitors | None = None) -> None:
        self._worker = worker
        self._visitors = visitors or Visitors()

    def run(
        self,
        visitor: str,
        pair: ModelPair,
        prompt: str,
        settings: GenerationSettings,
        history: Sequence[Turn] = (),
    ) -> Iterator[Update]:
        """Compare, yielding what to show. Errors become messages; closing the iterator frees the engine."""
        chat = is_chat(pair, settings)
        feed, begun, due, message = Feed(prompt, settings, history, chat=chat), set[Side](), 0.0, ""
        pair = with_chat_cache(pair, settings)
        try:
            check_prompt(
                Request.of(prompt, settings, tuple(history))
            )  # before an earlier run makes room for this one
            with self._visitors.busy(visitor, "run") as cancelled:
                for progress in self._worker.compare(pair, prompt, settings, cancelled, history):
                    if progress is None:
                        yield Update(None, message)
                        continue
                    if isinstance(progress, Phase):
                        feed.phase(phase_words(progress))
                        yield Update(feed.news(), "")
                        continue
                    feed, message = feed.after(progress), ""
                    if isinstance(progress, Comparison):
                        message = "".join(alert(ServerError(text)) for text in progress.failures.values())
                        turn = _turn(prompt, progress) if chat else None
                        finished = FinishedRun.of(feed.run, len(feed), progress)
                        yield Update(feed.everything, message, anatomy(progress), turn, finished)
                    elif monotonic() >= due or progress.side not in begun:  # a first token is shown at once
                        begun.add(progress.side)
                        due = monotonic() + UPDATE_SECONDS
                        yield Update(feed.news(), "")
            if not begun:
                feed.fail("Stopped before the first token.")
                yield Update(feed.everything if feed.shown else None, notice("Stopped before the first token."))
        except SpecdemoError as error:
            feed.fail(str(error))
            yield Update(feed.everything if feed.shown else None, alert(error))

    def prepare(self, pair: ModelPair, settings: GenerationSettings, *, load: bool = False) -> None:
        """Have the engine warm for a run with these settings, while nobody else needs it.

        `load`: also if something else is loaded, which then has to go.
        """
        job = Prepare(settings.engine, with_chat_cache(pair, settings), settings)
        with suppress(SpecdemoError):  # the run will say so
            for _ in self._worker.run_idle(job if load else IfLoaded(job)):
                pass

    def move(self, visitor: str, settings: GenerationSettings) -> None:
        """Move the settings of this visitor's run, if there is one, from its next round on."""
        event = self._visitors.event(visitor, "run")
        if event is not None:
            self._worker.move(
                event, LiveSettings(settings.num_assistant_tokens, settings.assistant_confidence_threshold)
            )

    def repeat(
        self, visitor: str, pair: ModelPair, finished: FinishedRun
    ) -> Iterator[tuple[str, FinishedRun] | None]:
        """Repeat a finished race while nobody else needs the engine; yield the page's event and the run by then.

        None comes before that, and nothing else if the race is not repeated. Closing the iterator frees the engine.
        """
        before = last = finished.comparison
        if before.repeats:  # already; a run that was refused since has left it in place
            return
        pair = with_chat_cache(pair, before.settings)
        if pair.model_dump() != before.pair.model_dump():  # the visitor has chosen another one since
            return
        engine = before.settings.engine
        with self._visitors.busy(visitor, "repeat") as cancelled, suppress(SpecdemoError):  # the race itself stands
            # step costs last: a part of them cannot be stopped, and whoever runs again soon would wait for it
            for work, calibrate in ((_repeat_race, False), (_with_costs, True)):
                job = IfLoaded(WithEngine(engine, pair, partial(work, comparison=last), calibrate=calibrate))
                for progress in self._worker.run_idle(job, cancelled):
                    last = progress if isinstance(progress, Comparison) else last
                    yield None
                if cancelled.is_set():
                    break
        if last is not before:
            line = end_event(finished.run, finished.events, last)
            yield line, FinishedRun.of(finished.run, finished.events + 1, last)

    def load(self, visitor: str, engine: EngineName, pair: ModelPair) -> Iterator[str]:
        """Load a pair in place of another, yielding messages, or empty ones where there is none.

        It has been loaded if the last one is empty.

        Raises:
            SpecdemoError: it cannot be loaded.
        """
        with self._visitors.busy(visitor, "load") as cancelled:
            for phase in self._worker.run(Prepare(engine, initial_pair(pair)), cancelled):
                yield describe(phase) if phase is not None else ""
            yield notice("Stopped; the previous pair is still in use.") if cancelled.is_set() else ""

    def measure(self, visitor: str, what: str, job: Job) -> Iterator[Any]:
        """What `Worker.run` yields of a job, until it is done or this visitor stops it.

        Raises:
            SpecdemoError: what loading or the task raised.
        """
        with self._visitors.busy(visitor, what) as cancelled:
            yield from self._worker.run(job, cancelled)

    def compare(self, pair: ModelPair, prompt: str, settings: GenerationSettings) -> Iterator[dict[str, Any] | None]:
        """One whole comparison as an object of schema 2, and None now and then before it.

        Closing the iterator frees the engine.

        Raises:
            SpecdemoError: it cannot be run, or failed.
        """
        due = 0.0
        for progress in self._worker.compare(pair, prompt, settings):
            if isinstance(progress, Comparison):
                yield schema.to_json(progress)
            elif monotonic() >= due:
                due = monotonic() + UPDATE_SECONDS
                yield None


def _turn(prompt: str, comparison: Comparison) -> Turn | None:
    """The turn a chat can continue from, unless it was stopped or cut off while the model was thinking."""
    said = answer(comparison.plain.text)
    return Turn(prompt=prompt, answer=said) if said and comparison.plain.finish_reason != "cancelled" else None


def _repeat_race(
    engine: Engine, *, stop: Callable[[], bool], costs: Costs | None, comparison: Comparison
) -> Iterator[Comparison]:
    """Repeat a race, with the step costs if they were measured meanwhile; last, what the engine counts."""
    begin = last = next(_with_costs(engine, stop=stop, costs=costs, comparison=comparison), comparison)
    if begin is not comparison:
        yield begin
    for last in repeats(engine, begin, stop=stop):
        yield last
    more = with_counters(engine, last, stop)
    if more.counters is not None:
        yield more


def _with_costs(
    engine: Engine, *, stop: Callable[[], bool], costs: Costs | None, comparison: Comparison
) -> Iterator[Comparison]:
    """The race with the step costs that may have been measured only after it."""
    if comparison.costs is None and costs is not None:
        yield comparison.model_copy(update={"costs": costs})


def with_chat_cache(pair: ModelPair, settings: GenerationSettings) -> ModelPair:
    """The pair as these settings need it: with prefix caching where the prompt is a message of a chat."""
    return with_prefix_cache(pair) if is_chat(pair, settings) else pair


def initial_pair(pair: ModelPair) -> ModelPair:
    """The pair as its first run will need it, so that it is loaded once."""
    return with_prefix_cache(pair) if pair.target.chat_template else pair


def with_prefix_cache(pair: ModelPair) -> ModelPair:
    """The pair with prefix caching, so that a chat's next turn reads only what is new, on both sides.

    A server has its own, or none. GenAI speculates without it for some targets and drafts.
    """
    if pair.servers is not None or pair.target.linear_attention or pair.head in ("dflash", "mtp"):
        return pair
    runtime = pair.runtime.model_copy(update={"enable_prefix_caching": True})
    return pair.model_copy(update={"runtime": runtime})
