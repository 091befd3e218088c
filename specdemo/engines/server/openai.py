"""OpenAI's protocol, which nearly every server speaks, and what all protocols have in common.

A chunk that arrives at once is a round, though it need not be a target pass. The number of tokens is reported at the
end, if at all, and divided among the chunks by text length.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from specdemo.engines.base import Prefilling
from specdemo.engines.server.client import Client, Event
from specdemo.records import MOST, TICK, FinishReason, Model, Request, Round, Token, TraceSource
from specdemo.strategies import SERVERS

_LETTERS_PER_TOKEN = 4  # of English, for texts whose length in tokens is only estimated
_PREFIXES = ("/v1", "/v3", "")  # where servers have the protocol; OpenVINO Model Server: v3
_MOST_COUNTED = 2**31  # tokens; more is nonsense
_SURROGATES = "\ud800", "\udbff"  # the first half of a character beyond 16 bits, which some servers split


class Reader(ABC):
    """Reads one answer that was asked for at time `began`, by `perf_counter`."""

    trace_source: TraceSource = "reported"

    def __init__(self, began: float) -> None:
        self.began = began
        self.finish_reason: FinishReason | None = None
        self.prompt_tokens: int | None = None

    @abstractmethod
    def on_event(self, event: Event) -> Iterator[Prefilling | Round]: ...

    def end(self) -> Iterator[Round]:
        """Yield the remaining rounds; the finish reason is set then."""
        self.finish_reason = self.finish_reason or "stop"
        yield from ()

    def finalized(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        """Return the rounds, prefill first, with what the server reported only at the end."""
        return rounds


class HttpRequest(NamedTuple):
    path: str
    body: dict[str, Any]
    reader: Callable[[float], Reader]


class OpenAI:
    def __init__(self, client: Client, model: str | None) -> None:
        self._client = client
        prefixes = [*dict.fromkeys((client.version, *_PREFIXES) if client.version else _PREFIXES)]
        for prefix in prefixes:
            found = client.find(f"{prefix}/models", **{} if prefix == prefixes[0] else {"refusals": ()}) or {}
            if isinstance(found.get("data"), list):
                break
        else:
            prefix, found = prefixes[0], {}
            if model is None:
                client.fetch(f"{prefix}/models")  # raises what it is instead
        self._prefix = prefix
        with client.understanding():
            self._model = choose(client, found.get("data") or [], model)
            self._name = str(self._model["id"])

    def describe(self) -> Model:
        with self._client.understanding():
            return Model(
                name=self._name,
                architecture="server",
                parameters=0,
                weights="unknown",
                context_length=self._model.get("max_model_len"),
                chat_template=True,
                server="openai",
            )

    def version(self) -> str:
        return SERVERS["openai"].removeprefix("an ")

    def ask(self, request: Request) -> HttpRequest:
        body: dict[str, Any] = {
            "model": self._name,
            **request.openai(neutral=False),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not request.apply_chat_template:
            return HttpRequest(f"{self._prefix}/completions", {**body, "prompt": request.prompt}, OpenAIReader)
        if not request.enable_thinking:
            body["chat_template_kwargs"] = {"enable_thinking": False}
        return HttpRequest(f"{self._prefix}/chat/completions", {**body, "messages": request.messages}, OpenAIReader)

    def count_tokens(self, text: str) -> int:
        """Return a rough number of tokens: not every server can be asked."""
        return max(len(text) // _LETTERS_PER_TOKEN, 1)


def choose(client: Client, listed: Sequence[dict[str, Any]], name: str | None) -> dict[str, Any]:
    """Return the listed model of a name, or the only one; otherwise, the error lists them."""
    option, names = "--plain-model" if client.side == "plain" else "--model", [str(one["id"]) for one in listed]
    known = client.words(", ".join(names))
    if name is None:
        if len(listed) == 1:
            return listed[0]
        what = f"has several models ({known})" if listed else "does not list its models"
        raise client.error(f"{what}; name one with {option}.")
    fits = [one for one in listed if name == one["id"] or name in (one.get("aliases") or ())]
    if listed and not fits:
        raise client.error(f"has no model {name!r}, but {known}; name one of them with {option}.")
    return fits[0] if fits else {"id": name}


class OpenAIReader(Reader):
    """Reads one answer. Thinking that arrives apart is put between the marks that models write around it."""

    trace_source = "bursts"

    def __init__(self, began: float) -> None:
        super().__init__(began)
        self._at = began
        self._total: int | None = None
        self._half = ""  # of a character
        self._thinks = False

    def on_event(self, event: Event) -> Iterator[Prefilling | Round]:
        usage = event.data.get("usage")
        if isinstance(usage, dict):
            self._total = _count(usage.get("completion_tokens")) or self._total
            self.prompt_tokens = _count(usage.get("prompt_tokens")) or self.prompt_tokens
        choice = next(iter(event.data.get("choices") or ()), None) or {}
        if reason := choice.get("finish_reason"):
            self.finish_reason = "length" if reason == "length" else "stop"
        text = self._whole(self._text(choice))
        if text:
            proposed = () if self._at == self.began else None  # nothing is proposed before the first token
            committed = (Token(id=None, text=text),)
            yield Round(committed=committed, seconds=max(event.at - self._at, TICK), proposed=proposed)
            self._at = event.at

    def _text(self, choice: dict[str, Any]) -> str:
        delta = choice.get("delta") or choice.get("message") or {}
        content = delta.get("content")
        parts = content if isinstance(content, list) else [content]
        thoughts = [part["thinking"] for part in parts if isinstance(part, dict) and part.get("thinking")]
        thought = _joined(delta.get("reasoning_content")) or _joined(delta.get("reasoning")) or _joined(thoughts)
        said = _joined(choice.get("text")) or _joined(parts)
        text = thought if self._thinks or not thought else f"<think>{thought}"
        self._thinks = self._thinks or bool(thought)
        if self._thinks and said:
            self._thinks, text = False, f"{text}</think>"
        return text + said

    def _whole(self, text: str) -> str:
        """Return a text in whole characters, keeping half of one for the next event."""
        text, self._half = self._half + text, ""
        if text and _SURROGATES[0] <= text[-1] <= _SURROGATES[1]:
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def finalized(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        if self._total is None:
            return rounds
        spare = min(max(self._total - len(rounds), 0), MOST)
        ends = [0, *accumulate(len(step.committed[0].text) for step in rounds)]
        found = []
        for step, (start, end) in zip(rounds, pairwise(ends), strict=True):
            more = spare * end // ends[-1] - spare * start // ends[-1]
            texts = _split(step.committed[0].text, 1 + more)
            committed = tuple(Token(id=None, text=text) for text in texts)
            found.append(step.model_copy(update={"committed": committed}))
        return tuple(found)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 < value <= _MOST_COUNTED else None


def _joined(content: object) -> str:
    if isinstance(content, dict):
        content = content.get("text") or content.get("content")
    return (
        "".join(map(_joined, content)) if isinstance(content, list) else content if isinstance(content, str) else ""
    )


def _split(text: str, count: int) -> list[str]:
    ends = [len(text) * index // count for index in range(count + 1)]
    return [text[start:end] for start, end in pairwise(ends)]
