"""Which kind of server there is, found out by asking it what only that kind answers."""

from specdemo.engines.server.client import Client
from specdemo.engines.server.llama_cpp import LlamaCpp
from specdemo.engines.server.openai import OpenAI
from specdemo.engines.server.protocols import Dialect
from specdemo.engines.server.sglang import SGLang
from specdemo.records import Server
from specdemo.strategies import ServerKind

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
    """The kind of a server; "openai" if it is none of those that are known.

    Raises:
        ServerError: it does not answer, or wants an API key.
    """
    for kind, (path, key) in _TELLING.items():
        found = client.probe(path)
        if found is not None and (key is None or key in found):
            return kind
    return "openai"
