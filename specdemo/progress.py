"""How far long work is: the one type for sweeps, benchmarks, measurements and downloads."""

from dataclasses import dataclass
from typing import Generic, TypeVar

F = TypeVar("F")


@dataclass(frozen=True)
class Progress(Generic[F]):
    """`done` of `total` parts, and what was `found` so far.

    `seconds_left` is an estimate from the parts so far, None before there is one; `doing` names the part in hand.
    """

    done: int
    total: int
    seconds_left: float | None
    found: F
    doing: str = "measuring"
