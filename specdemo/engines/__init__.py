"""Engines: what turns a prompt into rounds. All speak `Decoder`."""

from collections.abc import Callable

from specdemo.engines.base import Engine
from specdemo.engines.genai import GenAIEngine
from specdemo.records import ModelPair

ENGINES: dict[str, Callable[[ModelPair], Engine]] = {"genai": GenAIEngine}


def load_engine(name: str, pair: ModelPair) -> Engine:
    """Load a pair in the engine of this name, one of `ENGINES`.

    Raises:
        SpecdemoError: the pair cannot be loaded; the message says why.
    """
    return ENGINES[name](pair)
