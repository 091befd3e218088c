"""Engines turn requests into rounds. `exports` and everything above it may import this.

An engine's own modules are imported when it is loaded: importing OpenVINO takes more than a second.
"""

from pkgutil import resolve_name

import specdemo.models  # noqa: F401 (blocks OpenVINO's telemetry)
from specdemo.capabilities import ENGINES, EngineName
from specdemo.engines.base import THOROUGH, Engine, Thoroughness
from specdemo.errors import OPENVINO_FAILURES, LoadError
from specdemo.records import ModelPair, Side


def load_engine(
    name: EngineName, pair: ModelPair, side: Side | None = None, *, thoroughness: Thoroughness = THOROUGH
) -> Engine:
    """Load a pair in the named engine; with `side`, only the models that side decodes with."""
    if side == "plain":
        pair = pair.model_copy(update={"draft": None})
    try:
        engine: Engine = resolve_name(ENGINES[name].implementation)(pair, side, thoroughness=thoroughness)
    except OPENVINO_FAILURES as error:  # such as its CPU plugin's, which may need memory or a thread to start at all
        raise LoadError.of(error, f"OpenVINO cannot load {pair.name}", "check its installation") from error
    return engine
