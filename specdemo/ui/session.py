"""What a visitor's run does, step by step, without a widget in it."""

from collections.abc import Iterator
from threading import Event
from time import monotonic
from typing import Any, NamedTuple

from markupsafe import Markup

from specdemo import schema
from specdemo.compare import Phase
from specdemo.errors import SpecdemoError
from specdemo.records import Comparison
from specdemo.settings import GenerationSettings
from specdemo.ui.feed import Feed
from specdemo.worker import Worker

PHASES = {
    "loading": "Loading the models and measuring what their steps cost …",
    "warming up": "Warming both sides up, off the clock …",
}


UPDATE_SECONDS = 0.35
"""Between updates of the page, which live playback can only follow when both sides have had their slice. Each costs
server and browser time that, on one machine with the engine, the engine misses."""


class Update(NamedTuple):
    """What to show. `feed` is None as long as there is nothing new, so that an earlier result stays."""

    feed: str | None
    message: str


class Sessions:
    """The running comparison of each visitor, so that a Stop reaches that visitor's run alone."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._cancelled: dict[str, Event] = {}

    def run(self, visitor: str, prompt: str, settings: GenerationSettings) -> Iterator[Update]:
        """Compare, yielding what to show. Errors become messages; closing the iterator frees the engine."""
        cancelled = self._cancelled[visitor] = Event()
        feed, begun, due = Feed(prompt, settings), False, 0.0
        try:
            for progress in self._worker.compare(prompt, settings, cancelled):
                if isinstance(progress, Phase):
                    yield Update(None, notice(PHASES[progress.name]))
                    continue
                feed.add(progress)
                begun = True
                if isinstance(progress, Comparison):
                    yield Update(feed.everything, "")
                elif monotonic() >= due:
                    yield Update(feed.recent, "")
                    due = monotonic() + UPDATE_SECONDS
            if not begun:
                yield Update(None, notice("Stopped before the first token."))
        except SpecdemoError as error:
            feed.fail(str(error))
            yield Update(feed.everything if begun else None, alert(error))
        finally:
            self._cancelled.pop(visitor, None)

    def stop(self, visitor: str) -> None:
        """End this visitor's run within one round, with what there is."""
        if visitor in self._cancelled:
            self._cancelled[visitor].set()

    def compare(self, prompt: str, settings: GenerationSettings) -> dict[str, Any]:
        """One whole comparison as an object of schema 1.

        Raises:
            SpecdemoError: it cannot be run, or failed.
        """
        comparisons = [item for item in self._worker.compare(prompt, settings) if isinstance(item, Comparison)]
        return schema.to_json(comparisons[-1])


def notice(text: str) -> str:
    """A passing message as HTML."""
    return str(Markup('<p role="status">{}</p>').format(text))


def alert(error: SpecdemoError) -> str:
    """An error as HTML."""
    return str(Markup('<p role="alert">{}</p>').format(error))
