"""One request to one server. The server does not wait to be asked for a round: it decodes, and what arrives is read.

A round lasts from the arrival of the previous round's first token to the arrival of its own, for every kind of server
alike, so it contains the network's delays but not this program's.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from specdemo.engines.base import Prefilling
from specdemo.engines.server.answers import Dialect, Reader
from specdemo.engines.server.client import Client, Event
from specdemo.errors import ServerError
from specdemo.records import MOST, FinishReason, Request, Round, Run, TraceSource
from specdemo.runtime.text import check_prompt
from specdemo.strategies import Strategy


class ServedDecoder:
    """One request."""

    def __init__(self, client: Client, dialect: Dialect, request: Request) -> None:
        self._client = client
        self._dialect = dialect
        self._request = request
        self._reader: Reader | None = None
        self._ended = False

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the request ended, or None while it goes on."""
        return self._reader.finish_reason if self._reader is not None and self._ended else None

    @property
    def trace_source(self) -> TraceSource:
        """How the proposals are known."""
        return self._reader.trace_source if self._reader is not None else "reported"

    def rounds(self) -> Generator[Prefilling | Round]:
        """Send the request, then yield what arrives.

        Raises:
            PromptError: the prompt is empty, or no text.
            ServerError: the server refused the request, or broke its answer off.
        """
        check_prompt(self._request)
        path, body, reader = self._dialect.ask(self._request)
        with closing(self._client.stream(path, body)) as events:
            self._reader = reader(next(events).at)
            yield Prefilling(0, 0)  # the request is under way
            held: Round | None = None  # so that whoever gets the last round knows that it is the last
            try:
                for news in self._news(self._reader, events):
                    if isinstance(news, Prefilling):
                        yield news
                        continue
                    if held is not None:
                        yield held
                    held = news
            except ServerError:
                if held is not None:
                    yield held
                raise
            if held is None:
                raise self._client.error("ended its answer before any text; see its log, or try another prompt.")
            self._ended = True
            yield held

    def _news(self, reader: Reader, events: Iterator[Event]) -> Iterator[Prefilling | Round]:
        tokens = 0
        for event in events:
            for news in self._client.understood(reader.on_event(event)):
                tokens += len(news.committed) if isinstance(news, Round) else 0
                if tokens > MOST:  # more than any run may have
                    raise self._client.error("sends more tokens than it was asked for; see its log.")
                yield news
        yield from self._client.understood(reader.end())

    def with_proposals(self, rounds: Sequence[Round]) -> list[Round]:
        """The server told what it knows with each of them."""
        return list(rounds)

    def finalized(self, run: Run) -> Run:
        """The whole run, with what the server told at its end."""
        if self._reader is None or not run.tokens:
            return run
        rounds = run.prefill, *run.rounds
        if run.finish_reason != "failed":  # else its server may not answer once more
            with self._client.understanding():
                rounds = self._reader.settle(rounds)
        known = self._reader.trace_source != "bursts"
        return run.model_copy(update={"prefill": rounds[0], "rounds": rounds[1:], "passes_known": known})

    def update_strategy(self, strategy: Strategy) -> bool:
        """A request that was sent cannot be changed."""
        return False

    def draft_agreement(self) -> tuple[bool, ...] | None:
        """No server tells."""
        return None
