"""Closed-loop load: one side at constant concurrency.

In a closed loop every user waits for an answer before asking again, so concurrency stays constant. If the batch were
allowed to drain, part of the measurement would run at lower concurrency, more so on the side whose requests vary in
length. So further requests are submitted until the last counted one has ended, and then dropped.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import NamedTuple

from specdemo.engines.base import THOROUGH, Arrival, Batch, Thoroughness
from specdemo.records import Request, Trial
from specdemo.warm_up import OtherLoad


class NamedRequest(NamedTuple):
    """A request and its prompt's name."""

    prompt: str
    request: Request


class Served(NamedTuple):
    """A served request: its tokens, seconds until the first and the last, and a digest of its output."""

    prompt: str
    tokens: int
    first: float
    last: float
    output: str


class Block(NamedTuple):
    """One side, from the first submission until the last of `served` ended.

    Requests that are unfinished then count for `tokens` but are not `served`. `rounds` holds proposed (None if
    unknown) and accepted tokens of every round; None if rounds are not reported.
    """

    seconds: float
    tokens: int
    served: tuple[Served, ...]
    rounds: tuple[tuple[int | None, int], ...] | None
    other_load: float | None

    def against(self, plain: "Block") -> Trial:
        """Compare with the plain block of the same requests: seconds are for the same number of tokens."""
        rounds = self.rounds or ()
        judged = [(proposed, accepted) for proposed, accepted in rounds if proposed is not None]
        return Trial(
            tokens=self.tokens,
            seconds=self.seconds,
            plain_seconds=plain.seconds / plain.tokens * self.tokens,
            identical=self.outputs == plain.outputs,
            rounds=len(rounds) or None,
            run_tokens=sum(accepted + 1 for _, accepted in rounds) or self.tokens,
            proposed=sum(proposed for proposed, _ in judged) if judged else None,
            accepted=sum(accepted for _, accepted in judged) if judged else None,
            other_load=self.other_load,
        )

    @property
    def outputs(self) -> set[tuple[str, str]]:
        return {(each.prompt, each.output) for each in self.served}

    @property
    def ttft(self) -> float:
        """Median seconds from submission to the first token."""
        return median(each.first for each in self.served)

    @property
    def tpot(self) -> float:
        """Median seconds per token after the first."""
        return median((each.last - each.first) / max(each.tokens - 1, 1) for each in self.served)


@dataclass
class _Request:
    """A request in progress."""

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

    def served(self, at: float) -> Served:
        last = at - self.began
        digest = hashlib.sha256("".join(self.output).encode(errors="replace")).hexdigest()[:16]
        return Served(self.prompt, self.tokens, last if self.first is None else self.first, last, digest)


def serve(
    batch: Batch,
    requests: Iterator[NamedRequest],
    concurrency: int,
    number: int,
    stop: Callable[[], bool] = lambda: False,
    *,
    thoroughness: Thoroughness = THOROUGH,
) -> Block | None:
    """Serve the first `number` of endless requests, `concurrency` at a time; return None if `stop` returned True.

    The batch may still hold requests; close it.

    Raises:
        SpecdemoError: a request cannot be served, or the engine failed.
    """
    load = OtherLoad(thoroughness.load_seconds)
    running, done = dict[int, _Request](), dict[int, Served]()
    rounds: list[tuple[int | None, int]] | None = []
    tokens, upcoming = 0, enumerate(requests)

    def submit(how_many: int) -> None:
        for index, (prompt, request) in islice(upcoming, how_many):
            running[index] = _Request(prompt, batch.now())
            batch.submit(index, request)

    began = at = batch.now()
    submit(concurrency)
    while len(done) < number:
        if stop():
            return None
        ended = 0
        for arrival in batch.receive():
            request, at = running[arrival.number], arrival.at
            request.add(arrival)
            tokens += arrival.tokens
            if arrival.rounds is None:
                rounds = None
            elif rounds is not None:
                rounds += [(each.proposed, each.accepted) for each in arrival.rounds]
            if arrival.finish_reason is not None:
                del running[arrival.number]
                ended += 1
                if arrival.number < number:
                    done[arrival.number] = request.served(at)
        if len(done) < number:
            submit(ended)
    return Block(
        seconds=at - began,
        tokens=tokens,
        served=tuple(done[index] for index in sorted(done)),
        rounds=None if rounds is None else tuple(rounds),
        other_load=load.share() if batch.in_passes else None,  # a server may be part of the other load
    )
