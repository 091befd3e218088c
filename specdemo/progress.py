"""Progress of long work: in parts, for sweeps, benchmarks, measurements and downloads; in phases, for a run."""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

F = TypeVar("F")


@dataclass(frozen=True)
class Progress(Generic[F]):
    """`done` of `total` parts, and what was `found` so far.

    `seconds_left` is an estimate from the parts so far, None before there is one; `doing` names the current part.
    """

    done: int
    total: int
    seconds_left: float | None
    found: F
    doing: str = "measuring"


@dataclass(frozen=True)
class Phase:
    """What an engine is busy with when it is not decoding, and for how many seconds.

    `done` of `total` parts, where there are several.
    """

    name: Literal["converting", "loading", "calibrating", "warming up", "prefilling"]
    done: int = 0
    total: int = 0
    seconds: float = 0.0
