"""Step costs in which all draft steps take the same time."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from specdemo.capabilities import EngineName
from specdemo.engines.base import Engine
from specdemo.racing.costs import save_costs
from specdemo.records import Costs, ModelPair


def costs_of(verify: Sequence[float], draft: float | None = None, **others: Any) -> Costs:
    drafting = () if draft is None else tuple(draft * lookahead for lookahead in range(len(verify)))
    return Costs(verify=tuple(verify), drafting=drafting, **others)


def remember_costs(pair: ModelPair, engine: EngineName = "genai") -> None:
    """Keep step costs, so that no process measures them, which takes seconds."""
    costs = costs_of([0.010, 0.011, 0.012, 0.013, 0.014], 0.001)
    save_costs(cast(Engine, SimpleNamespace(name=engine, pair=pair)), costs)
