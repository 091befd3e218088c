"""What a visitor's run does, step by step, without a widget in it."""

import json
from collections.abc import Iterator
from threading import Event
from time import monotonic
from typing import Any, NamedTuple

from markupsafe import Markup

from specdemo import schema
from specdemo.compare import Lap, Phase
from specdemo.errors import FileError, SpecdemoError
from specdemo.records import Comparison
from specdemo.settings import GenerationSettings
from specdemo.ui.anatomy import anatomy
from specdemo.ui.feed import Feed
from specdemo.worker import Worker

PHASES = {
    "loading": "Loading the models …",
    "calibrating": "Measuring what a step of each model costs …",
    "warming up": "Warming both sides up, off the clock …",
}


UPDATE_SECONDS = 0.35
"""Between updates of the page, which live playback can only follow when both sides have had their slice. Each costs
server and browser time that, on one machine with the engine, the engine misses."""


class Update(NamedTuple):
    """What to show; None where there is nothing new, so that an earlier result stays."""

    feed: str | None
    message: str
    anatomy: str | None = None


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
                    yield Update(feed.everything, "", anatomy(progress))
                elif monotonic() >= due:
                    due = monotonic() + UPDATE_SECONDS
                    yield Update(feed.news(), "")
            if not begun:
                yield Update(None, notice("Stopped before the first token."))
        except SpecdemoError as error:
            feed.fail(str(error))
            yield Update(feed.everything if begun else None, alert(error))
        finally:
            self._cancelled.pop(visitor, None)

    @staticmethod
    def open(data: bytes) -> Update:
        """Show the comparison of a JSON file, played as if it had just run.

        Raises:
            FileError: it is not such a file.
        """
        try:
            comparison = schema.from_json(json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # whatever else the JSON may be
            raise FileError(
                "This is no comparison of schema 1; open a file that Download JSON has written."
            ) from error
        feed = Feed(comparison.prompt, comparison.settings)
        for side in ("plain", "speculative"):
            run = comparison.side(side)
            source = comparison.trace_source if side == "speculative" else "measured"
            feed.add(Lap(side, (run.prefill, *run.rounds), run.finish_reason, source))
        feed.add(comparison)
        return Update(feed.everything, "", anatomy(comparison))

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
