"""Servers that speak OpenAI's protocol: vLLM, OpenVINO Model Server, SGLang, and any other.

Each adds a few fields to requests and events; see `Extras`. SGLang has its own protocol for prompts that are not
messages, whose events report the verification counts.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from specdemo.engines.base import messages
from specdemo.engines.server.answers import HttpRequest, Part, Proposals, TextReader
from specdemo.engines.server.client import Client
from specdemo.errors import ServerError
from specdemo.records import FinishReason, Model, Request, Round
from specdemo.strategies import PER_REQUEST, SERVERS, ServerKind

_LETTERS_PER_TOKEN = 4  # estimate for servers that count no tokens; only affects text lengths
_REASONS: dict[str, FinishReason] = {"length": "length"}


class Extras(NamedTuple):
    """Features of a kind of server beyond the protocol."""

    prefix: str = "/v1"
    version: str = ""  # path of the version
    running_totals: bool = False  # events can carry the number of tokens so far
    sampling: bool = True  # top-k, repetition penalty, ignored end of text
    template: bool = False  # chat template options
    salted: bool = False  # a request can bypass the prefix cache
    counters: str = ""  # prefix of its speculation metrics


EXTRAS: dict[ServerKind, Extras] = {
    "vllm": Extras(
        version="/version",
        running_totals=True,
        template=True,
        salted=True,
        counters="vllm:spec_decode_num_",
    ),
    "sglang": Extras(version="/get_server_info", running_totals=True, template=True),
    "ovms": Extras(prefix="/v3", template=True),
    "openai": Extras(sampling=False),
}


class OpenAI:
    """One OpenAI-compatible server."""

    def __init__(self, kind: ServerKind, client: Client, model: str | None) -> None:
        self._kind = kind
        self._extras = EXTRAS[kind]
        self._client = client
        self._name = model

    def describe(self) -> Model:
        found = self._client.probe(f"{self._extras.prefix}/models") or {}
        with self._client.understanding():
            return self._listed(found.get("data") or [])

    def _listed(self, listed: list[dict[str, Any]]) -> Model:
        names = [str(each.get("id")) for each in listed]
        if self._name is None and not names:
            raise self._client.error("does not list its models; name one with --model.")
        if self._name is None and len(names) > 1:
            raise self._client.error("has several models ({names}); name one with --model.", names=", ".join(names))
        if self._name is not None and names and self._name not in names:
            raise self._client.error("has no model {model!r}, but {names}.", model=self._name, names=", ".join(names))
        self._name = self._name or names[0]
        one = listed[names.index(self._name)] if names else {}
        return Model(
            name=self._name,
            architecture="served",
            parameters=0,
            weights="unknown",
            context_length=one.get("max_model_len"),
            chat_template=True,
            server=self._kind,
        )

    def version(self) -> str:
        reported = self._client.probe(self._extras.version) if self._extras.version else None
        return f"{SERVERS[self._kind].removeprefix('an ')} {(reported or {}).get('version', '')}".strip()

    def ask(self, request: Request, *, alone: bool = True) -> HttpRequest:
        """Return a request for a chat completion, or for a completion of the unmodified prompt."""
        if self._name is None:
            self.describe()
        body: dict[str, Any] = {
            "model": self._name,
            **request.openai(beyond=self._extras.sampling),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._extras.running_totals:
            body["stream_options"]["continuous_usage_stats"] = True
        if self._extras.salted:
            body |= {"cache_salt": uuid4().hex, "return_token_ids": True}
        if self._kind in PER_REQUEST:
            body |= request.strategy.ovms() or {}
        if not request.apply_chat_template:
            return self._http_request("/completions", {**body, "prompt": request.prompt}, alone)
        if self._extras.template:
            body["chat_template_kwargs"] = {"enable_thinking": request.enable_thinking}
        return self._http_request("/chat/completions", {**body, "messages": messages(request)}, alone)

    def _http_request(self, path: str, body: dict[str, Any], alone: bool) -> HttpRequest:
        counted = partial(self._since, self._counted() if alone else None)
        return HttpRequest(self._extras.prefix + path, body, partial(OpenAIReader, counted=counted))

    def _since(self, before: Proposals | None) -> Proposals | None:
        """Return the server's counts since `before`, over all its requests; None if it reports none, or fails now."""
        now = None
        if before is not None:
            with suppress(ServerError):  # the answer is complete without
                now = self._counted()
        if now is None or before is None:
            return None
        return Proposals(now.rounds - before.rounds, now.proposed - before.proposed, now.accepted - before.accepted)

    def count_tokens(self, text: str) -> int:
        """Return a rough number of tokens: not every server can be asked."""
        return max(len(text) // _LETTERS_PER_TOKEN, 1)

    def _counted(self) -> Proposals | None:
        if not self._extras.counters:
            return None
        found = self._client.get("/metrics")
        names = ("drafts", "draft_tokens", "accepted_tokens")
        with self._client.understanding():
            totals = [_total(found.text, f"{self._extras.counters}{name}") for name in names]
            rounds, proposed, accepted = (int(total or 0) for total in totals)
        return None if None in totals else Proposals(rounds, proposed, accepted)


@dataclass
class OpenAIReader(TextReader):
    """Reads one answer."""

    counted: Callable[[], Proposals | None] = field(kw_only=True)

    def part(self, data: dict[str, Any]) -> Part:
        usage = data.get("usage") or {}
        self.total = usage.get("completion_tokens", self.total)
        metrics = (data.get("metrics") or {}).get("speculative_decoding")
        if metrics is not None:
            self.proposals = _proposals(metrics)
        choice = next(iter(data.get("choices") or ()), None)
        if choice is None:
            return Part()
        delta = choice.get("delta") or {}
        texts = (choice.get("text"), delta.get("reasoning_content"), delta.get("reasoning"), delta.get("content"))
        reason = choice.get("finish_reason")
        return Part(
            text="".join(filter(None, texts)),
            ids=choice.get("token_ids") or (),
            tokens=usage.get("completion_tokens"),
            finish_reason=None if reason is None else _REASONS.get(reason, "stop"),
        )

    def finalized(self, rounds: tuple[Round, ...]) -> tuple[Round, ...]:
        """Return the rounds with the proposals that the server reported or counted."""
        if self.proposals is None:
            self.proposals = self.counted()
        return super().finalized(rounds)


def _proposals(metrics: dict[str, Any]) -> Proposals:
    """Return the proposals from vLLM's metrics of a request."""
    each = zip(metrics.get("per_step_drafted") or (), metrics.get("per_step_accepted") or (), strict=False)
    return Proposals(
        metrics.get("num_spec_steps", 0),
        metrics.get("num_draft_tokens", 0),
        metrics.get("num_accepted_draft_tokens", 0),
        tuple(each),
    )


def _total(text: str, name: str) -> float | None:
    """Return the sum of a Prometheus counter over all labels; None if there is no such counter."""
    values = re.findall(rf"^{re.escape(name)}(?:_total)?(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, values)) if values else None


class SGLang(OpenAI):
    """One SGLang server. Chats use OpenAI's protocol, since only there its chat template is applied."""

    def __init__(self, client: Client, model: str | None) -> None:
        super().__init__("sglang", client, model)

    def ask(self, request: Request, *, alone: bool = True) -> HttpRequest:
        """Return a request in its own protocol, or for a chat completion."""
        if request.apply_chat_template:
            return super().ask(request, alone=alone)
        sampling = request.sampling
        chosen: dict[str, Any] = {
            "max_new_tokens": request.max_new_tokens,
            "temperature": sampling.temperature if sampling.do_sample else 0,
            "repetition_penalty": sampling.repetition_penalty,
            "ignore_eos": request.ignore_eos,
        }
        if sampling.do_sample:
            chosen |= {"top_p": sampling.top_p, "top_k": sampling.top_k or -1}
        return HttpRequest(
            "/generate", {"text": request.prompt, "sampling_params": chosen, "stream": True}, SGLangReader
        )


@dataclass
class SGLangReader(TextReader):
    """Reads one answer. Its events hold the whole text so far or only new text, depending on the server's options."""

    _text: str = ""

    def part(self, data: dict[str, Any]) -> Part:
        meta, text = data.get("meta_info") or {}, data.get("text", "")
        new = text.removeprefix(self._text)
        self._text = text if text.startswith(self._text) else self._text + text
        if (passes := meta.get("spec_verify_ct")) is not None:
            accepted = meta.get("spec_accept_token_num", meta.get("completion_tokens", 0) - passes - 1)
            self.proposals = Proposals(passes, meta.get("spec_draft_token_num", 0), accepted)
        reason = (meta.get("finish_reason") or {}).get("type")
        return Part(
            text=new,
            tokens=meta.get("completion_tokens"),
            finish_reason=None if reason is None else "length" if reason == "length" else "stop",
        )
