"""OpenAI's protocol, which nearly every server speaks.

A chunk that arrives at once is a round, though it need not be a target pass. The number of tokens is reported at the
end, if at all, and divided among the chunks by text length. Where chunks have token ids, as vLLM's can, each is a
target pass, which the counts at the end confirm or refute.
"""

from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from itertools import accumulate, pairwise
from typing import Any

from specdemo.capabilities import SERVERS
from specdemo.engines import formats
from specdemo.engines.base import Prefilling, counted_drafts
from specdemo.engines.server import vllm
from specdemo.engines.server.client import Client, Event
from specdemo.engines.server.protocol import Dialect, HttpRequest, Reader, choose
from specdemo.records import MAX_TOKENS, TICK, Model, Request, Round, Token, TraceSource

_LETTERS_PER_TOKEN = 4  # of English, for texts whose length in tokens is only estimated
_PREFIXES = ("/v1", "/v3", "")  # where servers have the protocol; OpenVINO Model Server: v3
_MOST_COUNTED = 2**31  # tokens; more is nonsense
_METRICS_SECONDS = 2.0  # to wait for `/metrics`, without which only the counts are missing


class OpenAI(Dialect):
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
        return f"vLLM {self._vllm}" if self._vllm else SERVERS["openai"].removeprefix("an ")

    @cached_property
    def _vllm(self) -> str | None:
        """The version of vLLM, the only server that has one at this path."""
        return (self._client.find("/version", refusals=()) or {}).get("version")

    def counters(self) -> str:
        return self._client.text("/metrics", _METRICS_SECONDS) if self._vllm else ""

    def ask(self, request: Request) -> HttpRequest:
        body: dict[str, Any] = {"model": self._name, **formats.openai(request, neutral=False)}
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

    def with_token_texts(self, step: Round) -> Round:
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
        spare = min(max((self.total or 0) - len(rounds), 0), MAX_TOKENS)
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
    if isinstance(content, list):
        return "".join(map(_joined, content))
    return content if isinstance(content, str) else ""


def _split(text: str, count: int) -> list[str]:
    ends = [len(text) * index // count for index in range(count + 1)]
    return [text[start:end] for start, end in pairwise(ends)]
