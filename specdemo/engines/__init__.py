"""Engines: what turns a prompt into rounds. All speak `Decoder`."""

from collections.abc import Callable

from specdemo.engines.base import Engine
from specdemo.engines.genai import GenAIEngine
from specdemo.engines.traced import TracedEngine
from specdemo.records import ModelPair
from specdemo.settings import EngineName

ENGINES: dict[EngineName, Callable[[ModelPair], Engine]] = {"genai": GenAIEngine, "traced": TracedEngine}


def load_engine(name: EngineName, pair: ModelPair) -> Engine:
    """Load a pair in the engine of this name.

    Raises:
        SpecdemoError: the pair cannot be loaded; the message says why.
    """
    return ENGINES[name](pair)
