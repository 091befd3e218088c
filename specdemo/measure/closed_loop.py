"""Closed-loop load: one side at constant concurrency.

In a closed loop every user waits for an answer before asking again, so concurrency stays constant. If the batch were
allowed to drain, part of the measurement would run at lower concurrency, more so on the side whose requests vary in
length. So further requests are submitted until the last counted one has ended, and then dropped.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice, repeat
from random import Random
from typing import NamedTuple

from specdemo.engines import THOROUGH, Arrival, Batch, BatchEngine, Engine, Thoroughness
from specdemo.errors import SettingsError
from specdemo.measure.conditions import OtherLoad
from specdemo.records import Block, Request, ServedRequest


class NamedRequest(NamedTuple):
    """A request and its prompt's name."""

    prompt: str
    request: Request


def shuffled(names: list[str], seed: str) -> Iterator[str]:
    """Yield the names endlessly: all in a random order, then all in another."""
    random = Random(seed)
    while True:
        yield from random.sample(names, len(names))


@dataclass
class _Flight:
    prompt: str
    began: float
    first: float | None = None
    tokens: int = 0
    output: list[str] = field(default_factory=list)

    def add(self, arrival: Arrival) -> None:
        if arrival.tokens and self.first is None:
            self.first = arrival.at - self.began
        self.tokens += arrival.tokens
        ids = arrival.output
        self.output += [ids] if isinstance(ids, str) else [f"{token} " for token in ids]

    def served(self, at: float) -> ServedRequest:
        last = at - self.began
        digest = hashlib.sha256("".join(self.output).encode(errors="replace")).hexdigest()[:16]
        first = last if self.first is None else self.first
        return ServedRequest(prompt=self.prompt, tokens=self.tokens, first=first, last=last, output=digest)


class _Rounds:
    """Counts of rounds, as far as reported."""

    def __init__(self) -> None:
        self._seen = True
        self._accepted: Counter[int] = Counter()
        self._judged = self._proposed = 0

    def add(self, arrival: Arrival) -> None:
        self._seen &= arrival.rounds is not None
        for proposed, accepted in arrival.rounds or ():
            self._accepted[accepted] += 1
            if proposed is not None:
                self._judged += accepted
                self._proposed += proposed

    @property
    def accepted(self) -> tuple[int, ...] | None:
        if not self._seen or not self._accepted:
            return None
        return tuple(self._accepted[count] for count in range(max(self._accepted) + 1))

    @property
    def judged(self) -> tuple[int, int] | None:
        return (self._judged, self._proposed) if self._seen and self._proposed else None


def serve(
    batch: Batch,
    requests: Iterator[NamedRequest],
    level: int,
    number: int,
    stop: Callable[[], bool] = lambda: False,
    *,
    thoroughness: Thoroughness = THOROUGH,
) -> Block | None:
    """Serve the first `number` of endless requests, `level` at a time; return None if `stop` returned True.

    The batch may still hold requests; close it.

    Raises:
        SpecdemoError: a request cannot be served, or the engine failed.
    """
    load = OtherLoad(thoroughness.load_seconds)
    flying, done, rounds = dict[int, _Flight](), dict[int, ServedRequest](), _Rounds()
    tokens = advanced = passes = cache = 0
    upcoming = enumerate(requests)

    def submit(how_many: int) -> None:
        for index, (prompt, request) in islice(upcoming, how_many):
            flying[index] = _Flight(prompt, batch.now())
            batch.submit(index, request)

    began = at = batch.now()
    submit(level)
    while len(done) < number:
        if stop():
            return None
        arrived, ended = batch.receive(), 0
        for arrival in arrived:
            flight, at = flying[arrival.number], arrival.at
            flight.add(arrival)
            rounds.add(arrival)
            tokens += arrival.tokens
            if arrival.finish_reason is not None:
                del flying[arrival.number]
                ended += 1
                if arrival.number < number:
                    done[arrival.number] = flight.served(at)
        if arrived:
            advanced, passes, cache = advanced + len(arrived), passes + 1, max(cache, batch.cache_bytes() or 0)
        if len(done) < number:
            submit(ended)
    return Block(
        level=level,
        seconds=at - began,
        tokens=tokens,
        served=tuple(done[index] for index in sorted(done)),
        accepted=rounds.accepted,
        judged=rounds.judged,
        batch=advanced / passes if batch.in_passes else None,
        cache_bytes=cache or None,
        other_load=load.share() if batch.in_passes else None,  # a server may be part of the other load
    )


def decode_at_once(engine: Engine, request: Request, level: int) -> None:
    """Decode `level` copies of a request concurrently.

    Raises:
        SettingsError: the engine serves one request at a time.
        SpecdemoError: the request cannot be served, or the engine failed.
    """
    with closing(batch_engine(engine).batch(request.strategy)) as batch:
        serve(batch, repeat(NamedRequest("", request)), level, level)


def batch_engine(engine: Engine) -> BatchEngine:
    """Return the engine if it serves several requests at once.

    Raises:
        SettingsError: it serves one at a time.
    """
    if not isinstance(engine, BatchEngine):
        raise SettingsError("This engine serves one request at a time; choose another.")
    return engine
