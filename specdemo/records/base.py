"""The base of all records: frozen, and bounded against absurd values from files.

Anyone may have written a file. Values derived from a record are computed without further checks, so bounds are set
here: far beyond any real run, and tight enough that no sum or ratio overflows a float.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST = 2048
"""Maximum tokens of a run, and so maximum rounds, and proposals per round."""

TICK = 1e-9
Seconds = Annotated[float, Field(ge=TICK, le=1e6)]
"""A duration: at least a clock tick, and less than two weeks."""
Share = Annotated[float, Field(ge=0, le=1e6)]
"""Seconds of a part, possibly 0."""
Probability = Annotated[float, Field(ge=0, le=1.01)]
"""A sum of rounded terms can slightly exceed 1."""
Count = Annotated[int, Field(ge=0, lt=2**53)]
"""An integer that browsers represent exactly."""


class Record(BaseModel):
    """Base of all records: frozen, finite, and ignoring derived extras when read from JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
