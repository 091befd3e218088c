"""Strategies with a draft model, which differ in when it stops."""

from dataclasses import dataclass

from pydantic import BaseModel, Field

from specdemo.strategies.base import (
    AUTOMATIC,
    CONFIDENCE,
    CONSTANT,
    DRAFT_MODEL,
    LOCAL,
    NO_DRAFTER,
    DraftKindName,
    Fields,
    Policy,
    Strategy,
    register,
)

_ANY: tuple[DraftKindName, ...] = ("model", "translated", "eagle3")
_CONSTANT = (*_ANY, "dflash", "mtp")
_NEVER_BELOW = 1e-30  # GenAI reads a threshold of 0 as unset
_ASSISTANT_TOKENS = 20  # transformers' default limit for its assistant
_HEURISTIC = Policy("heuristic", "Heuristic")
_SERVER = Policy("server", "As the server was started")


class DraftParameters(BaseModel):
    """Settings of strategies with a draft model."""

    num_assistant_tokens: int = Field(4, ge=1, le=16, title="Lookahead", description="tokens proposed per round")
    assistant_confidence_threshold: float = Field(
        0.4,
        ge=0,
        le=1,
        title="Confidence threshold",
        description="the draft stops proposing once its own probability falls below this",
    )
    max_assistant_tokens: int = Field(
        20, ge=1, le=64, title="Most proposals", description="where the draft stops proposing, however confident"
    )
    tree_depth: int = Field(
        0,
        ge=0,
        le=16,
        title="Tree depth",
        description="layers of an EAGLE-3 head's proposal tree; the lookahead caps its tokens; 0: a chain",
    )
    branching_factor: int = Field(
        1,
        ge=1,
        le=16,
        title="Branching factor",
        description="likeliest tokens kept per node and per layer of the tree",
    )


@dataclass(frozen=True)
class Plain(Strategy):
    """The target alone: nothing is proposed."""

    drafter = NO_DRAFTER

    @property
    def words(self) -> str:
        return "plain"


@dataclass(frozen=True)
class Planned(Strategy):
    """A lookahead for each round, planned in advance; after the last, nothing is proposed. For experiments only."""

    lookaheads: tuple[int, ...]

    drafter = DRAFT_MODEL

    @property
    def words(self) -> str:
        return "planned lookahead"


@register
@dataclass(frozen=True)
class Constant(Strategy):
    """The draft proposes the same number of tokens in every round."""

    num_assistant_tokens: int

    name = "constant"
    drafter = DRAFT_MODEL
    policy = CONSTANT
    engines = ("genai", "traced")
    drafts = _CONSTANT
    heads = LOCAL
    live = ("traced",)

    @property
    def words(self) -> str:
        return f"lookahead {self.num_assistant_tokens}"

    def genai(self) -> Fields:
        return {"num_assistant_tokens": self.num_assistant_tokens}

    def vllm(self) -> Fields:
        return {"num_speculative_tokens": self.num_assistant_tokens}

    def llama_cpp(self) -> list[str]:
        """Return a cap only; llama.cpp's threshold is 0 unless given."""
        return ["--spec-draft-n-max", str(self.num_assistant_tokens)]

    def transformers(self) -> Fields:
        """Return a constant schedule, without the assistant's default threshold."""
        return {
            "num_assistant_tokens": self.num_assistant_tokens,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }


@register
@dataclass(frozen=True)
class Tree(Strategy):
    """An EAGLE-3 head proposes a tree of tokens, which the target verifies in one pass."""

    tree_depth: int
    branching_factor: int
    num_assistant_tokens: int

    name = "tree"
    what = "a tree of proposals"
    drafter = DRAFT_MODEL
    policy = CONSTANT
    switch = "tree_depth"
    engines = ("genai",)
    drafts = ("eagle3",)
    heads = ("genai",)
    samples = False

    @property
    def words(self) -> str:
        return (
            f"tree of depth {self.tree_depth}, branching {self.branching_factor}, {self.num_assistant_tokens} tokens"
        )

    def contradiction(self) -> str | None:
        """Check that the tree holds at least one path."""
        if self.num_assistant_tokens >= self.tree_depth:
            return None
        return "a tree needs a lookahead of at least its depth; raise num_assistant_tokens"

    def unfit(self, draft: DraftKindName) -> str | None:
        """Refuse draft models, which propose chains."""
        if draft in self.drafts:
            return None
        return "Only an EAGLE-3 head can propose trees; set tree_depth to 0, or choose such a draft."

    def genai(self) -> Fields:
        return {
            "num_assistant_tokens": self.num_assistant_tokens,
            "tree_depth": self.tree_depth,
            "branching_factor": self.branching_factor,
        }


@register
@dataclass(frozen=True)
class Heuristic(Strategy):
    """Two more tokens after a fully accepted round, one fewer after any other, as in transformers."""

    name = "heuristic"
    drafter = DRAFT_MODEL
    policy = _HEURISTIC
    engines = ("traced",)

    @property
    def words(self) -> str:
        return "heuristic lookahead"

    def transformers(self) -> Fields:
        return {"num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.0}


@register
@dataclass(frozen=True)
class Confidence(Strategy):
    """The draft stops once its own probability of what it last proposed falls below a threshold, or at the cap."""

    assistant_confidence_threshold: float
    max_assistant_tokens: int | None = None  # None: the engine has no cap

    name = "confidence"
    drafter = DRAFT_MODEL
    policy = CONFIDENCE
    engines = ("genai", "traced")
    drafts = _ANY
    live = ("traced",)

    @property
    def words(self) -> str:
        return f"confidence threshold {self.assistant_confidence_threshold:g}"

    def genai(self) -> Fields:
        """Return the threshold alone: GenAI has no cap."""
        return {"assistant_confidence_threshold": self.assistant_confidence_threshold or _NEVER_BELOW}

    def llama_cpp(self) -> list[str]:
        """Return the threshold with the cap, or with its default."""
        most = DraftParameters.model_fields["max_assistant_tokens"].default
        cap = most if self.max_assistant_tokens is None else self.max_assistant_tokens
        return ["--spec-draft-n-max", str(cap), "--spec-draft-p-min", f"{self.assistant_confidence_threshold:g}"]

    def transformers(self) -> Fields:
        """Return the threshold with a fixed cap, since the default schedule grows."""
        return {
            "num_assistant_tokens": self.max_assistant_tokens or _ASSISTANT_TOKENS,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": self.assistant_confidence_threshold,
        }


@register
@dataclass(frozen=True)
class Auto(Strategy):
    """As many tokens as pay off, given step costs and what was accepted so far."""

    max_assistant_tokens: int

    name = "auto"
    drafter = DRAFT_MODEL
    policy = AUTOMATIC
    engines = ("traced",)
    needs_costs = True

    @property
    def words(self) -> str:
        return "automatic lookahead"


@register
@dataclass(frozen=True)
class ServerDefault(Strategy):
    """However the server was configured to speculate when it was started."""

    name = "server"
    drafter = DRAFT_MODEL
    policy = _SERVER
    engines = ("server",)
    drafts = ("server",)

    @property
    def words(self) -> str:
        return "the server's own lookahead"

    def unfit(self, draft: DraftKindName) -> str | None:
        """Refuse other drafts, which need a lookahead in each request."""
        if draft in self.drafts:
            return None
        return "Policy server is for remote engines; choose policy constant."
