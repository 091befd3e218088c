"""Several requests at once to one server, which batches them as it likes: only what arrives for each is seen.

Where a server tells the number of tokens only when a request has ended, what has arrived of it before is counted by
the length of its text, at the tokens per character of the requests that have ended. One token for each event would
count fewer, the more tokens a round commits, and so fewer on the speculative side only.
"""

from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple

from specdemo.engines.base import Prefilling
from specdemo.engines.batch import Arrival, RoundCounts
from specdemo.engines.server.answers import Dialect, Reader
from specdemo.engines.server.client import Client, Event, Sending
from specdemo.errors import ServerError
from specdemo.records import Request, Round
from specdemo.runtime.text import check_prompt

_PATIENCE = 0.1  # seconds without any news


class _News(NamedTuple):
    number: int
    event: Event | ServerError | None


@dataclass
class _Flight:
    reader: Reader
    sending: Sending
    at: float
    rounds: list[Round] = field(default_factory=list)
    tokens: int = 0
    letters: int = 0


class ServedBatch:
    """A `Batch` on one server."""

    in_passes = False

    def __init__(self, client: Client, dialect: Dialect) -> None:
        self._client = client
        self._dialect = dialect
        self._news = SimpleQueue[_News]()
        self._flying: dict[int, _Flight] = {}
        self._tokens = self._letters = 0  # of the requests that have ended

    def now(self) -> float:
        """Seconds of this process's clock, by which arrivals are timed, too."""
        return perf_counter()

    def submit(self, number: int, request: Request) -> None:
        """Send another request."""
        check_prompt(request)
        asked = self._dialect.ask(request, alone=False)
        sending = self._client.send(asked.path, asked.body, lambda event: self._news.put(_News(number, event)))
        self._flying[number] = _Flight(asked.reader(sending.at), sending, sending.at)

    def receive(self) -> list[Arrival]:
        """What arrived next, if anything does within a tenth of a second."""
        try:
            news = self._news.get(timeout=_PATIENCE)
        except Empty:
            return []
        flight = self._flying[news.number]
        if isinstance(news.event, ServerError):
            raise news.event
        if news.event is None:
            return [*self._arrived(news.number, flight, flight.reader.end()), self._ended(news.number, flight)]
        return self._arrived(news.number, flight, flight.reader.on_event(news.event))

    def cache_bytes(self) -> int | None:
        """No server tells."""
        return None

    def close(self) -> None:
        """Break off what is still in flight."""
        for flight in self._flying.values():
            flight.sending.cancel()
        self._flying = {}

    def _arrived(self, number: int, flight: _Flight, news: Any) -> list[Arrival]:
        found = []
        for step in self._client.understood(news):
            if not isinstance(step, Prefilling):
                flight.at += step.seconds
                flight.rounds.append(step)
                text = "".join(token.text for token in step.committed)
                flight.letters += len(text)
                more = self._more(flight, len(step.committed))
                flight.tokens += more
                found.append(Arrival(number, flight.at, more, text, ()))
        return found

    def _more(self, flight: _Flight, told: int) -> int:
        """How many tokens arrived with a round that seems to hold `told`; the first one holds at least one."""
        if flight.reader.trace_source != "bursts" or not self._letters:
            return told
        by_length = round(flight.letters * self._tokens / self._letters) - flight.tokens
        return max(by_length, 0 if flight.tokens else 1)

    def _ended(self, number: int, flight: _Flight) -> Arrival:
        """What is known only now: the rounds, and tokens that were not counted as they came."""
        del self._flying[number]
        with self._client.understanding():
            finalized = flight.reader.settle(tuple(flight.rounds)) if flight.rounds else ()
        known = flight.reader.trace_source != "bursts"
        rounds = tuple(
            RoundCounts(None if step.proposed is None else len(step.proposed), step.accepted)
            for step in finalized[1:]
        )
        tokens = sum(len(step.committed) for step in finalized)
        self._tokens, self._letters = self._tokens + tokens, self._letters + flight.letters
        reason = flight.reader.finish_reason
        return Arrival(number, flight.at, tokens - flight.tokens, "", rounds if known else None, reason)
