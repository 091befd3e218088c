"""SGLang's own protocol for prompts that are not messages: each event tells ids and what was verified so far."""

from dataclasses import dataclass
from typing import Any

from specdemo.engines.server.answers import Part, Proposals, TextReader
from specdemo.engines.server.client import Client
from specdemo.engines.server.openai import OpenAI
from specdemo.engines.server.protocols import Asked
from specdemo.records import Request


class SGLang(OpenAI):
    """One SGLang server. Chats go through OpenAI's protocol, since only there its chat template is applied."""

    def __init__(self, client: Client, model: str | None) -> None:
        super().__init__("sglang", client, model)

    def ask(self, request: Request, *, alone: bool = True) -> Asked:
        """A completion by its own protocol, or a chat completion."""
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
        return Asked("/generate", {"text": request.prompt, "sampling_params": chosen, "stream": True}, SGLangReader)


@dataclass
class SGLangReader(TextReader):
    """Reads one answer, whose events repeat all text so far, or only tell what is new, as the server was started."""

    _text: str = ""

    def part(self, data: dict[str, Any]) -> Part:
        """What an event tells."""
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
