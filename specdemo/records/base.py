"""What all records have in common: they are frozen, and bounded against absurd values from files.

A record may come from a file that anyone wrote. What follows from it is computed without further checks, so the
bounds are here: far beyond what any run gives, and tight enough that no sum or ratio overflows a float.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST = 2048
"""The most tokens of a run, and so the most rounds, and proposals per round."""

TICK = 1e-9
Seconds = Annotated[float, Field(ge=TICK, le=1e6)]
"""A duration: at least a tick of the clock, and less than two weeks."""
Share = Annotated[float, Field(ge=0, le=1e6)]
"""Seconds of a part, possibly 0."""
Probability = Annotated[float, Field(ge=0, le=1.01)]
"""A sum of rounded terms can be a little above 1."""
Count = Annotated[int, Field(ge=0, lt=2**53)]
"""An integer that browsers represent exactly."""


class Record(BaseModel):
    """Base of all records: frozen, of finite numbers, and tolerant of derived extras when read from JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
