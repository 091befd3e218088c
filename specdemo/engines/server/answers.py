"""Answers of servers that stream text: each event with text is a round, made more exact by further fields.

Token ids or a running total tell how many tokens an event holds. If only the final total is reported, tokens are
divided among events by text length. Proposals are reported at the end, if at all: per round, or as a total, from
which each round's follow if all rounds proposed equally many.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from specdemo.decoding.verification import outcomes_from_counts
from specdemo.engines.base import Prefilling
from specdemo.engines.server.client import Event
from specdemo.records import MOST, TICK, DraftToken, FinishReason, Model, Outcome, Request, Round, Token, TraceSource


class Reader(Protocol):
    """Reads one answer."""

    finish_reason: FinishReason | None
    trace_source: TraceSource

    def on_event(self, event: Event) -> Iterator[Prefilling | Round]:
        """Yield the rounds completed by this event."""

    def end(self) -> Iterator[Round]:
        """Set the finish reason and yield the remaining rounds."""

    def finalized(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        """Return the rounds, prefill first, with what the server reported only at the end."""


class HttpRequest(NamedTuple):
    """A request to send. `reader` creates the answer's reader, given the time of sending by `perf_counter`."""

    path: str
    body: dict[str, Any]
    reader: Callable[[float], Reader]


class Dialect(Protocol):
    """The protocol of one kind of server."""

    def describe(self) -> Model:
        """Return the model being served.

        Raises:
            ServerError: the server has no such model.
        """

    def version(self) -> str:
        """Return the server's name and version, as far as reported."""

    def ask(self, request: Request, *, alone: bool = True) -> HttpRequest:
        """Return the HTTP request for a request. May have the server apply its chat template first.

        Unless `alone`, other requests run at the same time, so the server's counters say nothing about this one.
        """

    def count_tokens(self, text: str) -> int:
        """Return the number of the model's tokens in a text."""


@dataclass(frozen=True)
class Part:
    """The content of an event: text, token ids or running total if reported, and the finish reason."""

    text: str = ""
    ids: Sequence[int] = ()
    tokens: int | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Proposals:
    """Proposals as a server reports them: per round, or in total over a number of rounds."""

    rounds: int
    proposed: int
    accepted: int
    each: tuple[tuple[int, int], ...] = ()
    """Proposed and accepted tokens of each round, if reported."""


@dataclass
class TextReader(ABC):
    """Base of readers of one answer; subclasses parse the events."""

    began: float
    finish_reason: FinishReason | None = None
    trace_source: TraceSource = "bursts"
    total: int | None = None
    proposals: Proposals | None = None
    _at: float = field(init=False)
    _tokens: int = 0

    def __post_init__(self) -> None:
        self._at = self.began

    @abstractmethod
    def part(self, data: dict[str, Any]) -> Part:
        """Return the content of an event; sets `total` and `proposals` once they are reported."""

    def on_event(self, event: Event) -> Iterator[Prefilling | Round]:
        """Yield the event as a round if it holds text."""
        part = self.part(event.data)
        self.finish_reason = part.finish_reason or self.finish_reason
        count = len(part.ids) or (part.tokens - self._tokens if part.tokens is not None else 0)
        if not part.text and count <= 0:
            return
        if count > 0:
            self.trace_source, self._tokens = "passes", self._tokens + count
        ids: Sequence[int | None] = part.ids or [None] * min(max(count, 1), MOST)
        texts = split_evenly(part.text, len(ids))
        committed = tuple(Token(id=id_, text=text) for id_, text in zip(ids, texts, strict=True))
        proposed = () if self._at == self.began else None  # nothing is proposed before the first token
        yield Round(committed=committed, seconds=max(event.at - self._at, TICK), proposed=proposed)
        self._at = event.at

    def end(self) -> Iterator[Round]:
        """Set the finish reason; no rounds remain, since each arrived with its event."""
        self.finish_reason = self.finish_reason or "stop"
        yield from ()

    def finalized(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        """Return the rounds with the server's token count and proposals."""
        if self.trace_source == "bursts" and self.total is not None:
            rounds = apportion(rounds, self.total)
        if self.proposals is None or self.trace_source == "bursts":
            return rounds
        traced = with_proposals(rounds, self.proposals)
        if traced is None:
            return rounds
        self.trace_source = "reported"
        return traced


def split_evenly(text: str, count: int) -> list[str]:
    """Split a text into `count` parts of nearly equal length."""
    ends = [len(text) * index // count for index in range(count + 1)]
    return [text[start:end] for start, end in pairwise(ends)]


def apportion(rounds: Sequence[Round], total: int) -> tuple[Round, ...]:
    """Divide `total` tokens among the rounds by text length, at least one each."""
    lengths = [sum(len(token.text) for token in step.committed) for step in rounds]
    spare, length, done, given = max(total - len(rounds), 0), sum(lengths) or 1, 0, 0
    found = []
    for step, own in zip(rounds, lengths, strict=True):
        done += own
        more = spare * done // length - given
        given += more
        text = "".join(token.text for token in step.committed)
        committed = tuple(Token(id=None, text=part) for part in split_evenly(text, 1 + more))
        found.append(step.model_copy(update={"committed": committed}))
    return tuple(found)


def with_proposals(rounds: Sequence[Round], proposals: Proposals) -> tuple[Round, ...] | None:
    """Return the rounds, prefill first, with their proposals; None if the reported numbers do not fit."""
    prefill, *rest = rounds
    each = list(proposals.each)
    if not each:
        number = proposals.rounds
        equal = number == len(rest) and number > 0 and proposals.proposed % number == 0
        lengths = [len(step.committed) - 1 for step in rest]
        if not equal or sum(lengths) != proposals.accepted:
            return None
        each = [(proposals.proposed // number, accepted) for accepted in lengths]
    found = [prefill]
    for step in rest:  # a slow reader gets the tokens of several rounds in one event
        own: list[tuple[int, int]] = []
        left = len(step.committed)
        while left > 0 and each:
            own.append(each.pop(0))
            left -= own[-1][1] + 1
        if left > 0 or (left < 0 and each) or any(accepted > proposed for proposed, accepted in own):
            return None
        found += _parts(step, own)
    return None if each else tuple(found)


def _parts(step: Round, own: Sequence[tuple[int, int]]) -> Iterator[Round]:
    """Split an event that held several rounds, dividing its time equally."""
    tokens = list(step.committed)
    for proposed, accepted in own:
        committed, tokens = tokens[: accepted + 1], tokens[accepted + 1 :]
        drafts = tuple(
            DraftToken(id=token.id, text=token.text, verdict=outcome)
            for token, outcome in zip(
                [*committed[:accepted], *[Token(id=None, text="")] * (proposed - len(committed[:accepted]))],
                outcomes_from_counts(proposed, accepted),
                strict=True,
            )
            if outcome is Outcome.ACCEPTED or token.id is None
        )
        yield Round(committed=tuple(committed), seconds=step.seconds / len(own), proposed=drafts)
