"""Several scripted requests at once, on a clock that is only counted: a load whose outcome is known beforehand.

Each request commits what it would alone. A pass over n tokens of all requests takes `step + (n − 1) · extra`, as in
the scripted engine, so the tokens that speculation passes through the target in vain cost the more, the more requests
there are; drafts of all requests are made together, and prefills one by one.
"""

from collections.abc import Sequence
from time import sleep

from specdemo.engines.base import Engine, rounds_of
from specdemo.engines.batch import Arrival, RoundCounts
from specdemo.records import Request, Round


class ScriptedBatch:
    """A `Batch` of requests that an engine would decode one by one."""

    in_passes = True

    def __init__(self, engine: Engine, step: float, extra: float, *, real_time: bool = False) -> None:
        """`real_time`: sleep as long as the clock says."""
        self._engine = engine
        self._step = step
        self._extra = extra
        self._real_time = real_time
        self._seconds = 0.0
        self._flying: dict[int, _Flight] = {}

    def now(self) -> float:
        """The seconds counted so far."""
        return self._seconds

    def submit(self, number: int, request: Request) -> None:
        """Begin a request; its prefill is part of the next pass."""
        self._flying[number] = _Flight(self._engine, request)

    def receive(self) -> Sequence[Arrival]:
        """A round of every request in flight."""
        rounds = {number: next(flight.rounds) for number, flight in self._flying.items()}
        decoding = [step for number, step in rounds.items() if not self._flying[number].prefilling]
        passed = sum(step.seconds for number, step in rounds.items() if self._flying[number].prefilling)
        if decoding:
            tokens = sum(1 + len(step.proposed or ()) for step in decoding)
            passed += max(step.draft_seconds or 0.0 for step in decoding)
            passed += self._step + (tokens - 1) * self._extra
        self._seconds += passed
        if self._real_time:
            sleep(passed)
        return [self._arrival(number, step) for number, step in rounds.items()]

    def cache_bytes(self) -> int | None:
        """There is no cache."""
        return None

    def close(self) -> None:
        """Drop what is in flight."""
        for flight in self._flying.values():
            flight.rounds.close()
        self._flying = {}

    def _arrival(self, number: int, step: Round) -> Arrival:
        flight = self._flying[number]
        told = () if flight.prefilling else (RoundCounts(len(step.proposed or ()), step.accepted),)
        flight.prefilling = False
        if flight.decoder.finish_reason is not None:
            del self._flying[number]
        ids = tuple(token.id for token in step.committed if token.id is not None)
        return Arrival(number, self._seconds, len(ids), ids, told, flight.decoder.finish_reason)


class _Flight:
    def __init__(self, engine: Engine, request: Request) -> None:
        self.decoder = engine.decoder(request)
        self.rounds = rounds_of(self.decoder)
        self.prefilling = True
