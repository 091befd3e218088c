"""A pair decoded by two servers, one plain and one speculative, since no server switches per request."""

import os
import platform
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

from specdemo.engines.base import THOROUGH, Batch, Decoder, Engine, Thoroughness
from specdemo.engines.server.client import Client, Key
from specdemo.engines.server.decoder import Dialect, RemoteBatch, RemoteDecoder
from specdemo.engines.server.llama_cpp import LlamaCpp
from specdemo.engines.server.openai import OpenAI
from specdemo.errors import UsageError
from specdemo.models.checks import check_strategy
from specdemo.records import (
    NOT_USED,
    SIDES,
    Costs,
    Environment,
    Model,
    ModelPair,
    Request,
    Server,
    Servers,
    Side,
)
from specdemo.settings import Sampling
from specdemo.strategies import Plain, Strategy
from specdemo.version import __version__

KEY_VARIABLE = "SPECDEMO_API_KEY"
PLAIN_KEY_VARIABLE = "SPECDEMO_PLAIN_API_KEY"


class RemoteEngine(Engine):
    """Decodes a pair on its servers, which report nothing of their passes."""

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
        _, dialect = next(iter(self._connections.values()))
        return dialect.count_tokens(text)

    def close(self) -> None:
        for client, _ in self._connections.values():
            client.close()


def remote_pair(servers: Servers) -> ModelPair:
    """Query the servers and return the pair they decode."""
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
                client = opened.enter_context(closing(Client(server, side, _key(servers, side))))
                found[side] = client, dialect(client, server)
        opened.pop_all()  # all of them answered
    if not found:
        raise UsageError("The remote engine needs the address of a server; give --url and --plain-url.")
    return found


def _key(servers: Servers, side: Side) -> Key:
    """Return a side's API key. A key given for one host and port is never sent to another."""
    common = Key(KEY_VARIABLE, os.environ.get(KEY_VARIABLE, ""))
    if side == "speculative" or servers.plain is None:
        return common
    own = Key(PLAIN_KEY_VARIABLE, os.environ.get(PLAIN_KEY_VARIABLE, ""))
    hosts = {urlsplit(server.url).netloc for server in (servers.plain, servers.speculative) if server is not None}
    return own if own.value or len(hosts) > 1 else common


def _environment(dialects: list[Dialect]) -> Environment:
    names = list(dict.fromkeys(dialect.version() for dialect in dialects))
    unused = dict.fromkeys(("openvino", "openvino_genai", "openvino_tokenizers"), NOT_USED)
    unknown = dict.fromkeys(("inference_precision", "kv_cache_precision"), "unknown")
    here = {"specdemo": __version__, "python": platform.python_version()}
    return Environment(device=" and ".join(names), draft_device=names[-1], threads=None, **here, **unused, **unknown)


def dialect(client: Client, server: Server) -> Dialect:
    """Return the protocol to use with a server: OpenAI's, unless it proves to be llama.cpp."""
    if server.kind == "llama.cpp":
        return LlamaCpp(client, server.model)
    found = LlamaCpp.found(client, server.model) if server.kind is None else None
    return found or OpenAI(client, server.model)
