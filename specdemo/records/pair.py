"""What is loaded: a target, its draft, and how; or the servers that decode in their place."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from specdemo.records.base import Count, Record
from specdemo.settings import RuntimeSettings, Weights
from specdemo.strategies import DraftKindName, ServerKind

SILENCE_SECONDS = 60.0
"""A server that sends nothing for so long has stopped answering."""


class Server(Record):
    """One server: its address, the model's name there (None: the only one), and its kind (None: ask it)."""

    url: str
    model: str | None = None
    kind: ServerKind | None = None
    silence_seconds: float = SILENCE_SECONDS


class Servers(Record):
    """The server of each side; only sides that have one can run."""

    plain: Server | None = None
    speculative: Server | None = None


Prompts = Literal["chat", "base"]
"""What a target is given: questions and requests, or the beginning of a text to continue."""


Head = Literal["eagle3", "dflash", "mtp", "gemma4_mtp"]
"""What reads the target's hidden states to draft. Gemma 4's multi-token-prediction head also reads its KV cache."""


HEADS: dict[Head, str] = {
    "eagle3": "an EAGLE-3 head",
    "dflash": "a DFlash draft",
    "mtp": "a multi-token-prediction head",
    "gemma4_mtp": "Gemma 4's multi-token-prediction head",
}
"""What they are called in a sentence."""


class Model(Record):
    """A model folder. `parameters` counts weights; `weights` is their stored precision, `weight_bytes` their size.

    `vocabulary` is the number of tokens; `chat_template`: whether there is one. Without a `detokenizer` a model can
    propose but not write; `head`: it is a head, which drafts from the target's hidden states, is not a
    model in its own right, and may lack some of the target's tokens. `server`: what serves it, if it is not loaded
    here. `linear_attention`: some layers keep a state in place of a KV cache. `in_parts`: its network takes
    embeddings, which another one makes of tokens, and its own multi-token-prediction head lies beside it. `form`: in
    which form the weights of a GGUF file are loaded. None means unknown when the record was written.
    """

    name: str
    architecture: str
    parameters: Count
    weights: str
    context_length: Count | None = None
    weight_bytes: Count | None = None
    vocabulary: Count | None = None
    chat_template: bool = False
    detokenizer: bool = True
    head: Head | None = None
    linear_attention: bool = False
    in_parts: bool = False
    server: ServerKind | None = None
    form: Weights = "auto"
    path: Path | None = Field(None, exclude=True, repr=False)  # never leaves this machine

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, data: Any) -> Any:
        """Records of earlier versions know one kind of head."""
        if isinstance(data, dict) and data.get("eagle3") and "head" not in data:
            return data | {"head": "eagle3"}
        return data

    @property
    def eagle3(self) -> bool:
        """Whether it is an EAGLE-3 head."""
        return self.head == "eagle3"

    @property
    def prompts(self) -> Prompts:
        """The prompts that suit it."""
        return "chat" if self.chat_template else "base"


class ModelPair(Record):
    """A target, its draft (None: prompt lookup only), and how they are loaded.

    `translated`: their tokenizers differ, so the draft's proposals are re-encoded for the target. `servers`: where
    both sides are served, if they are not loaded here.
    """

    name: str
    target: Model
    draft: Model | None = None
    runtime: RuntimeSettings = RuntimeSettings()
    translated: bool = False
    servers: Servers | None = Field(None, exclude=True, repr=False)  # addresses never leave this machine

    @property
    def eagle3(self) -> bool:
        """Whether the draft is an EAGLE-3 head."""
        return self.draft_kind == "eagle3"

    @property
    def head(self) -> Head | None:
        """What kind of head the draft is, if it is one."""
        return self.draft.head if self.draft is not None else None

    @property
    def draft_kind(self) -> DraftKindName | None:
        """What kind of draft there is; None for a target alone."""
        if self.draft is None:
            return None
        if self.target.server is not None:
            return "request" if self.target.server == "ovms" else "server"
        if self.draft.head is not None:
            return self.draft.head
        return "translated" if self.translated else "model"
