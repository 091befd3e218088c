"""What all records have in common: they are frozen, and hold nothing that a file could have made absurd.

A record may come from a file that anybody wrote. What follows from it is computed without further checks, so bounds
stand here: far beyond what any run gives, and close enough that no sum or ratio of them leaves the floats.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST = 2048
"""Tokens that a run can have, thus its rounds, and the proposals of each."""

Seconds = Annotated[float, Field(ge=1e-9, le=1e6)]
"""What something took: at least a tick of the clock, and less than a fortnight."""
Share = Annotated[float, Field(ge=0, le=1e6)]
"""Seconds of a part, which may not have happened."""
Probability = Annotated[float, Field(ge=0, le=1.01)]
"""A sum of rounded terms can be a little above 1."""
Count = Annotated[int, Field(ge=0, lt=2**53)]
"""A number that browsers keep exact."""


class Record(BaseModel):
    """Base of all records: frozen, of finite numbers, and tolerant of derived extras when read from JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
