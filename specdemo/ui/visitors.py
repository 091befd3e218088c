"""Who is doing what, so that a Stop reaches only that visitor's work."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event


class Visitors:
    """What each visitor has in progress."""

    def __init__(self) -> None:
        self._cancelled: dict[tuple[str, str], Event] = {}

    @contextmanager
    def busy(self, visitor: str, what: str) -> Iterator[Event]:
        """The event that is set when this visitor stops it."""
        event = self._cancelled[visitor, what] = Event()
        try:
            yield event
        finally:
            self._cancelled.pop((visitor, what), None)

    def event(self, visitor: str, what: str) -> Event | None:
        """The event of a thing that this visitor has in progress, if there is one."""
        return self._cancelled.get((visitor, what))

    def stop(self, visitor: str, what: str) -> None:
        """Stop one thing that this visitor has in progress, if it has."""
        event = self.event(visitor, what)
        if event is not None:
            event.set()
