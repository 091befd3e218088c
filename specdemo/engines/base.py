"""The seam between engines and everything else: one request at a time, or a batch of several.

A request is decoded by one generator of rounds. Rounds, rather than a callback, give each its own clock, let a run
stop within one round, and make a race possible: two generators, advanced alternately.

A batch holds several requests of one side in flight at once, and reports what arrived for them. In-process engines
advance all requests in one pass, so each `receive` covers exactly one target pass; of a server only arrivals are
seen, in whatever order they come. Times are the batch's own: a clock in this process, one that is read where a
server's chunks arrive, or, for tests, one that is only counted.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from specdemo.records import (
    Costs,
    Counters,
    DraftRound,
    Environment,
    FinishReason,
    ModelPair,
    Request,
    Round,
    Run,
    Side,
    TraceSource,
)
from specdemo.strategies import Strategy

PREFILL_CHUNK = 512
"""Tokens of a long prompt that are prefilled at once. Larger parts were not faster, and give coarser progress."""


@dataclass(frozen=True)
class Thoroughness:
    """How long measurements on an engine go on. Whoever loads the engine may want less."""

    repetition_seconds: float = 0.15
    """What a repetition of a warm-up takes, on the side's own clock."""
    steady: int = 2
    """Repetitions of a warm-up in a row that are hardly faster, before a side is steady."""
    cold_seconds: float = 1.5
    """What a warm-up takes at least, on each side's own clock, where the engine has not raced yet."""
    warm_seconds: float = 60
    """How long a side that was steady counts as warm."""
    repeats: int = 20
    """Repeats of a race at most, where their number is not given; more hardly narrow the interval."""
    visits: int = 6
    """Visits to each length of passes whose cost is measured; fewer once they take long."""
    changes: int = 3
    """Times that a change of lengths is measured."""
    load_seconds: float = 0.1
    """Of all cores together, over which other load can be measured: the system counts in hundredths."""


THOROUGH = Thoroughness()
BRIEF = Thoroughness(
    repetition_seconds=0, steady=1, cold_seconds=0, repeats=1, visits=1, changes=1, load_seconds=math.inf
)
"""One look at everything: for clocks that are arithmetic, and where nobody reads the figures."""


class Prefilling(NamedTuple):
    """How many of a prompt's tokens have been prefilled."""

    done: int
    total: int


class Decoder(Protocol):
    """One request."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the request ended, or None while it goes on."""

    @property
    def trace_source(self) -> TraceSource:
        """Where the proposals in this request's rounds come from."""

    def rounds(self) -> Generator[Prefilling | Round]:
        """Tokenise and prefill, yielding progress in between; then one round at a time. Call it once.

        The first round is the prefill, which commits the first token; its seconds exclude tokenising. Closing the
        generator, at any time, frees the request.

        Raises:
            PromptError: the prompt is empty, or too long for the model.
            RunError: the engine could not continue.
        """

    def with_proposals(self, rounds: Sequence[Round]) -> list[Round]:
        """The request's next rounds, in order, with everything the engine can find out about them off the clock."""

    def finalized(self, run: Run) -> Run:
        """The run as it ended, with what the engine finds out only then."""

    def update_strategy(self, strategy: Strategy) -> bool:
        """Decode this way from the next round on; False, and nothing changes, where that takes another request."""

    def draft_agreement(self) -> tuple[bool, ...] | None:
        """For each token after the prefill's, whether the draft would have proposed it given the text before it.

        Found off the clock. None where a draft has no single choice: when sampling, and without a draft model.
        """


class Engine(Protocol):
    """A loaded pair, which decodes one request at a time on each side.

    `remote`: it is decoded elsewhere, by servers that do not wait until a decoder is asked for its next round, so two
    requests cannot take turns. `sides`: those that it can decode.
    """

    @property
    def remote(self) -> bool:
        """Whether it is decoded elsewhere."""

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides that it can decode."""

    @property
    def thoroughness(self) -> Thoroughness:
        """How long measurements on it go on."""

    @property
    def pair(self) -> ModelPair:
        """What is loaded."""

    @property
    def environment(self) -> Environment:
        """What the figures are measured on."""

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        """A decoder of the request. The automatic lookahead needs the pair's step costs.

        Raises:
            PairError, SettingsError: the pair cannot be decoded in the request's strategy.
        """

    def count_tokens(self, text: str) -> int:
        """Number of the target's tokens in a text."""

    def pass_seconds(self, prompt: str, *tokens: int) -> Generator[float]:
        """Seconds of consecutive target passes over this number of tokens, after a text like the prompt.

        Several numbers alternate; an engine that cannot do that yields nothing.
        """

    def draft_rounds(self, prompt: str, lookahead: int) -> list[DraftRound]:
        """What the draft takes in each of several rounds with this lookahead; empty without a draft.

        A draft on its own would be faster: no target pass would evict its weights from the caches.
        """

    def log_probabilities(
        self, request: Request, before: Sequence[int], tokens: Sequence[int], *, apart: bool
    ) -> list[float] | None:
        """The target's log-probability of each of these tokens, after the prompt and the tokens `before`.

        From one pass over all, or `apart`, from a pass over one each. None where the engine cannot say.
        """

    def counters(self, request: Request, wrote: Sequence[int], *, reload: bool) -> Counters | None:
        """What the software below counts itself when it runs this request once more; None where it does not count.

        `wrote` are the tokens of the run that is checked; `reload` loads the models again first.
        """

    def close(self) -> None:
        """Free all models."""


def rounds_of(decoder: Decoder) -> Generator[Round]:
    """The rounds of one decoder, prefill first, without prefill progress; closing it frees the request."""
    with closing(decoder.rounds()) as steps:
        for step in steps:
            if isinstance(step, Round):
                yield step


class RoundCounts(NamedTuple):
    """A round of one request: how many tokens were proposed, None if unknown, and how many accepted."""

    proposed: int | None
    accepted: int


class Arrival(NamedTuple):
    """What arrived for one request at one moment; its first arrival ends the time to first token.

    `number` is that of `Batch.submit`, `at` is on the batch's clock. `tokens` is how many arrived; an estimate
    is corrected by the last arrival, in either direction. `output` holds their ids, or their text where ids
    are not reported. `rounds` are the target's passes that this covers (the prefill is none of them, a plain step is
    a round with nothing proposed), None where they are unknown. An engine may report all of them at the end.
    """

    number: int
    at: float
    tokens: int
    output: tuple[int, ...] | str
    rounds: tuple[RoundCounts, ...] | None = None
    finish_reason: FinishReason | None = None


class Batch(Protocol):
    """Requests in flight, all of one side."""

    @property
    def in_passes(self) -> bool:
        """Whether what one `receive` returns is what one pass of the target committed."""

    def now(self) -> float:
        """Seconds on this batch's clock."""

    def submit(self, number: int, request: Request) -> None:
        """Begin another request; `number` identifies its arrivals.

        Raises:
            PromptError: the prompt is empty, or too long for the model.
            RunError: the engine failed.
        """

    def receive(self) -> Sequence[Arrival]:
        """What arrived next, for any request in flight. It waits, but not for long: then nothing has arrived.

        Raises:
            RunError: the engine could not continue.
        """

    def cache_bytes(self) -> int | None:
        """Bytes of the target's KV cache that requests use now; None if unknown."""

    def close(self) -> None:
        """Drop what is still in flight. Call it once."""


@runtime_checkable
class BatchEngine(Engine, Protocol):
    """An engine that can serve several requests at once."""

    def batch(self, strategy: Strategy) -> Batch:
        """A batch with nothing in flight, for requests that are decoded this way; one at a time.

        Raises:
            PairError, SettingsError: the pair cannot be decoded in this way.
        """
