"""Requests, and the models that decode them: a target and its draft with their runtime settings, or servers."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from specdemo.records.base import Count, Record
from specdemo.settings import GenerationSettings, RuntimeSettings, Sampling, Weights
from specdemo.strategies import Confidence, DraftKindName, HeadName, Plain, ServerKind, Strategy

_NO_TOP_K = 2**63 - 1  # in GenAI
SILENCE_SECONDS = 60.0
"""After this long without data, a server counts as silent."""


class Server(Record):
    """A server: its address, the model's name there (None: the only one), and its kind (None: detect it)."""

    url: str
    model: str | None = None
    kind: ServerKind | None = None
    silence_seconds: float = SILENCE_SECONDS


class Servers(Record):
    """The server of each side; a side without one cannot run."""

    plain: Server | None = None
    speculative: Server | None = None


Prompts = Literal["chat", "base"]
"""Kind of prompts for a target: chats, or the beginning of a text."""


class Model(Record):
    """A model folder or file. `parameters` counts weights; `weights` is their precision, `weight_bytes` their size.

    `vocabulary` is the number of tokens. Without a `detokenizer` a model can propose but not generate text. A `head`
    drafts from the target's hidden states, is not a model in its own right, and may lack some of the target's tokens.
    `server`: its server's kind, if not loaded here. `linear_attention`: some layers keep a state instead of a KV
    cache. `in_parts`: its network takes embeddings, computed by another, and its own multi-token-prediction head is
    in the folder. `form`: how a GGUF file's weights are loaded. None means unknown when the record was written.
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
    head: HeadName | None = None
    linear_attention: bool = False
    in_parts: bool = False
    server: ServerKind | None = None
    form: Weights = "auto"
    path: Path | None = Field(None, exclude=True, repr=False)  # never leaves this machine

    @property
    def eagle3(self) -> bool:
        return self.head == "eagle3"

    @property
    def prompts(self) -> Prompts:
        return "chat" if self.chat_template else "base"


class ModelPair(Record):
    """A target, its draft (None: prompt lookup only), and their runtime settings.

    `translated`: their tokenizers differ, so proposals are re-encoded for the target. `servers` decode both sides, if
    they are not loaded here.
    """

    name: str
    target: Model
    draft: Model | None = None
    runtime: RuntimeSettings = RuntimeSettings()
    translated: bool = False
    servers: Servers | None = Field(None, exclude=True, repr=False)  # addresses never leave this machine

    @property
    def eagle3(self) -> bool:
        return self.draft_kind == "eagle3"

    @property
    def head(self) -> HeadName | None:
        """Kind of head, if the draft is one."""
        return self.draft.head if self.draft is not None else None

    @property
    def draft_kind(self) -> DraftKindName | None:
        """Kind of draft; None for a target alone."""
        if self.draft is None:
            return None
        if self.target.server is not None:
            return "server"
        if self.draft.head is not None:
            return self.draft.head
        return "translated" if self.translated else "model"


MOST_TURNS = 256
"""Maximum turns of a chat before its prompt."""


class Turn(Record):
    """An earlier turn of a chat: the user's prompt and the target's answer."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Request:
    """A prompt, the strategy to decode it with, and when to stop. `history` holds the chat's earlier turns."""

    prompt: str
    strategy: Strategy
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128
    ignore_eos: bool = False
    history: tuple[Turn, ...] = ()
    apply_chat_template: bool = True
    enable_thinking: bool = True
    kv_cache: bool = True
    alternatives: int = 0

    @classmethod
    def of(cls, prompt: str, settings: GenerationSettings, history: tuple[Turn, ...] = ()) -> Self:
        return cls(
            prompt=prompt,
            strategy=settings.strategy,
            sampling=settings.sampling,
            max_new_tokens=settings.max_new_tokens,
            ignore_eos=settings.ignore_eos,
            history=history,
            apply_chat_template=settings.apply_chat_template,
            enable_thinking=settings.enable_thinking,
            kv_cache=settings.kv_cache == "on",
            alternatives=settings.alternatives,
        )

    @property
    def plain(self) -> Self:
        """The same request for the target alone."""
        return replace(self, strategy=Plain())

    # Fields of other software, sent by engines and shown as code to copy. Every field is given, even defaults, since
    # a model's own generation config may differ.

    @property
    def reports_probabilities(self) -> bool:
        """Whether GenAI is asked for the target's probability of each committed token.

        Only where it must compute probabilities anyway, since that takes time: in greedy decoding it applies a
        confidence threshold only with `logprobs=1`. Without it, the draft's probability counts as unknown and the
        draft stops after one token, whatever the threshold.
        """
        return isinstance(self.strategy, Confidence) and not self.sampling.do_sample

    def genai(self) -> dict[str, Any]:
        """Return the fields of OpenVINO GenAI's `GenerationConfig`: those of transformers and a few more."""
        sampling = self.sampling
        fields = self.transformers() | {"ignore_eos": self.ignore_eos}
        if sampling.do_sample:
            fields |= {"top_k": sampling.top_k or _NO_TOP_K, "rng_seed": sampling.seed}
        if self.reports_probabilities:
            fields["logprobs"] = 1
        return fields | (self.strategy.genai() or {})

    def openai(self, *, neutral: bool = True) -> dict[str, Any]:
        """Return the fields of OpenAI's protocol and those that vLLM and others add to it.

        Not `neutral`: without those additions that change nothing, since some servers refuse what they do not know.
        """
        sampling = self.sampling
        fields: dict[str, Any] = {
            "max_tokens": self.max_new_tokens,
            "temperature": sampling.temperature if sampling.do_sample else 0,
        }
        if sampling.do_sample:
            fields |= {"top_p": sampling.top_p, "seed": sampling.seed}
        added = {"ignore_eos": self.ignore_eos, "repetition_penalty": sampling.repetition_penalty}
        added |= {"top_k": sampling.top_k or -1} if sampling.do_sample else {}
        unchanged = {"ignore_eos": False, "repetition_penalty": 1, "top_k": -1}
        return fields | {name: value for name, value in added.items() if neutral or value != unchanged[name]}

    def llama_cpp(self, window: int) -> dict[str, Any]:
        """Return the fields of llama.cpp's server, except the number of tokens.

        `window`: how many of the last tokens a repetition penalty covers. There is no value for all of them.
        """
        sampling = self.sampling
        return {
            "temperature": sampling.temperature if sampling.do_sample else 0,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": 0,
            "seed": sampling.seed,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": window,
            "ignore_eos": self.ignore_eos,
        }

    def transformers(self) -> dict[str, Any]:
        """Return the arguments of transformers' `generate()`, without assisted decoding's. It has no `ignore_eos`."""
        sampling = self.sampling
        fields: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "repetition_penalty": sampling.repetition_penalty,
            "do_sample": sampling.do_sample,
        }
        if sampling.do_sample:
            fields |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        return fields
