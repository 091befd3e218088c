"""What all protocols have in common: a dialect writes the request, and its reader turns events into rounds."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specdemo.engines.base import Prefilling
from specdemo.engines.server.client import Client, Event
from specdemo.records import DraftCounts, FinishReason, Model, Request, Round, TraceSource


class Reader(ABC):
    """Reads one answer that was asked for at time `began`, by `perf_counter`."""

    trace_source: TraceSource = "reported"

    def __init__(self, began: float) -> None:
        self.began = began
        self.finish_reason: FinishReason | None = None
        self.prompt_tokens: int | None = None
        self.total: int | None = None  # tokens of the answer, once they are reported
        self.draft_counts: DraftCounts | None = None

    @abstractmethod
    def on_event(self, event: Event) -> Iterator[Prefilling | Round]: ...

    def with_token_texts(self, step: Round) -> Round:
        """Detokenize each id separately; leave the round unchanged if the pieces do not add up to its text."""
        return step

    def end(self) -> Iterator[Round]:
        """Yield the remaining rounds; the finish reason is set then."""
        self.finish_reason = self.finish_reason or "stop"
        yield from ()

    def finalized(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        """Return the rounds, prefill first, with what the server reported only at the end."""
        return rounds


HttpRequest = tuple[str, dict[str, Any], Callable[[float], Reader]]  # a path, a body and the reader of the answer


class Dialect(ABC):
    """The protocol of one server and model."""

    @abstractmethod
    def describe(self) -> Model: ...

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def ask(self, request: Request) -> HttpRequest: ...

    @abstractmethod
    def count_tokens(self, text: str) -> int: ...

    def counters(self) -> str:
        """Return the server's own counters of speculation, in Prometheus' format; empty if unknown."""
        return ""


def choose(client: Client, listed: Sequence[dict[str, Any]], name: str | None) -> dict[str, Any]:
    """Return the listed model of a name, or the only one; otherwise, the error lists them."""
    option, names = "--plain-model" if client.side == "plain" else "--model", [str(one["id"]) for one in listed]
    known = client.redacted(", ".join(names))
    if name is None:
        if len(listed) == 1:
            return listed[0]
        what = f"has several models ({known})" if listed else "does not list its models"
        raise client.error(f"{what}; name one with {option}.")
    fits = [one for one in listed if name == one["id"] or name in (one.get("aliases") or ())]
    if listed and not fits:
        raise client.error(f"has no model {name!r}, but {known}; name one of them with {option}.")
    return fits[0] if fits else {"id": name}
