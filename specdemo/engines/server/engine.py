"""A pair that servers decode: one plainly, one speculatively, since none of them does both at a request's wish."""

import os
import platform
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

from specdemo.engines.base import THOROUGH, Batch, Decoder, Thoroughness
from specdemo.engines.server.answers import Dialect
from specdemo.engines.server.client import Client, Key
from specdemo.engines.server.decoder import ServedBatch, ServedDecoder
from specdemo.engines.server.llama_cpp import LlamaCpp
from specdemo.engines.server.openai import OpenAI, SGLang
from specdemo.errors import UsageError
from specdemo.models.checks import check_request, check_strategy
from specdemo.records import (
    NOT_USED,
    SIDES,
    Costs,
    Counters,
    DraftRound,
    Environment,
    Model,
    ModelPair,
    Request,
    Server,
    Servers,
    Side,
)
from specdemo.settings import Sampling
from specdemo.strategies import Plain, ServerKind, Strategy
from specdemo.version import __version__

KEY_VARIABLE = "SPECDEMO_API_KEY"
PLAIN_KEY_VARIABLE = "SPECDEMO_PLAIN_API_KEY"


class ServedEngine:
    """Clients of a pair's servers."""

    remote = True

    def __init__(self, pair: ModelPair, *, thoroughness: Thoroughness = THOROUGH) -> None:
        """Ask the servers what they are.

        Raises:
            ServerError: one does not answer.
        """
        if pair.servers is None:
            raise UsageError("The remote engine needs the address of a server; give --url and --plain-url.")
        self.pair = pair
        self.thoroughness = thoroughness
        self._connections = _connections(pair.servers)
        self.sides = tuple(self._connections)
        self.environment = _environment([dialect for _, dialect in self._connections.values()])

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        """A decoder of the request, by the server of the side that it belongs to.

        Raises:
            PairError, SettingsError: the server cannot be asked to decode in the request's strategy.
        """
        check_request(self.pair, "served", request)
        return ServedDecoder(*self._of(request.strategy), request)

    def batch(self, strategy: Strategy) -> Batch:
        """Several requests to the server that decodes this way.

        Raises:
            PairError, SettingsError: it cannot be asked to.
        """
        check_strategy(self.pair, "served", strategy, Sampling())
        return ServedBatch(*self._of(strategy))

    def _of(self, strategy: Strategy) -> tuple[Client, Dialect]:
        side: Side = "plain" if isinstance(strategy, Plain) else "speculative"
        if side not in self._connections:
            raise UsageError(f"There is no {side} server; give its address, too.")
        return self._connections[side]

    def count_tokens(self, text: str) -> int:
        """Number of tokens, as a server counts them."""
        _, dialect = next(iter(self._connections.values()))
        return dialect.count_tokens(text)

    def pass_seconds(self, prompt: str, *tokens: int) -> Generator[float]:
        """No server can be asked for a pass of a certain length."""
        yield from ()

    def draft_rounds(self, prompt: str, lookahead: int) -> list[DraftRound]:
        """None: no server reports what its draft takes."""
        return []

    def log_probabilities(
        self, request: Request, before: Sequence[int], tokens: Sequence[int], *, apart: bool
    ) -> list[float] | None:
        """Servers do not say."""
        return None

    def counters(self, request: Request, wrote: Sequence[int], *, reload: bool) -> Counters | None:
        """What a server counts is in its answers."""
        return None

    def close(self) -> None:
        """Close all connections."""
        for client, _ in self._connections.values():
            client.close()


def served_pair(servers: Servers) -> ModelPair:
    """The pair that servers decode, after asking them.

    Raises:
        ServerError: one does not answer.
        UsageError: there is no address at all, or an address or an API key is malformed.
    """
    talks = _connections(servers)
    if not talks:
        raise UsageError("The remote engine needs the address of a server; give --url and --plain-url.")
    try:
        models = {side: dialect.describe() for side, (_, dialect) in talks.items()}
    finally:
        for client, _ in talks.values():
            client.close()
    target = models.get("speculative") or models["plain"]
    draft = Model(name="its server's draft", architecture="served", parameters=0, weights="unknown")
    return ModelPair(name=target.name, target=target, draft=draft, servers=servers)


def _connections(servers: Servers) -> dict[Side, tuple[Client, Dialect]]:
    found: dict[Side, tuple[Client, Dialect]] = {}
    with ExitStack() as opened:
        for side in SIDES:
            server: Server | None = getattr(servers, side)
            if server is not None:
                client = opened.enter_context(closing(Client(server, side, _key(servers, side))))
                found[side] = client, dialect(client, server)
        opened.pop_all()  # all of them answer
    return found


def _key(servers: Servers, side: Side) -> Key:
    """The API key of a side. What was given for one host and port is not sent to another."""
    common = Key(KEY_VARIABLE, os.environ.get(KEY_VARIABLE, ""))
    if side == "speculative" or servers.plain is None:
        return common
    own = Key(PLAIN_KEY_VARIABLE, os.environ.get(PLAIN_KEY_VARIABLE, ""))
    same = servers.speculative is None or _host(servers.plain) == _host(servers.speculative)
    return common if same and not own.value else own


def _host(server: Server) -> str:
    return urlsplit(server.url).netloc


def _environment(dialects: list[Dialect]) -> Environment:
    unknown = "unknown"
    names = list(dict.fromkeys(dialect.version() for dialect in dialects))
    return Environment(
        specdemo=__version__,
        python=platform.python_version(),
        openvino=NOT_USED,
        openvino_genai=NOT_USED,
        openvino_tokenizers=NOT_USED,
        device=" and ".join(names),
        draft_device=names[-1],
        inference_precision=unknown,
        kv_cache_precision=unknown,
        threads=None,
    )


_TELLING: dict[ServerKind, tuple[str, str | None]] = {
    "llama.cpp": ("/props", "default_generation_settings"),
    "sglang": ("/get_model_info", "model_path"),
    "vllm": ("/version", "version"),
    "ovms": ("/v1/config", None),  # the keys are names of models
}
"""A path that only this kind answers, and a key of the object that it answers with."""


def dialect(client: Client, server: Server) -> Dialect:
    """How to talk to a server.

    Raises:
        ServerError: it does not answer.
    """
    kind = server.kind or kind_of(client)
    if kind == "llama.cpp":
        return LlamaCpp(client, server.model)
    if kind == "sglang":
        return SGLang(client, server.model)
    return OpenAI(kind, client, server.model)


def kind_of(client: Client) -> ServerKind:
    """The kind of a server; "openai" if it is not recognised.

    Raises:
        ServerError: it does not answer, or wants an API key.
    """
    for kind, (path, key) in _TELLING.items():
        found = client.probe(path)
        if found is not None and (key is None or key in found):
            return kind
    return "openai"
