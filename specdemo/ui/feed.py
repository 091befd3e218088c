"""The events that a run sends to the page: numbered, one line of JSON each.

Each update repeats the events of the one before, because a busy browser may miss one; its cost does not grow with the
run. The last event holds the whole record, for browsers that missed more.
"""

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from specdemo.experiments.report import Part
from specdemo.exports.schema import to_json
from specdemo.records import Comparison, ModelPair, Slice, Turn
from specdemo.results import metrics
from specdemo.results.figures import CHARTS
from specdemo.settings import GenerationSettings
from specdemo.text import percent


class Feed:
    def __init__(
        self, pair: ModelPair, prompt: str, settings: GenerationSettings, history: Sequence[Turn] = ()
    ) -> None:
        self.run = uuid4().hex
        self.shown = False  # whether the page has received any event
        self._phase = ""
        self._lines: list[str] = []
        self._sent = (0, 0)  # numbers of events at the last two updates
        dumped = {"pair": pair.model_dump(mode="json"), "settings": settings.model_dump(mode="json")}
        self._append("start", record={"prompt": prompt, "history": [turn.model_dump() for turn in history], **dumped})

    def next_update(self) -> str:
        self.shown = True
        start, self._sent = self._sent[0], (self._sent[1], len(self._lines))
        return "".join(self._lines[start:])

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, piece: Slice) -> None:
        self._append("slice", **piece.model_dump(mode="json"))

    def phase(self, text: str) -> None:
        if text != self._phase:
            self._phase = text
            self._append("phase", text=text)

    def fail(self, message: str) -> None:
        self._append("error", text=message)

    def _append(self, kind: str, **event: Any) -> None:
        self._lines.append(_line(self.run, len(self), kind, event))


def end_event(comparison: Comparison, run: str | None = None, at: int = 0) -> str:
    """Return a run's last event, sent again after its repeats. It is the only event of a saved run, without `run`."""
    event = {"record": to_json(comparison), "anatomy": anatomy(comparison)}
    return _line(run or uuid4().hex, at, "end", event)


def repeating_event(run: str, at: int) -> str:
    """From here on, the page can stop the repeats."""
    return _line(run, at, "repeating", {})


def _line(run: str, at: int, kind: str, event: dict[str, Any]) -> str:
    line = json.dumps({"run": run, "at": at, "kind": kind, **event}, ensure_ascii=False)
    return line.replace("<", "\\u003c") + "\n"  # user text must never look like markup in transit


def anatomy(comparison: Comparison) -> list[dict[str, Any]]:
    title, make = CHARTS["confidence"]
    figure = make(comparison)
    unknown = ["The drafter's probabilities are not known for this run."]
    parts = [Part(title, figure=figure) if figure.data[0].x else Part(title, unknown)]
    if sources := metrics.acceptance_by_source(comparison.speculative):
        total = sum(proposed for _, proposed in sources.values())
        rows = [
            (name, str(proposed), percent(proposed / total), str(accepted), percent(accepted / max(proposed, 1)))
            for name, (accepted, proposed) in sources.items()
        ]
        columns = ("source", "proposed", "share", "accepted", "accepted / proposed")
        parts.append(Part("Drafted or copied", columns=columns, rows=rows))
    return [part.data() for part in parts]
