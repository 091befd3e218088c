"""llama.cpp's server in its own protocol, which reports token ids and, with each event, the running draft counts.

`timings.predicted_ms` changes with each target pass, so events with the same value belong to one round. `draft_n` and
`draft_n_accepted` are cumulative; their differences between two passes are a round's proposed and accepted tokens. A
round commits the accepted tokens and a correction or bonus token.

Tokens that end within a character send no event. The character's last token does, with the count by then; those
before it have neither id nor text. If whole passes stay hidden that way, only their sums are known.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from specdemo.decoding.verification import outcomes_from_counts
from specdemo.engines.base import Prefilling, messages
from specdemo.engines.server.answers import HttpRequest
from specdemo.engines.server.client import Client, Event
from specdemo.records import MOST, TICK, DraftToken, FinishReason, Model, Outcome, Request, Round, Token, TraceSource


class LlamaCpp:
    """One llama.cpp server."""

    def __init__(self, client: Client, model: str | None) -> None:
        self._client = client
        self._props = client.read("/props")
        self._name = model
        with client.understanding():
            self._context: int | None = (self._props.get("default_generation_settings") or {}).get("n_ctx")

    def describe(self) -> Model:
        found = self._client.read("/v1/models")
        with self._client.understanding():
            return self._listed(found.get("data") or [{}])

    def _listed(self, listed: list[dict[str, Any]]) -> Model:
        names = [str(each.get("id")) for each in listed]
        if self._name is not None and self._name not in names:
            raise self._client.error("has no model {model!r}, but {names}.", model=self._name, names=", ".join(names))
        one = listed[names.index(self._name) if self._name is not None else 0]
        meta = one.get("meta") or {}
        return Model(
            name=str(one.get("id")),
            architecture="served",
            parameters=meta.get("n_params", 0),
            weights=str(meta.get("ftype", "unknown")),
            context_length=self._context,
            vocabulary=meta.get("n_vocab"),
            chat_template=bool(self._props.get("chat_template")),
            server="llama.cpp",
        )

    def version(self) -> str:
        return f"llama.cpp {self._props.get('build_info', '')}".strip()

    def ask(self, request: Request, *, alone: bool = True) -> HttpRequest:
        """Return a completion request; the server applies its own chat template first."""
        prompt = request.prompt
        if request.apply_chat_template and self._props.get("chat_template"):
            chat = {
                "messages": messages(request),
                "chat_template_kwargs": {"enable_thinking": request.enable_thinking},
            }
            prompt = str(self._client.post("/apply-template", chat).get("prompt"))
        body = {
            "prompt": prompt,
            **({"model": self._name} if self._name is not None else {}),
            "n_predict": request.max_new_tokens,
            **request.llama_cpp(self._context or 64),
            "cache_prompt": False,  # otherwise prefill would be skipped
            "stream": True,
            "return_tokens": True,
            "return_progress": True,
            "timings_per_token": True,
        }
        return HttpRequest("/completion", body, LlamaCppReader)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens, as counted by the server."""
        return len(self._client.post("/tokenize", {"content": text}).get("tokens") or ())


@dataclass(frozen=True)
class _Pass:
    """A target pass; `proposed` is None if unknown."""

    commits: int
    proposed: int | None
    seconds: float


class LlamaCppReader:
    """Reads one answer."""

    def __init__(self, began: float) -> None:
        self.finish_reason: FinishReason | None = None
        self.trace_source: TraceSource = "reported"
        self._tokens: deque[Token] = deque()  # reported, but not in a round yet
        self._passes = -1  # in rounds so far, without the prefill
        self._open: list[_Counts] = [_Counts(at=began)]  # counts at the end of the last round and of each pass since

    def on_event(self, event: Event) -> Iterator[Prefilling | Round]:
        """Yield completed rounds; a round is complete once the next one begins."""
        data = event.data
        if (progress := data.get("prompt_progress")) is not None:
            yield Prefilling(progress["processed"], progress["total"])
            return
        now, before = _Counts.of(data, event.at), self._open[-1]
        if now.tokens > before.tokens:
            if now.milliseconds != before.milliseconds:
                if now.tokens == before.tokens + 1:  # nothing is hidden, so the previous pass is complete
                    yield from self._close()
                self._open.append(now)
            else:
                self._open[-1] = replace(before, tokens=now.tokens)
            self._tokens += [Token(id=None, text="")] * min(now.tokens - before.tokens - 1, MOST)
            ids = data.get("tokens") or [None]
            self._tokens.append(Token(id=ids[-1], text=data.get("content", "")))
        if data.get("stop"):
            self.finish_reason = "length" if data.get("stop_type") == "limit" else "stop"

    def end(self) -> Iterator[Round]:
        """Yield a last round cut short by the token limit or the end of text."""
        self.finish_reason = self.finish_reason or "stop"
        yield from self._close()

    def finalized(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        """Return the rounds unchanged: everything was reported with them."""
        return rounds

    def _close(self) -> Iterator[Round]:
        """Yield the rounds of all passes since the last close."""
        first, last = self._open[0], self._open[-1]
        number = len(self._open) - 1
        if not number:
            return
        passes = max(last.tokens - 1 - last.accepted - self._passes, number)
        passed = [_between(*pair) for pair in pairwise(self._open)]
        for one in passed if passes == number else _shared(first, last, passes, prefill=self._passes < 0):
            if self._tokens:
                yield self._round(one)
        self._passes += passes
        self._open = [last]

    def _round(self, one: _Pass) -> Round:
        committed = [self._tokens.popleft() for _ in range(min(one.commits, len(self._tokens)))]
        proposed = None
        if one.proposed is not None:
            outcomes = outcomes_from_counts(one.proposed, one.commits - 1)
            proposed = tuple(_drafted(committed, index, outcome) for index, outcome in enumerate(outcomes))
        return Round(committed=tuple(committed), seconds=one.seconds, proposed=proposed)


def _between(before: "_Counts", after: "_Counts") -> _Pass:
    """Return the single pass between two counts."""
    accepted, proposed = after.accepted - before.accepted, after.drafted - before.drafted
    return _Pass(accepted + 1, proposed, max(after.at - before.at, TICK))


def _shared(before: "_Counts", after: "_Counts", passes: int, *, prefill: bool) -> Iterator[_Pass]:
    """Divide reported sums among several passes; if the first is the prefill, it takes all the time."""
    accepted, proposed = after.accepted - before.accepted, after.drafted - before.drafted
    alike = accepted == 0 and proposed % passes == 0
    seconds = max(after.at - before.at, TICK)
    for index in range(passes):
        share = seconds / passes if not prefill else seconds if not index else TICK
        each = accepted // passes + (index < accepted % passes)
        yield _Pass(each + 1, proposed // passes if alike else None, share)


@dataclass(frozen=True)
class _Counts:
    """Cumulative counts at time `at`."""

    at: float
    tokens: int = 0
    milliseconds: float = -1.0
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, data: dict[str, Any], at: float) -> "_Counts":
        timings = data.get("timings") or {}
        return cls(
            at=at,
            tokens=data.get("tokens_predicted", 0),
            milliseconds=timings.get("predicted_ms", 0.0),
            drafted=timings.get("draft_n", 0),
            accepted=timings.get("draft_n_accepted", 0),
        )


def _drafted(committed: list[Token], index: int, outcome: Outcome) -> DraftToken:
    """Return a proposal: the committed token if accepted, else an empty one, since only the number is reported."""
    token = committed[index] if outcome is Outcome.ACCEPTED and index < len(committed) else Token(id=None, text="")
    return DraftToken(id=token.id, text=token.text, verdict=outcome)
