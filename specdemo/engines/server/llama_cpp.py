"""llama.cpp's server in its own protocol, which reports token ids and, with each event, the running draft counts.

Events with the same `timings.predicted_ms` belong to one target pass; differences of the cumulative `draft_n` and
`draft_n_accepted` are a round's proposed and accepted tokens. Tokens that end within a character send no event; only
sums are known of passes hidden in this way. Other servers imitate this one without its counts, so `LlamaCpp.detect`
decodes a token as a test. A router finds its models by the name in every request.
"""

import re
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any, NamedTuple, Self
from urllib.parse import quote

from pydantic import Field

from specdemo.engines import formats
from specdemo.engines.base import Prefill, counted_drafts
from specdemo.engines.server.client import Client, Event, SilentError
from specdemo.engines.server.protocol import AnswerTokens, Dialect, HttpRequest, PromptTokens, Reader, choose, label
from specdemo.errors import ServerError
from specdemo.records import MAX_TOKENS, TICK, Count, Model, Record, Request, Round, Token


class LlamaCpp(Dialect):
    def __init__(self, client: Client, model: str | None) -> None:
        self._client = client
        self._props = client.fetch("/props")
        models = client.fetch("/v1/models")
        with client.checking_format():
            self._model = choose(client, models.get("data") or [{"id": "llama.cpp"}], model)
            self._name = self._model["id"]
            self._routed = self._props.get("role") == "router"
            if self._routed:
                self._props = {**self._props, **client.fetch(f"/props?model={quote(self._name, safe='')}")}
            self._context: int | None = (self._props.get("default_generation_settings") or {}).get("n_ctx") or None

    @classmethod
    def detect(cls, client: Client, model: str | None) -> Self | None:
        """Return the dialect if the server proves to be llama.cpp's; otherwise None, and its errors do not matter."""
        props = client.find("/props", refusals=(503,) if client.key else (401, 403, 503)) or {}
        if not isinstance(props.get("default_generation_settings"), dict):
            return None
        try:
            dialect = cls(client, model)
            body = {**dialect._body("a", 1), "ignore_eos": True}
            with closing(client.stream("/completion", body)) as events, client.checking_format():
                reader = LlamaCppReader(next(events).at)
                steps = [step for event in events for step in reader.on_event(event)] + [*reader.end()]
        except ServerError as error:
            if isinstance(error, SilentError) or props.get("role") == "router":  # it is busy, or certainly llama.cpp
                raise
            return None
        return dialect if any(isinstance(step, Round) for step in steps) else None

    def describe(self) -> Model:
        with self._client.checking_format():
            meta = self._model.get("meta") or {}
            path = self._name.endswith(".gguf")
            return Model(
                name=re.split(r"[/\\]", self._name)[-1] if path else self._name,
                architecture="server",
                parameters=meta.get("n_params", 0),
                weights=label(meta.get("ftype")) or "unknown",
                context_length=self._context,
                vocabulary=meta.get("n_vocab"),
                chat_template=self._chats,
                server="llama.cpp",
            )

    def version(self) -> str:
        build = label(self._props.get("build_info"))
        return "llama.cpp" if "unknown" in build else f"llama.cpp {build}".strip()

    def http_request(self, request: Request) -> HttpRequest:
        """Return a completion request; the server applies its own chat template first."""
        prompt = request.prompt
        if request.apply_chat_template and self._chats:
            thinking = {"enable_thinking": request.enable_thinking}
            chat = {"model": self._name, "messages": request.messages, "chat_template_kwargs": thinking}
            prompt = str(self._client.fetch("/apply-template", chat).get("prompt"))
        body = self._body(prompt, request.max_new_tokens) | formats.llama_cpp(request, self._context)
        return "/completion", body, LlamaCppReader

    @property
    def _chats(self) -> bool:
        return self._routed or bool(self._props.get("chat_template"))

    def _body(self, prompt: str, tokens: int) -> dict[str, Any]:
        return {
            "model": self._name,
            "prompt": prompt,
            "n_predict": tokens,
            "cache_prompt": False,  # otherwise prefill would be skipped
            "stream": True,
            "return_tokens": True,
            "return_progress": True,
            "timings_per_token": True,
        }


class _Timings(Record):
    """Cumulative; `draft_n` and `draft_n_accepted` are absent without a draft."""

    predicted_ms: Annotated[float, Field(ge=0, le=1e9)]
    draft_n: AnswerTokens = 0
    draft_n_accepted: AnswerTokens = 0


class _Progress(Record):
    total: PromptTokens
    processed: PromptTokens


class _Chunk(Record):
    """An event of `/completion`, within the limits of any real answer."""

    content: str | None = None
    tokens: tuple[Count, ...] | None = Field(None, max_length=MAX_TOKENS)
    tokens_predicted: AnswerTokens | None = None
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    stop: bool = False
    stop_type: str | None = None


class _Counts(NamedTuple):
    at: float
    tokens: int = 0
    milliseconds: float = -1.0
    drafted: int = 0
    accepted: int = 0


class LlamaCppReader(Reader):
    def __init__(self, sent_at: float) -> None:
        super().__init__(sent_at)
        self._tokens: deque[Token] = deque()  # reported, but not in a round yet
        self._passes = -1  # in rounds so far, without the prefill
        self._seen = 0  # since then
        self._closed = self._last = _Counts(sent_at)  # at the end of the last round, and of the last pass

    def on_event(self, event: Event) -> Iterator[Prefill | Round]:
        """Yield completed rounds; a round is complete once the next one begins."""
        chunk = _Chunk.model_validate(event.data)
        if (progress := chunk.prompt_progress) is not None:
            self.prompt_tokens = progress.total
            yield Prefill(progress.processed, progress.total)
            return
        text, last = chunk.content or "", self._last
        if not text and chunk.tokens_predicted is None:
            return  # a keep-alive
        if (new_tokens := (chunk.tokens_predicted or 0) - last.tokens) > 0:
            if (timings := chunk.timings) is None:
                raise ValueError("tokens without timings")
            counts = timings.predicted_ms, timings.draft_n, timings.draft_n_accepted
            now = _Counts(event.at, last.tokens + new_tokens, *counts)
            if now.milliseconds == last.milliseconds:
                now = last._replace(tokens=now.tokens)
            else:
                if new_tokens == 1:  # nothing is hidden, so the previous pass is complete
                    yield from self._close()
                self._seen += 1
            self._last = now
            self._tokens += [Token(id=None, text="")] * min(new_tokens - 1, MAX_TOKENS)
            self._tokens.append(Token(id=(chunk.tokens or [None])[-1], text=text))
        elif text:
            raise ValueError("a text without a token")
        if chunk.stop:
            self.finish_reason = "length" if chunk.stop_type == "limit" else "stop"

    def end(self) -> Iterator[Round]:
        """Yield a last round cut short by the token limit or the end of text."""
        yield from super().end()
        yield from self._close()

    def _close(self) -> Iterator[Round]:
        """Yield a round for each pass since the last close; hidden passes share the sums."""
        before, after = self._closed, self._last
        if after is before:
            return
        passes = min(max(after.tokens - 1 - after.accepted - self._passes, self._seen), MAX_TOKENS)
        accepted, proposed = after.accepted - before.accepted, after.drafted - before.drafted
        seconds, remaining = max(after.at - before.at, TICK), passes
        if self._passes < 0 and passes > 1:  # the prefill proposes nothing, and takes nearly all the time
            yield self._round(0, 0, seconds)
            seconds, remaining = TICK, passes - 1
        divides = remaining == 1 or (accepted == 0 and proposed % remaining == 0)
        for index in range(remaining):
            if self._tokens:
                share = accepted // remaining + (index < accepted % remaining)
                yield self._round(share, proposed // remaining if divides else None, seconds / remaining)
        self._passes, self._seen = self._passes + passes, 0
        self._closed = after

    def _round(self, accepted: int, proposed: int | None, seconds: float) -> Round:
        committed = tuple(self._tokens.popleft() for _ in range(min(accepted + 1, len(self._tokens))))
        return Round(committed=committed, seconds=seconds, proposed=counted_drafts(committed, proposed, accepted))
