"""Closed-loop load: one side at constant concurrency, and plain and speculative blocks of the same requests.

If the batch were allowed to drain, part of the measurement would run at lower concurrency, more so on the side whose
requests vary in length. So further ones are submitted until the last counted one has ended, and then dropped.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import NamedTuple

from specdemo.engines.base import THOROUGH, Arrival, Batch, Engine, Thoroughness
from specdemo.experiments.prompts import Task
from specdemo.racing.warm_up import OtherLoad
from specdemo.records import Request, Trial

_WARM_UP_TOKENS = 8  # before the first block of a kind: its first passes compile kernels


@dataclass
class RequestProgress:
    """A request: its tokens so far, the seconds until the first and the last of them, and its output."""

    prompt: str
    began: float
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    output: str = ""

    def add(self, arrival: Arrival) -> None:
        self.last = arrival.at - self.began
        if self.tokens == 0:
            self.first = self.last
        self.tokens += arrival.tokens
        ids = arrival.output
        self.output += ids if isinstance(ids, str) else "".join(f"{token} " for token in ids)


class Block(NamedTuple):
    """One side, until the last of `served` ended; unfinished requests count for `tokens` only. `rounds` holds
    proposed (None if unknown) and accepted tokens of every round; None if rounds are not reported.
    """

    seconds: float
    tokens: int
    served: tuple[RequestProgress, ...]
    rounds: tuple[tuple[int | None, int], ...] | None
    other_load: float | None

    def against(self, plain: "Block") -> Trial:
        """The plain block has the same requests; seconds are for the same number of tokens."""
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
        return {(request.prompt, request.output) for request in self.served}

    @property
    def ttft(self) -> tuple[float, ...]:
        """Seconds from a request's submission to its first token, by request."""
        return tuple(round(request.first, 6) for request in self.served)

    @property
    def tpot(self) -> tuple[float, ...]:
        """Seconds per token after the first, by request."""
        return tuple(round((request.last - request.first) / max(request.tokens - 1, 1), 6) for request in self.served)


def run_block(
    batch: Batch,
    requests: Iterator[Request],
    concurrency: int,
    number: int,
    stop: Callable[[], bool] = lambda: False,
    *,
    thoroughness: Thoroughness = THOROUGH,
) -> Block | None:
    """Serve the first `number` of endless requests, `concurrency` at a time; return None if `stop` returned True. The
    batch may still hold requests; close it. SpecdemoError: a request cannot be served, or the engine failed.
    """
    load = OtherLoad(thoroughness.load_seconds)
    running, done = dict[int, RequestProgress](), dict[int, RequestProgress]()
    rounds: list[tuple[int | None, int]] | None = []
    tokens, upcoming = 0, enumerate(requests)

    def submit(how_many: int) -> None:
        for index, request in islice(upcoming, how_many):
            running[index] = RequestProgress(request.prompt, batch.now())
            batch.submit(index, request)

    began = at = batch.now()
    submit(concurrency)
    while len(done) < number:
        if stop():
            return None
        ended = 0
        for arrival in batch.receive():
            at = arrival.at
            running[arrival.number].add(arrival)
            tokens += arrival.tokens
            if arrival.rounds is None:
                rounds = None
            elif rounds is not None:
                rounds += [(counts.proposed, counts.accepted) for counts in arrival.rounds]
            if arrival.finish_reason is not None:
                request = running.pop(arrival.number)
                ended += 1
                if arrival.number < number:
                    done[arrival.number] = request
        if len(done) < number:
            submit(ended)
    return Block(
        seconds=at - began,
        tokens=tokens,
        served=tuple(done[index] for index in sorted(done)),
        rounds=None if rounds is None else tuple(rounds),
        other_load=load.share() if batch.receives_passes else None,  # a server may be part of the other load
    )


def run_blocks(
    engine: Engine,
    requests: Mapping[str, Request],
    tasks: Sequence[Task],
    concurrency: int,
    seed: str,
    stop: Callable[[], bool],
) -> dict[str, Block] | None:
    """One kind after the other, on the same prompts, at least twice as many as run at once; None if stopped."""
    measured: dict[str, Block] = {}
    for name, request in requests.items():
        short = replace(request, max_new_tokens=min(_WARM_UP_TOKENS, request.max_new_tokens))
        for template, number in ((short, concurrency), (request, max(len(tasks), 2 * concurrency))):  # warm up first
            with closing(engine.batch(template.strategy)) as batch:
                stream = _endless(template, tasks, Random(seed))
                block = run_block(batch, stream, concurrency, number, stop, thoroughness=engine.thoroughness)
            if block is None:
                return None
            measured[name] = block
    return measured


def _endless(request: Request, tasks: Sequence[Task], random: Random) -> Iterator[Request]:
    """All prompts in a random order, then all in another."""
    while True:
        for task in random.sample(tasks, len(tasks)):
            yield replace(request, prompt=task.prompt, system_prompt=task.system_prompt or request.system_prompt)
