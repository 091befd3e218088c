"""Decoding strategies: which drafter proposes tokens, when it stops, and what other software calls the same.

To add one, write its class here with `@register`, name it in the engines that run it (`capabilities.py`), and add its
policy or register its index in `specdemo/decoding/`. A strategy is a frozen value, and its fields are settings:
`--num-assistant-tokens 4` is the field `num_assistant_tokens` of `Constant`. Page, terminal, measurements, copied
code and docs derive from the class.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field

HeadName = Literal["eagle3"]  # a drafter that reads the target's hidden states
DraftKindName = HeadName | Literal["model", "translated", "server"]


@dataclass(frozen=True)
class Policy:
    name: str
    label: str


@dataclass(frozen=True)
class DrafterInfo:
    """`subject` is its name in a sentence. `model`: a draft model proposes. `copies`: it copies from earlier text."""

    name: str
    label: str
    subject: str
    model: bool = False
    copies: bool = False


Fields = dict[str, Any]  # of other software, by its own names


@dataclass(frozen=True)
class Strategy:
    """A drafter and when it stops. The first line of a subclass's docstring explains it to users.

    The settings `drafter` and `policy` select it. `drafts` are the kinds of draft that support it. `template` becomes
    its description, with the cap if it has one. `needs_costs`: it needs step costs, which require a KV cache.
    """

    name: ClassVar[str]
    drafter: ClassVar[DrafterInfo]
    policy: ClassVar[Policy]
    template: ClassVar[str]
    drafts: ClassVar[tuple[DraftKindName, ...]] = ("model", "translated", "eagle3")
    needs_costs: ClassVar[bool] = False

    @property
    def description(self) -> str:
        """The lookahead in a few words, such as "lookahead 4"."""
        return self._capped(", at most {} proposals")

    @property
    def label(self) -> str:
        """The same for a narrow table."""
        return self._capped(", ≤\u00a0{}")

    def _capped(self, suffix: str) -> str:
        cap = getattr(self, "max_assistant_tokens", None)
        return self.template.format(**vars(self)) + (suffix.format(cap) if cap else "")

    @classmethod
    def setting(cls) -> tuple[str, str]:
        """Return the setting that distinguishes it from other strategies, and its value."""
        return ("policy", cls.policy.name) if cls.drafter.name == DRAFT_MODEL.name else ("drafter", cls.drafter.name)

    @property
    def fixed_lookahead(self) -> int | None:
        """Tokens proposed in every round, if constant; a text may have fewer to copy."""
        return getattr(self, "num_assistant_tokens", None)

    @classmethod
    def explanation(cls) -> str:
        return (cls.__doc__ or "").partition("\n")[0]

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    # The strategy in other software, or None if that has no equivalent.

    def genai(self) -> Fields | None:
        """Return fields for OpenVINO GenAI's `GenerationConfig`."""
        return None

    def vllm(self) -> Fields | None:
        """Return vLLM's `--speculative-config`, without the draft model."""
        return None

    def llama_cpp(self) -> list[str] | None:
        """Return options for llama.cpp's server, without the draft model."""
        return None


DRAFT_MODEL = DrafterInfo("model", "Draft model", "the draft", model=True)
SERVER_DRAFTER = DrafterInfo("model", "The server's drafter", "the server's drafter", model=True)  # of any kind
CONSTANT_POLICY = Policy("constant", "Lookahead")
CONFIDENCE_POLICY = Policy("confidence", "Confidence")
AUTO_POLICY = Policy("auto", "Automatic")

STRATEGIES: dict[str, type[Strategy]] = {}  # by short name, in display order

Registered = TypeVar("Registered", bound=type[Strategy])


def register(strategy: Registered) -> Registered:
    STRATEGIES[strategy.name] = strategy
    return strategy


class Parameters(BaseModel):
    num_assistant_tokens: int = Field(4, ge=1, le=16, title="Lookahead", description="tokens proposed per round")
    assistant_confidence_threshold: float = Field(
        0.4,
        ge=0,
        le=1,
        title="Confidence threshold",
        description="the draft stops after a token below this probability",
    )
    max_assistant_tokens: int = Field(
        20, ge=1, le=64, title="Maximum draft tokens", description="after which even a confident draft stops"
    )
    max_ngram_size: int = Field(
        3, ge=1, le=16, title="N-gram size", description="longest run of recent tokens to look up in the text so far"
    )


@dataclass(frozen=True)
class Plain(Strategy):
    """The target alone: nothing is proposed."""

    drafter = DrafterInfo("none", "Nobody", "nobody")
    template = "plain"


@register
@dataclass(frozen=True)
class Constant(Strategy):
    """The draft proposes the same number of tokens in every round."""

    num_assistant_tokens: int

    name = "constant"
    drafter = DRAFT_MODEL
    policy = CONSTANT_POLICY
    template = "lookahead {num_assistant_tokens}"

    def genai(self) -> Fields:
        return {"num_assistant_tokens": self.num_assistant_tokens}

    def vllm(self) -> Fields:
        return {"num_speculative_tokens": self.num_assistant_tokens}

    def llama_cpp(self) -> list[str]:
        """Return a cap only; llama.cpp's threshold is 0 unless given."""
        return ["--spec-draft-n-max", str(self.num_assistant_tokens)]


_MIN_THRESHOLD = 1e-30  # GenAI reads a threshold of 0 as unset
_DEFAULT_CAP = Parameters.model_fields["max_assistant_tokens"].default  # the same as in transformers


@register
@dataclass(frozen=True)
class Confidence(Strategy):
    """The draft stops once its own probability falls below a threshold, or after a number of proposals."""

    assistant_confidence_threshold: float
    max_assistant_tokens: int | None = None  # None: the engine has no cap

    name = "confidence"
    drafter = DRAFT_MODEL
    policy = CONFIDENCE_POLICY
    template = "confidence threshold {assistant_confidence_threshold:g}"

    def genai(self) -> Fields:
        """Return the threshold alone: GenAI has no cap."""
        return {"assistant_confidence_threshold": self.assistant_confidence_threshold or _MIN_THRESHOLD}

    def llama_cpp(self) -> list[str]:
        threshold = ["--spec-draft-p-min", f"{self.assistant_confidence_threshold:g}"]
        return ["--spec-draft-n-max", str(self.max_assistant_tokens or _DEFAULT_CAP), *threshold]


@register
@dataclass(frozen=True)
class Auto(Strategy):
    """As many tokens as pay off, given step costs and what was accepted so far."""

    max_assistant_tokens: int

    name = "auto"
    drafter = DRAFT_MODEL
    policy = AUTO_POLICY
    needs_costs = True
    template = "automatic lookahead"


@register
@dataclass(frozen=True)
class ServerDefault(Strategy):
    """However the server was configured to speculate when it was started."""

    name = "server"
    drafter = SERVER_DRAFTER
    policy = Policy("server", "As the server was started")
    drafts = ("server",)
    template = "the server's lookahead"


@register
@dataclass(frozen=True)
class Lookup(Strategy):
    """Prompt lookup: copies what followed an earlier occurrence of the last few tokens."""

    max_ngram_size: int
    num_assistant_tokens: int

    name = "lookup"
    drafter = DrafterInfo("lookup", "Prompt lookup", "prompt lookup", copies=True)
    policy = CONSTANT_POLICY
    template = "lookahead {num_assistant_tokens}, n-grams of up to {max_ngram_size}"

    def genai(self) -> Fields:
        return {"num_assistant_tokens": self.num_assistant_tokens, "max_ngram_size": self.max_ngram_size}

    def vllm(self) -> Fields:
        return {
            "method": "ngram",
            "prompt_lookup_min": 1,
            "prompt_lookup_max": self.max_ngram_size,
            "num_speculative_tokens": self.num_assistant_tokens,
        }

    def llama_cpp(self) -> list[str]:
        """Return llama.cpp's simplest n-gram method, whose n-grams have exactly this size."""
        flags = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(self.max_ngram_size)]
        return [*flags, "--spec-ngram-simple-size-m", str(self.num_assistant_tokens)]


TOKENS_PER_MATCHED = 2  # at most, in a suffix tree


@register
@dataclass(frozen=True)
class Suffix(Strategy):
    """Suffix decoding: proposes what most often followed the last tokens before, as long as counts make it likely."""

    assistant_confidence_threshold: float
    max_assistant_tokens: int

    name = "suffix"
    drafter = DrafterInfo("suffix", "Suffix tree", "the suffix tree", copies=True)
    policy = CONFIDENCE_POLICY
    template = "confidence threshold {assistant_confidence_threshold:g}"

    def vllm(self) -> Fields:
        """Return vLLM's suffix decoding, which by default caches up to 10,000 answers."""
        return {
            "method": "suffix",
            "num_speculative_tokens": self.max_assistant_tokens,
            "suffix_decoding_min_token_prob": self.assistant_confidence_threshold,
            "suffix_decoding_max_spec_factor": float(TOKENS_PER_MATCHED),
            "suffix_decoding_max_cached_requests": 0,
        }

    def llama_cpp(self) -> list[str]:
        """Return llama.cpp's n-gram cache, which also counts, but has its own thresholds."""
        return ["--spec-type", "ngram-cache", "--spec-draft-n-max", str(self.max_assistant_tokens)]


@register
@dataclass(frozen=True)
class Combined(Strategy):
    """Copies what repeats and drafts the rest: in each round whichever should yield more tokens a second."""

    name = "combined"
    drafter = DrafterInfo(
        "combined", "Draft and suffix tree", "the draft with the suffix tree", model=True, copies=True
    )
    policy = AUTO_POLICY
    drafts = ("model", "eagle3")
    needs_costs = True
    template = "automatic lookahead"

    def llama_cpp(self) -> list[str]:
        """Return nothing but the draft's kind and `ngram-mod` beside it, which the caller lists."""
        return []


def drafters() -> dict[str, DrafterInfo]:
    all_drafters = (strategy.drafter for strategy in STRATEGIES.values())
    return {drafter.name: drafter for drafter in all_drafters if drafter is not SERVER_DRAFTER}


def policies() -> dict[str, Policy]:
    return {strategy.policy.name: strategy.policy for strategy in STRATEGIES.values()}


def strategy_of(drafter: str, policy: str) -> type[Strategy] | None:
    for strategy in STRATEGIES.values():
        if (strategy.drafter.name, strategy.policy.name) == (drafter, policy):
            return strategy
    return None


def parameters() -> frozenset[str]:
    return frozenset(name for strategy in STRATEGIES.values() for name in strategy.parameters())
