"""What a siege counts."""

from dataclasses import dataclass, fields

_LARGEST = ("growth", "server_bytes", "engine_bytes", "silence")


@dataclass
class Tally:
    """All that was tried, and what came of it.

    Each attempt is answered, or refused in a sentence; none is `unexplained`. `mixed_up` are answers that belong to
    somebody else, `lost_rows` finished rows of a benchmark that were gone after its engine was killed. `growth` is
    the share by which memory grew; `server_bytes` and `engine_bytes` are the largest that the two processes of the
    besieged app were; `silence` is the longest that anyone waited for its front page, in seconds.
    """

    tried: int = 0
    answered: int = 0
    refused: int = 0
    unexplained: int = 0
    tracebacks: int = 0
    mixed_up: int = 0
    lost_rows: int = 0
    growth: float = 0.0
    server_bytes: int = 0
    engine_bytes: int = 0
    silence: float = 0.0

    def add(self, other: "Tally") -> None:
        """Add another part's counts; of other figures the larger one counts."""
        for field in fields(self):
            both = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, max(both) if field.name in _LARGEST else sum(both))

    @property
    def held(self) -> bool:
        """Whether nothing happened that must not."""
        wrong = self.unexplained + self.tracebacks + self.mixed_up + self.lost_rows
        return wrong == 0 and self.answered + self.refused == self.tried
