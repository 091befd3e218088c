"""What a kind of server is asked, and how its answer is read. One class for each kind; see `kinds`."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from specdemo.engines.base import Prefilling
from specdemo.engines.server.client import Event
from specdemo.records import FinishReason, Model, Request, Round, TraceSource


class Reader(Protocol):
    """Reads one answer."""

    finish_reason: FinishReason | None
    trace_source: TraceSource

    def hear(self, event: Event) -> Iterator[Prefilling | Round]:
        """What is known now that was not before."""

    def end(self) -> Iterator[Round]:
        """What is left once the answer has ended; from then on there is a finish reason."""

    def settle(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        """The rounds, prefill first, with what the server told only at the end."""


class Asked(NamedTuple):
    """What is sent for a request, and what reads the answer if it was sent at that time, by `perf_counter`."""

    path: str
    body: dict[str, Any]
    reader: Callable[[float], Reader]


class Dialect(Protocol):
    """How to talk to one server."""

    def describe(self) -> Model:
        """The model that is served.

        Raises:
            ServerError: the server has no such model.
        """

    def version(self) -> str:
        """The server's name and version, as far as it tells them."""

    def ask(self, request: Request, *, alone: bool = True) -> Asked:
        """What to send for a request. May ask the server to apply its chat template first.

        Not `alone`: there are others at the same time, so the server's counters say nothing about it.
        """

    def count_tokens(self, text: str) -> int:
        """Number of the model's tokens in a text."""
