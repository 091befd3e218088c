"""Where both sides of a comparison are served, as whoever starts the program says."""

from specdemo.records.base import Record
from specdemo.strategies import ServerKind

SILENCE_SECONDS = 60.0
"""A server that sends nothing for so long has stopped answering."""


class Server(Record):
    """One server: its address, the model's name there (None: the only one), and its kind (None: ask it)."""

    url: str
    model: str | None = None
    kind: ServerKind | None = None
    silence_seconds: float = SILENCE_SECONDS


class Servers(Record):
    """The server of each side; only sides that have one can run."""

    plain: Server | None = None
    speculative: Server | None = None
