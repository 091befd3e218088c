"""Several requests at once to one server, which batches them as it likes: only what arrives for each is seen."""

from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple

from specdemo.engines.base import Prefilling
from specdemo.engines.batch import Arrival, Verified
from specdemo.engines.served.client import Client, Event, Sending
from specdemo.engines.served.protocols import Dialect, Reader
from specdemo.errors import PromptError, ServerError
from specdemo.records import Request, Round

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


class ServedBatch:
    """A `Batch` on one server."""

    in_passes = False

    def __init__(self, client: Client, dialect: Dialect) -> None:
        self._client = client
        self._dialect = dialect
        self._news = SimpleQueue[_News]()
        self._flying: dict[int, _Flight] = {}

    def now(self) -> float:
        """Seconds of this process's clock, by which arrivals are timed, too."""
        return perf_counter()

    def submit(self, number: int, request: Request) -> None:
        """Send another request."""
        if not request.prompt.strip():
            raise PromptError("The prompt is empty; enter the beginning of a text.")
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
        return self._arrived(news.number, flight, self._client.understood(flight.reader.hear(news.event)))

    def cache_bytes(self) -> int | None:
        """No server tells."""
        return None

    def close(self) -> None:
        """Break off what is still in flight."""
        for flight in self._flying.values():
            flight.sending.cancel()
        self._flying = {}

    @staticmethod
    def _arrived(number: int, flight: _Flight, news: Any) -> list[Arrival]:
        found = []
        for step in news:
            if not isinstance(step, Prefilling):
                flight.at += step.seconds
                flight.rounds.append(step)
                text = "".join(token.text for token in step.committed)
                found.append(Arrival(number, flight.at, len(step.committed), text, ()))
        return found

    def _ended(self, number: int, flight: _Flight) -> Arrival:
        """What is known only now: the rounds, and tokens that were not counted as they came."""
        del self._flying[number]
        counted = sum(len(step.committed) for step in flight.rounds)
        settled = flight.reader.settle(tuple(flight.rounds)) if flight.rounds else ()
        known = flight.reader.trace_source != "bursts"
        rounds = tuple(
            Verified(None if step.proposed is None else len(step.proposed), step.accepted) for step in settled[1:]
        )
        more = sum(len(step.committed) for step in settled) - counted
        reason = flight.reader.finish_reason
        return Arrival(number, flight.at, more, "", rounds if known else None, reason)
