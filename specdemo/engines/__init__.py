"""Engines: what turns a request into rounds. All implement `Engine` and `Decoder`."""

from typing import Protocol

import specdemo.telemetry  # noqa: F401 (before `openvino`)
from specdemo.engines.base import THOROUGH, Engine, Thoroughness
from specdemo.engines.genai import GenAIEngine
from specdemo.engines.server import ServedEngine
from specdemo.engines.traced import TracedEngine
from specdemo.records import ModelPair, Side
from specdemo.strategies import EngineName


class Loader(Protocol):
    """What loads a pair in one engine, such as the engine's class."""

    def __call__(self, pair: ModelPair, *, thoroughness: Thoroughness) -> Engine:
        """Load it.

        Raises:
            SpecdemoError: the pair cannot be loaded; the message says why.
        """


LOADERS: dict[EngineName, Loader] = {
    "genai": GenAIEngine,
    "traced": TracedEngine,
    "served": ServedEngine,
}


def load_engine(
    name: EngineName, pair: ModelPair, side: Side | None = None, *, thoroughness: Thoroughness = THOROUGH
) -> Engine:
    """Load a pair in the engine of this name.

    With a `side`, only what that side decodes with, as a program would that does nothing else. `thoroughness`: how
    long measurements go on, as long as is worth it by default.

    Raises:
        SpecdemoError: the pair cannot be loaded; the message says why.
    """
    if side == "plain":
        pair = pair.model_copy(update={"draft": None})
    if side is not None and name == "genai":
        return GenAIEngine(pair, lazy=True, thoroughness=thoroughness)
    return LOADERS[name](pair, thoroughness=thoroughness)
