"""Strategies that copy from the text so far, alone or beside a draft model."""

from dataclasses import dataclass

from pydantic import BaseModel, Field

from specdemo.strategies.base import (
    AUTOMATIC,
    BOTH,
    CONFIDENCE,
    CONSTANT,
    PROMPT_LOOKUP,
    Drafter,
    DraftKindName,
    Fields,
    Strategy,
    register,
)

SUFFIX_TREE = Drafter("suffix", "Suffix tree", "suffix tree", "the suffix tree's proposals", ("suffix",))
TOKENS_PER_MATCHED = 2
"""Maximum tokens a suffix tree proposes per matched token."""


class TextParameters(BaseModel):
    """Settings of strategies that copy from text."""

    max_ngram_size: int = Field(
        3,
        ge=1,
        le=16,
        title="N-gram size",
        description="longest run of recent tokens to look up in the text so far",
    )
    remember: bool = Field(
        False, title="Memory", description="let the suffix tree learn from the answers to earlier, other prompts"
    )


@register
@dataclass(frozen=True)
class Lookup(Strategy):
    """Prompt lookup: copies what followed an earlier occurrence of the last few tokens."""

    max_ngram_size: int
    num_assistant_tokens: int

    name = "lookup"
    drafter = PROMPT_LOOKUP
    policy = CONSTANT
    engines = ("genai", "traced")
    drafts = ()

    @property
    def words(self) -> str:
        return f"lookahead {self.num_assistant_tokens}, n-grams of up to {self.max_ngram_size}"

    def genai(self) -> Fields:
        return {"num_assistant_tokens": self.num_assistant_tokens, "max_ngram_size": self.max_ngram_size}

    def vllm(self) -> Fields:
        """Return vLLM's n-gram method."""
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

    def transformers(self) -> Fields:
        """Return prompt lookup decoding's arguments."""
        return {
            "prompt_lookup_num_tokens": self.num_assistant_tokens,
            "max_matching_ngram_size": self.max_ngram_size,
        }


@register
@dataclass(frozen=True)
class Suffix(Strategy):
    """Suffix decoding: proposes what most often followed the last tokens before, as long as counts make it likely."""

    assistant_confidence_threshold: float
    max_assistant_tokens: int
    remember: bool = False

    name = "suffix"
    drafter = SUFFIX_TREE
    policy = CONFIDENCE
    engines = ("traced",)
    drafts = ()
    live = ("traced",)

    @property
    def words(self) -> str:
        memory = ", remembering earlier answers" if self.remember else ""
        return f"confidence threshold {self.assistant_confidence_threshold:g}{memory}"

    def vllm(self) -> Fields:
        """Return vLLM's suffix decoding, which by default caches up to 10,000 answers."""
        return {
            "method": "suffix",
            "num_speculative_tokens": self.max_assistant_tokens,
            "suffix_decoding_min_token_prob": self.assistant_confidence_threshold,
            "suffix_decoding_max_spec_factor": float(TOKENS_PER_MATCHED),
            **({} if self.remember else {"suffix_decoding_max_cached_requests": 0}),
        }

    def llama_cpp(self) -> list[str]:
        """Return llama.cpp's n-gram cache, which also counts, but has its own thresholds."""
        return ["--spec-type", "ngram-cache", "--spec-draft-n-max", str(self.max_assistant_tokens)]


@register
@dataclass(frozen=True)
class Both(Strategy):
    """In every round the draft, the suffix tree or nothing: what pays most."""

    max_ngram_size: int
    max_assistant_tokens: int

    name = "both"
    drafter = BOTH
    policy = AUTOMATIC
    engines = ("traced",)
    drafts = ("model",)
    needs_costs = True

    @property
    def words(self) -> str:
        return f"automatic lookahead, matches of up to {self.max_ngram_size}"

    def unfit(self, draft: DraftKindName) -> str | None:
        """Refuse translated drafts and heads, which are slow to catch up."""
        if draft in self.drafts:
            return None
        return "Both sources need a draft with the target's tokenizer; choose drafter model or lookup."
