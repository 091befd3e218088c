"""The interface of all protocols: a dialect writes requests, and its reader turns events into rounds."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from specdemo.engines.base import Prefill
from specdemo.engines.server.client import Client, Event
from specdemo.engines.server.failures import ExcessError
from specdemo.records import MAX_TOKENS, DraftCounts, FinishReason, Model, Request, Round, TraceSource
from specdemo.text import printable

# Limits of what servers report; more is nonsense, and would fill the memory.
MAX_ANSWER_TOKENS = 64 * MAX_TOKENS  # tokens or proposals of an answer, which take 60 MB as records
MAX_PROMPT_TOKENS = 2**31  # tokens
_MAX_TEXT = 512 * MAX_TOKENS  # characters of an answer; the longest tokens are rows of spaces or dashes
AnswerTokens = Annotated[int, Field(ge=0, le=MAX_ANSWER_TOKENS)]
PromptTokens = Annotated[int, Field(ge=0, le=MAX_PROMPT_TOKENS)]
_MAX_LABEL = 100  # characters of a version or a precision
_MAX_NAME = 4096  # characters of a model's name, which may be a path


class Reader(ABC):
    """Reads the answer to a request that was sent at this time by `perf_counter`."""

    trace_source: TraceSource = "reported"

    def __init__(self, sent_at: float) -> None:
        self.sent_at = sent_at
        self.finish_reason: FinishReason | None = None
        self.prompt_tokens: int | None = None
        self.total: int | None = None  # tokens of the answer, once they are reported
        self.draft_counts: DraftCounts | None = None
        self.hidden_tokens = 0  # in the total, but never sent
        self._read = self._characters = 0  # tokens and characters so far

    @abstractmethod
    def on_event(self, event: Event) -> Iterator[Prefill | Round]: ...

    def read(self, event: Event) -> Iterator[Prefill | Round]:
        """Yield what `on_event` does. ExcessError: more tokens or text than any run has."""
        for step in self.on_event(event):
            if isinstance(step, Round):
                self._read += len(step.committed)
                self._characters += sum(len(token.text) for token in step.committed)
                if self._read > MAX_TOKENS or self._characters > _MAX_TEXT:
                    raise ExcessError("tokens" if self._read > MAX_TOKENS else "text")
            yield step

    def with_token_texts(self, step: Round) -> Round:
        """Detokenize each id separately; leave the round unchanged if the texts do not join to its own."""
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
    @abstractmethod
    def describe(self) -> Model: ...

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def http_request(self, request: Request) -> HttpRequest: ...


def label(value: object) -> str:
    """Return what a server calls its version or the like, for display; empty if it is no text."""
    return printable(value[:_MAX_LABEL]) if isinstance(value, str) else ""


def choose(client: Client, models: Sequence[dict[str, Any]], name: str | None) -> dict[str, Any]:
    """Return the model with this name, or the only one. Otherwise raise a ServerError that lists them."""
    option = "--plain-model" if client.side == "plain" else "--model"
    for model in models:
        if not isinstance(model["id"], str) or not 0 < len(model["id"]) <= _MAX_NAME:
            raise client.error(f"lists a model without a usable name ({client.redact(model['id'])}); check it.")
    names = client.redact(", ".join(model["id"] for model in models))
    if name is None:
        if len(models) == 1:
            return models[0]
        reason = f"has several models ({names})" if models else "does not list its models"
        raise client.error(f"{reason}; name one with {option}.")
    for model in models:
        if name == model["id"] or name in (model.get("aliases") or ()):
            return model
    if models:
        raise client.error(f"has no model {name!r}, but {names}; name one of them with {option}.")
    return {"id": name}
