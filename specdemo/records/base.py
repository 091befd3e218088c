"""What all records have in common."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all records: frozen, and read from JSON without complaint about derived extras."""

    model_config = ConfigDict(frozen=True, extra="ignore")
