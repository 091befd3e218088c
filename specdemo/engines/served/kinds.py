"""Which kind of server there is, found out by asking it what only that kind answers."""

from collections.abc import Callable

from specdemo.engines.served.client import Client
from specdemo.engines.served.llama_cpp import LlamaCpp
from specdemo.engines.served.protocols import Dialect
from specdemo.records import Server
from specdemo.ways import ServerKind

DIALECTS: dict[ServerKind, Callable[[Client, str | None], Dialect]] = {"llama.cpp": LlamaCpp}


def dialect(client: Client, server: Server) -> Dialect:
    """How to talk to a server.

    Raises:
        ServerError: it does not answer.
    """
    return DIALECTS[server.kind or kind_of(client)](client, server.model)


def kind_of(client: Client) -> ServerKind:
    """The kind of a server."""
    return "llama.cpp" if client.get("/props").is_success else "openai"
