"""OpenAI's protocol, which nearly every server speaks.

Each chunk is a round, although it need not be one target pass. The number of tokens is reported at the end or never,
and divided among the chunks by text length, without those that were never sent, such as hidden thoughts. Chunks with
token ids, as vLLM can send, are target passes if the counts at the end confirm it, or if the server decodes plainly
and each chunk holds one token.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any

from specdemo.capabilities import SERVERS
from specdemo.engines import formats
from specdemo.engines.base import Prefill
from specdemo.engines.server import reports
from specdemo.engines.server.client import REFUSALS, Client, Event
from specdemo.engines.server.failures import ExcessError
from specdemo.engines.server.protocol import (
    MAX_ANSWER_TOKENS,
    MAX_PROMPT_TOKENS,
    Dialect,
    HttpRequest,
    Reader,
    choose,
    label,
)
from specdemo.records import MAX_TOKENS, TICK, Model, Request, Round, Token, TraceSource
from specdemo.strategies import Plain

_PREFIXES = ("/v1", "/v3", "")  # where servers have the protocol; OpenVINO Model Server: v3
_TOKEN_TEXT = 1000  # characters of a token; the longest are rows of spaces or dashes
_TEXTS_SECONDS = 10.0  # to ask for the texts of tokens that came together, which are only for display


class OpenAI(Dialect):
    def __init__(self, client: Client, model: str | None) -> None:
        self._client = client
        prefixes = [*dict.fromkeys((client.version, *_PREFIXES) if client.version else _PREFIXES)]
        for prefix in prefixes:
            models = client.find(f"{prefix}/models", refusals=REFUSALS if prefix == prefixes[0] else ()) or {}
            if isinstance(models.get("data"), list):
                break
        else:
            prefix, models = prefixes[0], {}
            if model is None:
                client.fetch(f"{prefix}/models")  # raises an error that says what the server is
        self._prefix = prefix
        with client.checking_format():
            self._model = choose(client, models.get("data") or [], model)
            self._name = self._model["id"]
        self._cached_text_of = cache(self._text_of)

    def describe(self) -> Model:
        with self._client.checking_format():
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
        vllm = label((self._client.find("/version", refusals=()) or {}).get("version"))  # others have none there
        return f"vLLM {vllm}" if vllm else SERVERS["openai"].removeprefix("an ")

    def http_request(self, request: Request) -> HttpRequest:
        body: dict[str, Any] = {"model": self._name, **formats.openai(request, include_defaults=False)}
        body |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        body["return_spec_tokens_details"] = True
        reader = partial(OpenAIReader, text_of=self._cached_text_of, plain=isinstance(request.strategy, Plain))
        if not request.apply_chat_template:
            return f"{self._prefix}/completions", {**body, "prompt": request.prompt}, reader
        if not request.enable_thinking:
            body["chat_template_kwargs"] = {"enable_thinking": False}
        return f"{self._prefix}/chat/completions", {**body, "messages": request.messages}, reader

    def _text_of(self, token: int) -> str:
        text = str(self._client.fetch("/detokenize", {"model": self._name, "tokens": [token]}).get("prompt"))
        return text if len(text) <= _TOKEN_TEXT else ""


class OpenAIReader(Reader):
    """Reads one answer. Reasoning in a separate field is put between `<think>` tags, as models write it."""

    trace_source: TraceSource = "bursts"

    def __init__(self, sent_at: float, text_of: Callable[[int], str], *, plain: bool = False) -> None:
        super().__init__(sent_at)
        self._at, self._text_of, self._plain = sent_at, text_of, plain
        self._report: reports.Report | None = None
        self._late = ""  # text whose ids came before
        self._texts_until = 0.0  # by `perf_counter`
        self._thinks = self._thought = False
        self._reasoning = 0  # tokens of thoughts in the total

    def on_event(self, event: Event) -> Iterator[Prefill | Round]:
        usage = event.data.get("usage")
        if isinstance(usage, dict):
            details = usage.get("completion_tokens_details")
            details = usage | (details if isinstance(details, dict) else {})  # SGLang has them at the top
            self.total = _count(usage.get("completion_tokens")) or self.total
            self.prompt_tokens = _count(usage.get("prompt_tokens"), MAX_PROMPT_TOKENS) or self.prompt_tokens
            self._reasoning = _count(details.get("reasoning_tokens")) or 0
        self._report = reports.Report.of(event.data) or self._report
        choice = next(iter(event.data.get("choices") or ()), None) or {}
        if choice.get("index"):
            raise ValueError("several answers at once")
        if reason := choice.get("finish_reason"):
            self.finish_reason = "length" if reason == "length" else "stop"
        text, ids = self._text(choice), choice.get("token_ids") or ()
        if not (text or ids):
            return
        if len(ids) > MAX_TOKENS:
            raise ExcessError("tokens")
        text, self._late, first = self._late + text, "", self._at == self.sent_at
        if not (ids or first) and choice.get("token_ids") == []:  # vLLM may send a text after its ids
            self._late = text
            return
        if first or not ids:
            self.trace_source = "reported" if ids else "bursts"
        texts = zip(ids or [None], _split(text, len(ids) or 1), strict=True)
        committed = tuple(Token(id=token, text=part) for token, part in texts)
        yield Round(committed=committed, seconds=max(event.at - self._at, TICK), proposed=() if first else None)
        self._at = event.at

    def end(self) -> Iterator[Round]:
        yield from super().end()
        tokens = self.total or self._read
        self.draft_counts = self._report.counts(tokens) if self._report else None
        hidden = 0 if self._thought else self._reasoning
        self.hidden_tokens = min(hidden, max(tokens - 1, 0))

    def _text(self, choice: dict[str, Any]) -> str:
        delta = choice.get("delta") or choice.get("message") or {}
        content = delta.get("content")
        parts = content if isinstance(content, list) else [content]
        thoughts = [part["thinking"] for part in parts if isinstance(part, dict) and part.get("thinking")]
        thought = _joined(delta.get("reasoning_content")) or _joined(delta.get("reasoning")) or _joined(thoughts)
        answer = _joined(choice.get("text")) or _joined(parts)
        text = thought if self._thinks or not thought else f"<think>{thought}"
        self._thinks = self._thinks or bool(thought)
        self._thought = self._thought or self._thinks or "think>" in answer
        if self._thinks and answer:
            self._thinks, text = False, f"{text}</think>"
        return text + answer

    def with_token_texts(self, step: Round) -> Round:
        text, committed = "".join(token.text for token in step.committed), list[Token]()
        self._texts_until = self._texts_until or perf_counter() + _TEXTS_SECONDS
        for token in step.ids if len(step.ids) > 1 and perf_counter() < self._texts_until else ():
            part = self._text_of(token)
            committed.append(Token(id=token, text=part if text.startswith(part) else ""))  # empty for special tokens
            text = text.removeprefix(part)
        return step.model_copy(update={"committed": tuple(committed)}) if committed and not text else step

    def finalized(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        if self._late:
            *others, token = rounds[-1].committed
            token = token.model_copy(update={"text": token.text + self._late})
            rounds = (*rounds[:-1], rounds[-1].model_copy(update={"committed": (*others, token)}))
        tokens = sum(len(step.committed) for step in rounds)
        if self.trace_source == "bursts" or tokens + self.hidden_tokens != (self.total or tokens):
            self.trace_source = "bursts"
            return self._divided(rounds)
        prefill, *chunks = rounds
        if len(prefill.committed) > 1 or not self._are_passes([len(step.committed) - 1 for step in chunks]):
            self.trace_source = "bursts"
        return rounds

    def _are_passes(self, sent: list[int]) -> bool:
        """Whether the counts fit chunks of which each is a pass, with so many accepted proposals.

        The last pass can accept more than was sent, after the end of the text. A server that sends every token in a
        chunk of its own shows no pass at all.
        """
        counts = self.draft_counts
        if counts is None:
            return self._plain and not any(sent)
        by_position = tuple(filter(None, counts.by_position))
        if unseen := counts.accepted - sum(sent):
            longest = len(by_position) or -(-counts.proposed // max(counts.rounds, 1))
            if unseen < 0 or not any(sent) or sent[-1] + unseen > longest:
                return False
            sent = [*sent[:-1], sent[-1] + unseen]
        seen = tuple(sum(count > index for count in sent) for index in range(max(sent, default=0)))
        return seen == by_position or not by_position

    def _divided(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        """Divide the reported number of tokens among the rounds, at least one each, by their texts' lengths."""
        texts = ["".join(token.text for token in step.committed) for step in rounds]
        shown = (self.total or 0) - self.hidden_tokens
        extra = min(max(shown - len(rounds), 0), MAX_TOKENS)  # tokens beyond one per round
        ends = [0, *accumulate(map(len, texts))]
        divided = []
        for step, text, (start, end) in zip(rounds, texts, pairwise(ends), strict=True):
            count = 1 + extra * end // (ends[-1] or 1) - extra * start // (ends[-1] or 1)
            committed = tuple(Token(id=None, text=part) for part in _split(text, count))
            divided.append(step.model_copy(update={"committed": committed}))
        return tuple(divided)


def _count(value: object, most: int = MAX_ANSWER_TOKENS) -> int | None:
    return value if isinstance(value, int) and 0 < value <= most else None


def _joined(content: object) -> str:
    if isinstance(content, dict):
        content = content.get("text") or content.get("content")
    if isinstance(content, list):
        return "".join(map(_joined, content))
    return content if isinstance(content, str) else ""


def _split(text: str, count: int) -> list[str]:
    ends = [len(text) * index // count for index in range(count + 1)]
    return [text[start:end] for start, end in pairwise(ends)]
