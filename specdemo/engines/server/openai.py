"""OpenAI's protocol, which nearly every server speaks, and what all protocols have in common.

A chunk that arrives at once is a round, though it need not be a target pass. The number of tokens is reported at the
end, if at all, and divided among the chunks by text length. Where chunks have token ids, as vLLM's can, each is a
target pass, which the counts at the end confirm or refute.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any

from specdemo.capabilities import SERVERS
from specdemo.engines.base import Prefilling, counted_drafts
from specdemo.engines.server import vllm
from specdemo.engines.server.client import Client, Event
from specdemo.records import MOST, TICK, DraftCounts, FinishReason, Model, Request, Round, Token, TraceSource

_LETTERS_PER_TOKEN = 4  # of English, for texts whose length in tokens is only estimated
_PREFIXES = ("/v1", "/v3", "")  # where servers have the protocol; OpenVINO Model Server: v3
_MOST_COUNTED = 2**31  # tokens; more is nonsense


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

    def spelled(self, step: Round) -> Round:
        """Give each token its own text, unless they do not make up the round's, as parts of a character do not."""
        return step

    def end(self) -> Iterator[Round]:
        """Yield the remaining rounds; the finish reason is set then."""
        self.finish_reason = self.finish_reason or "stop"
        yield from ()

    def finalized(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        """Return the rounds, prefill first, with what the server reported only at the end."""
        return rounds


HttpRequest = tuple[str, dict[str, Any], Callable[[float], Reader]]  # a path, a body and the reader of the answer


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
        self._reader = partial(OpenAIReader, text_of=cache(self._text_of))

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
        version = (self._client.find("/version", refusals=()) or {}).get("version")
        return f"vLLM {version}" if version else SERVERS["openai"].removeprefix("an ")

    def ask(self, request: Request) -> HttpRequest:
        body: dict[str, Any] = {"model": self._name, **request.openai(neutral=False)}
        body |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        if not request.apply_chat_template:
            return f"{self._prefix}/completions", {**body, "prompt": request.prompt}, self._reader
        if not request.enable_thinking:
            body["chat_template_kwargs"] = {"enable_thinking": False}
        return f"{self._prefix}/chat/completions", {**body, "messages": request.messages}, self._reader

    def _text_of(self, token: int) -> str:
        return str(self._client.fetch("/detokenize", {"model": self._name, "tokens": [token]}).get("prompt"))

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

    trace_source: TraceSource = "bursts"

    def __init__(self, began: float, text_of: Callable[[int], str]) -> None:
        super().__init__(began)
        self._at, self._text_of = began, text_of
        self._report: vllm.Report | None = None
        self._thinks = False

    def on_event(self, event: Event) -> Iterator[Prefilling | Round]:
        usage = event.data.get("usage")
        if isinstance(usage, dict):
            self.total = _count(usage.get("completion_tokens")) or self.total
            self.prompt_tokens = _count(usage.get("prompt_tokens")) or self.prompt_tokens
        if (report := vllm.Report.of(event.data)) is not None:
            self._report, self.draft_counts = report, report.counts
        choice = next(iter(event.data.get("choices") or ()), None) or {}
        if choice.get("index"):
            raise ValueError("several answers at once")
        if reason := choice.get("finish_reason"):
            self.finish_reason = "length" if reason == "length" else "stop"
        text, ids = self._text(choice), choice.get("token_ids") or ()
        if text or ids:
            first = self._at == self.began
            if first or not ids:
                self.trace_source = "reported" if ids else "bursts"
            texts = zip(ids or [None], _split(text, len(ids) or 1), strict=True)
            committed = tuple(Token(id=token, text=part) for token, part in texts)
            yield Round(committed=committed, seconds=max(event.at - self._at, TICK), proposed=() if first else None)
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
        return (text + said).encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # without lone surrogates

    def spelled(self, step: Round) -> Round:
        text, committed = "".join(token.text for token in step.committed), list[Token]()
        for token in step.ids if len(step.ids) > 1 else ():
            own = self._text_of(token)
            committed.append(Token(id=token, text=own if text.startswith(own) else ""))  # a special token has none
            text = text.removeprefix(own)
        return step.model_copy(update={"committed": tuple(committed)}) if committed and not text else step

    def finalized(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        tokens = sum(len(step.committed) for step in rounds)
        if self.trace_source == "bursts" or tokens != (self.total or tokens):
            self.trace_source = "bursts"
            return self._divided(rounds)
        first, *rest = rounds
        accepted = [len(step.committed) - 1 for step in rest]
        unseen = self.draft_counts.accepted - sum(accepted) if self.draft_counts and accepted else 0
        accepted[-1:] = [count + unseen for count in accepted[-1:]]  # behind the end of the text
        proposed = self._report.proposed(accepted) if self._report else [None] * len(rest)
        if len(first.committed) > 1 or unseen < 0 or proposed is None:  # something joined rounds
            self.trace_source = "bursts"
            return rounds
        drafts = map(counted_drafts, (step.committed for step in rest), proposed, accepted)
        return (first, *(step.model_copy(update={"proposed": each}) for step, each in zip(rest, drafts, strict=True)))

    def _divided(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        """Divide the reported number of tokens among the rounds, at least one each, by their texts' lengths."""
        texts = ["".join(token.text for token in step.committed) for step in rounds]
        spare = min(max((self.total or 0) - len(rounds), 0), MOST)
        ends = [0, *accumulate(map(len, texts))]
        found = []
        for step, text, (start, end) in zip(rounds, texts, pairwise(ends), strict=True):
            more = spare * end // (ends[-1] or 1) - spare * start // (ends[-1] or 1)
            committed = tuple(Token(id=None, text=part) for part in _split(text, 1 + more))
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
