"""What all records have in common."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all records: frozen, and tolerant of derived extras when read from JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore")
