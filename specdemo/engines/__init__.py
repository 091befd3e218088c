"""Engines: what turns a request into rounds. All implement `Engine` and `Decoder`."""

from collections.abc import Callable

import specdemo.telemetry  # noqa: F401 (before `openvino`)
from specdemo.engines.base import Engine
from specdemo.engines.genai import GenAIEngine
from specdemo.engines.server import ServedEngine
from specdemo.engines.traced import TracedEngine
from specdemo.records import ModelPair, Side
from specdemo.strategies import EngineName

LOADERS: dict[EngineName, Callable[[ModelPair], Engine]] = {
    "genai": GenAIEngine,
    "traced": TracedEngine,
    "served": ServedEngine,
}


def load_engine(name: EngineName, pair: ModelPair, side: Side | None = None) -> Engine:
    """Load a pair in the engine of this name.

    With a `side`, only what that side decodes with, as a program would that does nothing else.

    Raises:
        SpecdemoError: the pair cannot be loaded; the message says why.
    """
    if side == "plain":
        pair = pair.model_copy(update={"draft": None})
    if side is not None and name == "genai":
        return GenAIEngine(pair, lazy=True)
    return LOADERS[name](pair)
