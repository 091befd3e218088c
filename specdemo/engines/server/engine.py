"""A pair decoded by two servers, one plain and one speculative, since no server switches per request.

A round lasts from the arrival of the previous round's first token to that of its own, network delays included. A
server reports token counts at a request's end; until then they are estimated from text length. Counting one token per
event would miss those of rounds that commit several, as only the speculative side does.
"""

import os
import platform
from collections.abc import Callable, Generator, Iterator, Sequence
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
    Prefill,
    RoundCounts,
    Thoroughness,
    check_prompt,
)
from specdemo.engines.server.client import Client, Event
from specdemo.engines.server.llama_cpp import LlamaCpp
from specdemo.engines.server.openai import OpenAI
from specdemo.engines.server.protocol import Dialect, Reader
from specdemo.errors import ServerError, UsageError
from specdemo.models.checks import check_strategy
from specdemo.records import (
    SIDES,
    Costs,
    DraftCounts,
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


class ServerEngine(Engine):
    name = "server"

    def __init__(self, pair: ModelPair, side: Side | None = None, *, thoroughness: Thoroughness = THOROUGH) -> None:
        self.pair = pair
        self.thoroughness = thoroughness
        self._connections = _connections(pair.servers or Servers())
        self.sides = tuple(self._connections)
        self.environment = _environment([dialect for _, dialect in self._connections.values()])

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        check_strategy(self.pair, self.name, request.strategy, request.sampling)
        return ServerDecoder(*self._connection(request.strategy), request)

    def batch(self, strategy: Strategy) -> Batch:
        check_strategy(self.pair, self.name, strategy, Sampling())
        return ServerBatch(*self._connection(strategy))

    def _connection(self, strategy: Strategy) -> tuple[Client, Dialect]:
        side: Side = "plain" if isinstance(strategy, Plain) else "speculative"
        if side not in self._connections:
            raise UsageError(f"There is no {side} server; give its address as well.")
        return self._connections[side]

    def close(self) -> None:
        for client, _ in self._connections.values():
            client.close()


def server_pair(servers: Servers) -> ModelPair:
    connections = _connections(servers)
    with ExitStack() as opened:
        for client, _ in connections.values():
            opened.enter_context(closing(client))
        models = {side: dialect.describe() for side, (_, dialect) in connections.items()}
    target = models.get("speculative") or models["plain"]
    draft = Model(name="its server's draft", architecture="server", parameters=0, weights="unknown")
    return ModelPair(name=target.name, target=target, draft=draft, servers=servers)


def _connections(servers: Servers) -> dict[Side, tuple[Client, Dialect]]:
    connections: dict[Side, tuple[Client, Dialect]] = {}
    with ExitStack() as opened:
        for side in SIDES:
            server: Server | None = getattr(servers, side)
            if server is not None:
                client = opened.enter_context(closing(Client(server, side, _key_variable(servers, side))))
                connections[side] = client, dialect_of(client, server)
        opened.pop_all()  # all servers answered, so their clients stay open
    if not connections:
        raise UsageError("The server engine needs the address of a server; give --url and --plain-url.")
    return connections


def _key_variable(servers: Servers, side: Side) -> str:
    """Return the variable with a side's API key. A key given for one host and port is never sent to another."""
    if side == "speculative" or servers.plain is None:
        return KEY_VARIABLE
    hosts = {urlsplit(server.url).netloc for server in (servers.plain, servers.speculative) if server is not None}
    return PLAIN_KEY_VARIABLE if os.environ.get(PLAIN_KEY_VARIABLE) or len(hosts) > 1 else KEY_VARIABLE


def _environment(dialects: list[Dialect]) -> Environment:
    names = list(dict.fromkeys(dialect.version() for dialect in dialects))
    reported = {"device": " and ".join(names), "draft_device": names[-1], "python": platform.python_version()}
    unused = dict.fromkeys(("openvino", "openvino_genai", "openvino_tokenizers"), "not used")
    unknown = dict.fromkeys(("inference_precision", "kv_cache_precision"), "unknown")
    return Environment(specdemo=__version__, threads=None, **reported, **unused, **unknown)


def dialect_of(client: Client, server: Server) -> Dialect:
    if server.kind == "llama.cpp":
        return LlamaCpp(client, server.model)
    detected = LlamaCpp.detect(client, server.model) if server.kind is None else None
    return detected or OpenAI(client, server.model)


class ServerDecoder(Decoder):
    trace_source: TraceSource = "reported"

    def __init__(self, client: Client, dialect: Dialect, request: Request) -> None:
        self._client, self._dialect, self._request = client, dialect, request
        self._reader: Reader | None = None

    def rounds(self) -> Generator[Prefill | Round]:
        check_prompt(self._request)
        path, body, reader = self._dialect.http_request(self._request)
        with closing(self._client.stream(path, body)) as events:
            self._reader = reader(next(events).at)
            yield Prefill(0, 0)  # the request is under way
            pending: Round | None = None  # the finish reason must be set before the last round is yielded
            try:
                for step in self._steps(self._reader, events):
                    if isinstance(step, Prefill):
                        yield step
                        continue
                    if pending is not None:
                        yield pending
                    pending = step
            except ServerError:
                if pending is not None:
                    yield pending
                raise
            if pending is None:
                raise self._client.error("ended its answer before any text; see its log, or try another prompt.")
            self.finish_reason = self._reader.finish_reason
            yield pending

    def _steps(self, reader: Reader, events: Iterator[Event]) -> Iterator[Prefill | Round]:
        with self._client.checking_format():
            for event in events:
                for step in reader.read(event):
                    self.trace_source = reader.trace_source
                    yield step
            yield from reader.end()

    def finalized(self, run: Run) -> Run:
        if self._reader is None or not run.tokens:
            return run
        reader, rounds = self._reader, (run.prefill, *run.rounds)
        if run.finish_reason != "failed":  # otherwise its server may not answer again
            with suppress(ServerError):
                rounds = tuple(map(reader.with_token_texts, rounds))
            with self._client.checking_format():
                rounds = reader.finalized(rounds)
        self.trace_source = reader.trace_source
        reported = {"prompt_tokens": reader.prompt_tokens, "draft_counts": reader.draft_counts}
        reported |= {"passes_known": reader.trace_source != "bursts", "hidden_tokens": reader.hidden_tokens}
        return run.model_copy(update={"prefill": rounds[0], "rounds": rounds[1:], **reported})


_WAIT_SECONDS = 0.1  # for an event


@dataclass
class _ActiveRequest:
    """Its rounds so far, the end of the last one, and the tokens and characters counted so far."""

    reader: Reader
    cancel: Callable[[], object]
    at: float
    rounds: list[Round] = field(default_factory=list)
    tokens: int = 0
    characters: int = 0


class ServerBatch(Batch):
    receives_passes = False

    def __init__(self, client: Client, dialect: Dialect) -> None:
        self._client, self._dialect = client, dialect
        self._events = SimpleQueue[tuple[int, Event | ServerError | None]]()
        self._active: dict[int, _ActiveRequest] = {}
        self._tokens = self._characters = 0  # of finished requests

    def now(self) -> float:
        return perf_counter()  # times arrivals, too

    def submit(self, number: int, request: Request) -> None:
        check_prompt(request)
        path, body, reader = self._dialect.http_request(request)
        sent, cancel = self._client.send(path, body, lambda event: self._events.put((number, event)))
        self._active[number] = _ActiveRequest(reader(sent), cancel, sent)

    def receive(self) -> list[Arrival]:
        try:
            number, event = self._events.get(timeout=_WAIT_SECONDS)
        except Empty:
            return []
        active = self._active[number]
        if isinstance(event, ServerError):
            raise event
        if event is None:
            return [*self._arrivals(number, active, active.reader.end()), self._last_arrival(number, active)]
        return self._arrivals(number, active, active.reader.read(event))

    def close(self) -> None:
        for request in self._active.values():
            request.cancel()

    def _arrivals(self, number: int, active: _ActiveRequest, steps: Iterator[Prefill | Round]) -> list[Arrival]:
        arrivals = []
        with self._client.checking_format():
            rounds = [step for step in steps if isinstance(step, Round)]
            for step in rounds:
                active.at += step.seconds
                active.rounds.append(step)
                text = "".join(token.text for token in step.committed)
                active.characters += len(text)
                tokens = self._estimated_tokens(active, len(step.committed))
                active.tokens += tokens
                arrivals.append(Arrival(number, active.at, tokens, text, ()))
        return arrivals

    def _estimated_tokens(self, active: _ActiveRequest, committed: int) -> int:
        """Estimate a round's tokens from its text where only bursts are known; at least one with the first."""
        if active.reader.trace_source != "bursts" or not self._characters:
            return committed
        by_length = round(active.characters * self._tokens / self._characters) - active.tokens
        return max(by_length, 0 if active.tokens else 1)

    def _last_arrival(self, number: int, active: _ActiveRequest) -> Arrival:
        del self._active[number]
        reader = active.reader
        with self._client.checking_format():
            rounds = reader.finalized(tuple(active.rounds)) if active.rounds else ()
        tokens = sum(len(step.committed) for step in rounds)
        self._tokens, self._characters = self._tokens + tokens, self._characters + active.characters
        known = reader.trace_source != "bursts"
        counts = _round_counts(rounds[1:], reader.draft_counts, tokens - 1 + reader.hidden_tokens, known=known)
        return Arrival(number, active.at, tokens - active.tokens, "", counts, reader.finish_reason)


def _round_counts(
    rounds: Sequence[Round], totals: DraftCounts | None, tokens: int, *, known: bool
) -> tuple[RoundCounts, ...] | None:
    """Return the counts of every pass after the prefill's, which committed these tokens; None if unknown."""
    if totals is not None and not totals.of_server:  # only sums matter, so the first round can have them all
        passes = len(rounds) if known else totals.passes(tokens)
        return (RoundCounts(totals.proposed, totals.accepted), *[RoundCounts(0, 0)] * (passes - 1))[:passes]
    counts = ((None if step.proposed is None else len(step.proposed), step.accepted) for step in rounds)
    return tuple(RoundCounts(*each) for each in counts) if known else None
