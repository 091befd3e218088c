"""A pair decoded by two servers, one plain and one speculative, since no server switches per request.

A round lasts from the arrival of the previous round's first token to that of its own, network delays included. Until
a server reports token counts, at a request's end, they are estimated from text length: one token per event would
undercount rounds that commit several, and so the speculative side only.
"""

import os
import platform
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import perf_counter
from urllib.parse import urlsplit

from specdemo.engines.base import (
    THOROUGH,
    Arrival,
    Batch,
    Decoder,
    Engine,
    Prefilling,
    RoundCounts,
    Thoroughness,
    check_prompt,
)
from specdemo.engines.server.client import Client, Event
from specdemo.engines.server.llama_cpp import LlamaCpp
from specdemo.engines.server.openai import OpenAI
from specdemo.engines.server.protocol import Dialect, Reader
from specdemo.engines.server.vllm import counted_between
from specdemo.errors import ServerError, UsageError
from specdemo.models.checks import check_strategy
from specdemo.records import (
    MAX_TOKENS,
    NOT_USED,
    SIDES,
    Costs,
    Environment,
    Model,
    ModelPair,
    Request,
    Round,
    Run,
    Server,
    Servers,
    Side,
    TraceSource,
)
from specdemo.settings import Sampling
from specdemo.strategies import Plain, Strategy
from specdemo.version import __version__

KEY_VARIABLE = "SPECDEMO_API_KEY"
PLAIN_KEY_VARIABLE = "SPECDEMO_PLAIN_API_KEY"


class RemoteEngine(Engine):
    name = "server"

    def __init__(self, pair: ModelPair, *, thoroughness: Thoroughness = THOROUGH) -> None:
        self.pair = pair
        self.thoroughness = thoroughness
        self._connections = _connections(pair.servers or Servers())
        self.sides = tuple(self._connections)
        self.environment = _environment([dialect for _, dialect in self._connections.values()])

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        check_strategy(self.pair, "server", request.strategy, request.sampling)
        return RemoteDecoder(*self._of(request.strategy), request)

    def batch(self, strategy: Strategy) -> Batch:
        check_strategy(self.pair, "server", strategy, Sampling())
        return RemoteBatch(*self._of(strategy))

    def _of(self, strategy: Strategy) -> tuple[Client, Dialect]:
        side: Side = "plain" if isinstance(strategy, Plain) else "speculative"
        if side not in self._connections:
            raise UsageError(f"There is no {side} server; give its address, too.")
        return self._connections[side]

    def count_tokens(self, text: str) -> int:
        return next(iter(self._connections.values()))[1].count_tokens(text)

    def close(self) -> None:
        for client, _ in self._connections.values():
            client.close()


def remote_pair(servers: Servers) -> ModelPair:
    connections = _connections(servers)
    with ExitStack() as opened:
        for client, _ in connections.values():
            opened.enter_context(closing(client))
        models = {side: dialect.describe() for side, (_, dialect) in connections.items()}
    target = models.get("speculative") or models["plain"]
    draft = Model(name="its server's draft", architecture="server", parameters=0, weights="unknown")
    return ModelPair(name=target.name, target=target, draft=draft, servers=servers)


def _connections(servers: Servers) -> dict[Side, tuple[Client, Dialect]]:
    found: dict[Side, tuple[Client, Dialect]] = {}
    with ExitStack() as opened:
        for side in SIDES:
            server: Server | None = getattr(servers, side)
            if server is not None:
                client = opened.enter_context(closing(Client(server, side, _key_variable(servers, side))))
                found[side] = client, dialect_of(client, server)
        opened.pop_all()  # all of them answered
    if not found:
        raise UsageError("The remote engine needs the address of a server; give --url and --plain-url.")
    return found


def _key_variable(servers: Servers, side: Side) -> str:
    """Return the variable with a side's API key. A key given for one host and port is never sent to another."""
    if side == "speculative" or servers.plain is None:
        return KEY_VARIABLE
    hosts = {urlsplit(server.url).netloc for server in (servers.plain, servers.speculative) if server is not None}
    return PLAIN_KEY_VARIABLE if os.environ.get(PLAIN_KEY_VARIABLE) or len(hosts) > 1 else KEY_VARIABLE


def _environment(dialects: list[Dialect]) -> Environment:
    names = list(dict.fromkeys(dialect.version() for dialect in dialects))
    known = {"device": " and ".join(names), "draft_device": names[-1], "python": platform.python_version()}
    unused = dict.fromkeys(("openvino", "openvino_genai", "openvino_tokenizers"), NOT_USED)
    unknown = dict.fromkeys(("inference_precision", "kv_cache_precision"), "unknown")
    return Environment(specdemo=__version__, threads=None, **known, **unused, **unknown)


def dialect_of(client: Client, server: Server) -> Dialect:
    """Return the protocol to use with a server: OpenAI's, unless it proves to be llama.cpp."""
    if server.kind == "llama.cpp":
        return LlamaCpp(client, server.model)
    found = LlamaCpp.found(client, server.model) if server.kind is None else None
    return found or OpenAI(client, server.model)


class RemoteDecoder(Decoder):
    trace_source: TraceSource = "reported"

    def __init__(self, client: Client, dialect: Dialect, request: Request) -> None:
        self._client, self._dialect, self._request = client, dialect, request
        self._reader: Reader | None = None

    def rounds(self) -> Generator[Prefilling | Round]:
        check_prompt(self._request)
        path, body, reader = self._dialect.ask(self._request)
        self._counters = self._dialect.counters()
        with closing(self._client.stream(path, body)) as events:
            self._reader = reader(next(events).at)
            yield Prefilling(0, 0)  # the request is under way
            held: Round | None = None  # the finish reason must be set before the last round is yielded
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
            self.finish_reason = self._reader.finish_reason
            yield held

    def _news(self, reader: Reader, events: Iterator[Event]) -> Iterator[Prefilling | Round]:
        tokens = 0
        with self._client.understanding():
            for event in events:
                for news in reader.on_event(event):
                    tokens += len(news.committed) if isinstance(news, Round) else 0
                    self.trace_source = reader.trace_source
                    if tokens > MAX_TOKENS:  # more than any run may have
                        raise self._client.error("sends more tokens than it was asked for; see its log.")
                    yield news
            yield from reader.end()

    def finalized(self, run: Run) -> Run:
        if self._reader is None or not run.tokens:
            return run
        reader, rounds = self._reader, (run.prefill, *run.rounds)
        if run.finish_reason != "failed":  # otherwise its server may not answer again
            with suppress(ServerError):
                if reader.draft_counts is None and reader.total and self._counters:
                    after = self._dialect.counters()
                    reader.draft_counts = counted_between(self._counters, after, reader.total)
                rounds = tuple(map(reader.with_token_texts, rounds))
            with self._client.understanding():
                rounds = reader.finalized(rounds)
        self.trace_source = reader.trace_source
        known = {"prompt_tokens": reader.prompt_tokens, "draft_counts": reader.draft_counts}
        known["passes_known"] = reader.trace_source != "bursts"
        return run.model_copy(update={"prefill": rounds[0], "rounds": rounds[1:], **known})


_PATIENCE = 0.1  # seconds to wait for an event


@dataclass
class _Flight:
    """A request under way: its rounds so far, the end of the last, and what was counted of its text."""

    reader: Reader
    cancel: Callable[[], object]
    at: float
    rounds: list[Round] = field(default_factory=list)
    tokens: int = 0
    letters: int = 0


class RemoteBatch(Batch):
    in_passes = False

    def __init__(self, client: Client, dialect: Dialect) -> None:
        self._client, self._dialect = client, dialect
        self._news = SimpleQueue[tuple[int, Event | ServerError | None]]()
        self._flying: dict[int, _Flight] = {}
        self._tokens = self._letters = 0  # of finished requests

    def now(self) -> float:
        return perf_counter()  # times arrivals, too

    def submit(self, number: int, request: Request) -> None:
        check_prompt(request)
        path, body, reader = self._dialect.ask(request)
        sent, cancel = self._client.send(path, body, lambda event: self._news.put((number, event)))
        self._flying[number] = _Flight(reader(sent), cancel, sent)

    def receive(self) -> list[Arrival]:
        try:
            number, event = self._news.get(timeout=_PATIENCE)
        except Empty:
            return []
        flight = self._flying[number]
        if isinstance(event, ServerError):
            raise event
        if event is None:
            return [*self._arrived(number, flight, flight.reader.end()), self._ended(number, flight)]
        return self._arrived(number, flight, flight.reader.on_event(event))

    def close(self) -> None:
        for flight in self._flying.values():
            flight.cancel()

    def _arrived(self, number: int, flight: _Flight, news: Iterator[Prefilling | Round]) -> list[Arrival]:
        found = []
        with self._client.understanding():
            for step in (one for one in news if isinstance(one, Round)):
                flight.at += step.seconds
                flight.rounds.append(step)
                text = "".join(token.text for token in step.committed)
                flight.letters += len(text)
                more = self._more(flight, len(step.committed))
                flight.tokens += more
                found.append(Arrival(number, flight.at, more, text, ()))
        return found

    def _more(self, flight: _Flight, seen: int) -> int:
        """Return how many tokens arrived with a round that seems to hold `seen`; at least one with the first."""
        if flight.reader.trace_source != "bursts" or not self._letters:
            return seen
        by_length = round(flight.letters * self._tokens / self._letters) - flight.tokens
        return max(by_length, 0 if flight.tokens else 1)

    def _ended(self, number: int, flight: _Flight) -> Arrival:
        del self._flying[number]
        with self._client.understanding():
            finalized = flight.reader.finalized(tuple(flight.rounds)) if flight.rounds else ()
        in_passes, sums, rest = flight.reader.trace_source != "bursts", flight.reader.draft_counts, finalized[1:]
        counts = [(None if each.proposed is None else len(each.proposed), each.accepted) for each in rest]
        if sums is not None and counts:  # only sums matter, so they may stand in the first round
            counts = [(sums.proposed, sums.accepted), *[(0, 0)] * len(rest[1:])]
        rounds = tuple(RoundCounts(*each) for each in counts)
        tokens = sum(len(step.committed) for step in finalized)
        self._tokens, self._letters = self._tokens + tokens, self._letters + flight.letters
        reason = flight.reader.finish_reason
        return Arrival(number, flight.at, tokens - flight.tokens, "", rounds if in_passes else None, reason)
