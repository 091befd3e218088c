"""Step costs in which all draft steps take the same time."""

from collections.abc import Sequence
from typing import Any

from specdemo.records import Costs


def costs_of(verify: Sequence[float], draft: float | None = None, **others: Any) -> Costs:
    drafting = () if draft is None else tuple(draft * lookahead for lookahead in range(len(verify)))
    return Costs(verify=tuple(verify), drafting=drafting, **others)
