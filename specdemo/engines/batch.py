"""The seam for load: several requests of one side in flight at once.

A batch takes requests and tells what arrived for them. In-process engines advance all requests in one pass, so what
one `receive` returns is what one pass committed; of a server only arrivals are seen, in whatever order they come.
Times are the batch's own: a clock in this process, one that is read where a server's chunks arrive, or, for tests,
one that is only counted.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from specdemo.engines.base import Engine
from specdemo.records import FinishReason, Request
from specdemo.strategies import Strategy


class RoundCounts(NamedTuple):
    """A round of one request, as far as it is known: how many tokens were proposed, and how many accepted."""

    proposed: int | None
    accepted: int


class Arrival(NamedTuple):
    """What arrived for one request at one moment; its first arrival ends the time to first token.

    `number` is that of `Batch.submit`, `at` is on the batch's clock. `tokens` is how many arrived; where that is not
    known before, the last arrival corrects it, in either direction. `output` holds their ids, or their text where ids
    are not told. `rounds` are the target's passes that this tells of (the prefill is none of them, a plain step is a
    round with nothing proposed), or None where nothing is known of them. An engine may tell all of them at the end.
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
        """Begin another request, known by this number from now on.

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
        """Bytes of the target's KV cache that requests use now; None if that is not known."""

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
