"""The feed of a run to the page: numbered events, one line of JSON each.

An update carries all events since the second-to-last one: a busy browser may miss one, and an update's cost does not
grow with the run. The final update carries everything. The page replays rounds on their recorded clocks; all figures
are computed here, none in the browser.
"""

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any
from uuid import uuid4

from specdemo import metrics, summary
from specdemo.files import json_text
from specdemo.metrics import Thinking
from specdemo.presentation import schema
from specdemo.presentation.html import Markdown, conversation_html, figures_html, grounds_html, round_html
from specdemo.records import SIDES, Comparison, Round, Side, Slice, Turn
from specdemo.settings import GenerationSettings
from specdemo.strategies import ENGINES
from specdemo.summary import is_chat, run_words


class Feed:
    """Events of one run."""

    def __init__(
        self, prompt: str, settings: GenerationSettings, history: Sequence[Turn] = (), *, chat: bool = False
    ) -> None:
        """Start a feed; with `chat`, the prompt is a chat message after the turns of `history`."""
        self.run = uuid4().hex
        self.shown = False  # whether the page has received any event
        self._phase = ""
        self._lines: list[str] = []
        self._sent = (0, 0)  # numbers of events at the last two updates
        self._rounds: dict[Side, list[Round]] = {"plain": [], "speculative": []}
        self._thinks: dict[Side, Thinking] = {"plain": Thinking(), "speculative": Thinking()}
        self._markdown: dict[Side, Markdown] = {"plain": Markdown(), "speculative": Markdown()} if chat else {}
        served = not ENGINES[settings.engine].local
        shared = {
            "max_new_tokens": settings.max_new_tokens,
            "sequential": settings.sequential or (served and not settings.at_once),
            "served": served,
        }
        self._append("start", prompt=prompt, chat=chat, history=conversation_html(history), **shared)

    def news(self) -> str:
        """Return the events since the second-to-last call."""
        self.shown = True
        start, self._sent = self._sent[0], (self._sent[1], len(self._lines))
        return "".join(self._lines[start:])

    @property
    def everything(self) -> str:
        return "".join(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, progress: Slice | Comparison) -> None:
        """Append the event of a slice, or of the result."""
        if isinstance(progress, Slice):
            done = progress.finish_reason is not None
            rounds = self._rounds_of(progress)
            self._append("slice", side=progress.side, rounds=rounds, done=done, moves=_moves(progress))
        else:
            self._lines.append(end_event(self.run, len(self), progress))

    def after(self, progress: Slice | Comparison) -> "Feed":
        """Append the event, or rebuild the feed if a server revised its rounds at the end."""
        if isinstance(progress, Comparison):
            runs = {side: progress.side(side) for side in SIDES}
            if any([run.prefill, *run.rounds] != self._rounds[side] for side, run in runs.items() if run.tokens):
                return feed_of(progress)
        self.add(progress)
        return self

    def phase(self, words: str) -> None:
        """Append a phase before the first token, unless it is the current one."""
        if words != self._phase:
            self._phase = words
            self._append("phase", text=words)

    def fail(self, message: str) -> None:
        """Append the error that ended the run; earlier events stay."""
        self._append("error", text=message)

    def _append(self, kind: str, **event: Any) -> None:
        self._lines.append(_line(self.run, len(self), kind, event))

    def _rounds_of(self, piece: Slice) -> list[dict[str, Any]]:
        """Return a slice's rounds, each with the figures at its end."""
        rounds = self._rounds[piece.side]
        number = len(rounds)
        rounds += piece.rounds
        tokens = list(accumulate(len(step.committed) for step in rounds))
        seconds = list(accumulate((step.seconds for step in rounds[1:]), initial=0.0))  # the prefill is at 0
        alpha = [None, *metrics.running_acceptance(tuple(rounds[1:]))]
        return [
            {
                "ms": seconds[index] * 1000,
                "tokens": tokens[index],
                "rate": (tokens[index] - tokens[0]) / seconds[index] if index else None,
                "proposed": None if step.proposed is None else len(step.proposed),
                "accepted": step.accepted,
                "alpha": alpha[index],
                "thinking": self._thinks[piece.side].thinks_in(step),
                "html": round_html(
                    step,
                    side=piece.side,
                    number=index,
                    first=tokens[index] - len(step.committed),
                    source=piece.trace_source,
                    markdown=self._markdown.get(piece.side),
                ),
            }
            for index, step in enumerate(piece.rounds, number)
        ]


def feed_of(comparison: Comparison) -> Feed:
    """Return the feed of a finished run, each side in one slice."""
    chat = is_chat(comparison.pair, comparison.settings)
    feed = Feed(comparison.prompt, comparison.settings, comparison.history, chat=chat)
    for side in SIDES:
        run = comparison.side(side)
        source = comparison.trace_source if side == "speculative" else "measured"
        moves = comparison.moves if side == "speculative" else ()
        if run.tokens:
            feed.add(Slice(side, (run.prefill, *run.rounds), run.finish_reason, source, moves))
    feed.add(comparison)
    return feed


def _moves(piece: Slice) -> list[dict[str, Any]]:
    """Return marks for the charts: the rounds from which a setting had a new value."""
    return [{"round": move.round, "text": summary.moved_to(move)} for move in piece.moves]


def end_event(run: str, at: int, comparison: Comparison) -> str:
    """Return the event of a run's result, which is sent again after each repeat of the race."""
    return _line(run, at, "end", _end(comparison))


def _line(run: str, at: int, kind: str, event: dict[str, Any]) -> str:
    line = json.dumps({"run": run, "at": at, "kind": kind, **event}, ensure_ascii=False)
    return line.replace("<", "\\u003c") + "\n"  # user text must never look like markup in transit


def _end(comparison: Comparison) -> dict[str, Any]:
    found = summary.summarise(comparison)
    return {
        "headline": found.headline,
        "tone": found.direction,
        "range": found.range,
        "refined": found.refined,
        "reason": found.sentence,
        "certain": found.certain,
        "warning": found.warnings[0].chip if found.warnings else "",
        "why": grounds_html(found.why),
        "ceiling": found.ceiling,
        "seconds": found.seconds or None,
        "seconds_label": found.seconds_label,
        "difference": found.difference,
        "agreement": found.agreement if comparison.both else "",
        "identical": metrics.identical(comparison),
        "divergence": metrics.first_divergence(comparison),
        "stopped": "cancelled" in (comparison.plain.finish_reason, comparison.speculative.finish_reason),
        "made_by": found.made_by,
        "words": [*run_words(comparison).split(", "), comparison.pair.name],
        "figures": figures_html(comparison, found),
        "record": json_text(schema.to_json(comparison)),
    }
