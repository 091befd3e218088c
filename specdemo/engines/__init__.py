"""Engines turn a request into rounds. Each implements `Engine`, and its decoders `Decoder`."""

from typing import Protocol

import specdemo.telemetry  # noqa: F401 (before `openvino`)
from specdemo.engines.base import THOROUGH, Arrival, Batch, BatchEngine, Decoder, Engine, Thoroughness, rounds_of
from specdemo.engines.genai import GenAIEngine
from specdemo.engines.server import RemoteEngine, remote_pair
from specdemo.engines.traced import TracedEngine
from specdemo.records import ModelPair, Side
from specdemo.strategies import EngineName

__all__ = [
    "LOADERS",
    "THOROUGH",
    "Arrival",
    "Batch",
    "BatchEngine",
    "Decoder",
    "Engine",
    "Loader",
    "Thoroughness",
    "load_engine",
    "remote_pair",
    "rounds_of",
]


class Loader(Protocol):
    """A callable that loads a pair, such as an engine class."""

    def __call__(self, pair: ModelPair, *, thoroughness: Thoroughness) -> Engine:
        """Load a pair.

        Raises:
            SpecdemoError: the pair cannot be loaded; the message says why.
        """


LOADERS: dict[EngineName, Loader] = {
    "genai": GenAIEngine,
    "traced": TracedEngine,
    "served": RemoteEngine,
}


def load_engine(
    name: EngineName, pair: ModelPair, side: Side | None = None, *, thoroughness: Thoroughness = THOROUGH
) -> Engine:
    """Load a pair in the named engine.

    With `side`, only the models that side decodes with are loaded. `thoroughness` limits how long measurements take.

    Raises:
        SpecdemoError: the pair cannot be loaded; the message says why.
    """
    if side == "plain":
        pair = pair.model_copy(update={"draft": None})
    if side is not None and name == "genai":
        return GenAIEngine(pair, lazy=True, thoroughness=thoroughness)
    return LOADERS[name](pair, thoroughness=thoroughness)
