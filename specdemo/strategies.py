"""Decoding strategies, and the engines and kinds of draft that can use them.

To add a strategy, write its class here with `@register`, name it in the engines that run it, and add its proposer to
`specdemo/decoding/`.

A strategy is a frozen value whose fields are flat settings: `--num-assistant-tokens 4` is the field
`num_assistant_tokens` of `Constant`. Its class declares everything else: its drafter, which drafts support it, why it
is refused, and its form in other software; an engine names the strategies it runs. The page, terminal, measurements,
copied code and the docs' tables all derive from these declarations.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field

from specdemo.errors import capitalised

EngineName = Literal["genai", "traced", "server"]
HeadName = Literal["eagle3", "dflash", "mtp"]
"""A drafter that reads the target's hidden states."""
DraftKindName = HeadName | Literal["model", "translated", "server"]
ServerKind = Literal["llama.cpp", "openai"]
"""Supported servers; "openai" is any other with OpenAI's protocol."""

SERVERS: dict[ServerKind, str] = {
    "llama.cpp": "llama.cpp",
    "openai": "an OpenAI-compatible server",
}
"""Names for use in a sentence."""


@dataclass(frozen=True)
class EngineInfo:
    """An engine, its names and its limits.

    `label` is its name among choices, `words` in a sentence. `lacks`: settings it does not support. `concurrent`: it
    serves several requests at once. `local`: models are loaded on this machine; `copies` of each. `samples_exactly`:
    speculative sampling keeps the target's distribution, None if unknown. `strategies` names those it runs, `heads`
    those it runs with an EAGLE-3 head, `live` those whose changed settings it applies while decoding.
    """

    name: EngineName
    label: str
    words: str
    lacks: frozenset[str]
    strategies: tuple[str, ...]
    heads: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    concurrent: bool = False
    local: bool = True
    copies: int = 1
    samples_exactly: bool | None = None


ENGINES: dict[EngineName, EngineInfo] = {
    engine.name: engine
    for engine in (
        EngineInfo(
            "genai",
            label="OpenVINO GenAI",
            words="GenAI engine",
            lacks=frozenset({"kv_cache", "alternatives", "max_assistant_tokens", "at_once"}),
            strategies=("constant", "confidence", "lookup"),
            heads=("constant",),
            concurrent=True,
            copies=2,  # of the target for each side, of the draft also to replay its proposals
            samples_exactly=False,
        ),
        EngineInfo(
            "traced",
            label="Traced: specdemo's own loop",
            words="traced engine",
            lacks=frozenset({"at_once"}),
            strategies=("constant", "heuristic", "confidence", "auto", "lookup", "suffix", "both"),
            heads=("constant", "heuristic", "confidence", "auto"),
            live=("constant", "confidence", "suffix"),
            samples_exactly=True,
        ),
        EngineInfo(
            "server",
            label="A server",
            words="remote engine",
            lacks=frozenset({"kv_cache", "alternatives", "max_assistant_tokens", "sequential"}),
            strategies=("server",),
            concurrent=True,
            local=False,
        ),
    )
}
"""All engines, in display order."""

LOCAL: tuple[EngineName, ...] = tuple(name for name, engine in ENGINES.items() if engine.local)
CONCURRENT: tuple[EngineName, ...] = tuple(name for name, engine in ENGINES.items() if engine.concurrent)


def supports(engine: EngineName, setting: str) -> bool:
    return setting not in ENGINES[engine].lacks


def engines_with(setting: str) -> tuple[EngineName, ...]:
    return tuple(engine for engine in ENGINES if supports(engine, setting))


PARTIAL = frozenset[str]().union(*(engine.lacks for engine in ENGINES.values()))
"""Settings that some engine does not support."""


@dataclass(frozen=True)
class DraftKind:
    """A kind of draft, with a description and the engines that load it.

    `greedy`: why it requires greedy decoding, as a sentence; None if it can sample. `copies`: whether its pair also
    supports copying from text. `constant`: it proposes the same number of tokens in every round. `prefix_caching`
    and `concurrent`: GenAI speculates with it while it caches prefixes, and for several requests at once. `mode`: for
    a head, the runtime information by which GenAI recognises it.
    """

    name: DraftKindName
    what: str
    engines: tuple[EngineName, ...]
    greedy: str | None = None
    copies: bool = True
    constant: bool = False
    prefix_caching: bool = True
    concurrent: bool = True
    mode: str = ""

    @property
    def noun(self) -> str:
        """Its name in a sentence, with the article."""
        return self.what.partition(",")[0]


DRAFT_KINDS: dict[DraftKindName, DraftKind] = {
    kind.name: kind
    for kind in (
        DraftKind("model", "a model with the target's tokenizer", LOCAL),
        DraftKind(
            "translated",
            "a model with another tokenizer, whose text is encoded anew for the target",
            ("traced",),
            greedy="A draft with a different tokenizer works in greedy decoding only; switch sampling off.",
        ),
        DraftKind("eagle3", "an EAGLE-3 head, which reads the target's hidden states", LOCAL, mode="eagle3_mode"),
        DraftKind(
            "dflash",
            "a DFlash draft, which proposes a whole round in one pass from the target's hidden states",
            ("genai",),
            greedy="A DFlash draft works in greedy decoding only; switch sampling off.",
            constant=True,
            prefix_caching=False,
            concurrent=False,
            mode="dflash_mode",
        ),
        DraftKind(
            "mtp",
            "a multi-token-prediction head, one layer that continues the target's own hidden states",
            ("genai",),
            greedy="A multi-token-prediction head works in greedy decoding only; switch sampling off.",
            constant=True,
            copies=False,  # its target is exported in parts, for which GenAI has no prompt lookup
            prefix_caching=False,
            concurrent=False,
            mode="mtp_mode",
        ),
        DraftKind("server", "that of a server that speculates as configured at its start", ("server",), copies=False),
    )
}
"""All kinds of draft."""


Source = Literal["model", "lookup", "suffix"]
"""Source of proposals: draft model, prompt lookup or suffix tree."""
SOURCES: dict[Source, str] = {
    "model": "the draft",
    "lookup": "prompt lookup",
    "suffix": "the suffix tree",
}
"""Names for use in a sentence."""

Fields = dict[str, Any]
"""Settings of other software, by their names there."""


@dataclass(frozen=True)
class Policy:
    """A stopping rule: value of the setting `policy`, and its label among choices."""

    name: str
    label: str


@dataclass(frozen=True)
class Drafter:
    """A proposer: value of the setting `drafter`, its label among choices, and its name in a sentence.

    `sources`: where its proposals come from; `proposals`: what to call them.
    """

    name: str
    label: str
    words: str
    proposals: str
    sources: tuple[Source, ...]

    @property
    def model(self) -> bool:
        return "model" in self.sources


@dataclass(frozen=True)
class Strategy(ABC):
    """A drafter and when it stops. The first line of a subclass's docstring is its explanation for users.

    Class attributes:
        name: short name, such as "lookup".
        what: name in messages; by default, the setting that distinguishes it from others.
        drafter, policy: values of the two settings that select it.
        drafts: kinds of draft that support it.
        needs_costs: whether it needs step costs, which require a KV cache.
    """

    name: ClassVar[str]
    what: ClassVar[str]
    drafter: ClassVar[Drafter]
    policy: ClassVar[Policy]
    drafts: ClassVar[tuple[DraftKindName, ...]] = ("model", "translated", "eagle3")
    needs_costs: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "what" not in vars(cls) and hasattr(cls, "policy"):
            cls.what = f"policy {cls.policy.name}" if cls.drafter is DRAFT_MODEL else f"drafter {cls.drafter.name}"

    @property
    @abstractmethod
    def words(self) -> str:
        """Short description of the lookahead, such as "lookahead 4"."""

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

    @classmethod
    def proposes(cls, draft: DraftKindName | None, engine: EngineName) -> bool:
        """Whether an engine that knows the strategy supports it for pairs with this kind of draft."""
        if not cls.drafter.model:
            return draft is None or DRAFT_KINDS[draft].copies
        if draft not in cls.drafts or engine not in DRAFT_KINDS[draft].engines:
            return False
        return draft != "eagle3" or cls.name in ENGINES[engine].heads

    def unfit(self, draft: DraftKindName) -> str | None:
        """Return why this kind of draft cannot propose this way on any engine, as a sentence, or None."""
        return None

    def genai(self) -> Fields | None:
        """Return fields for OpenVINO GenAI's `GenerationConfig`; None if unsupported."""
        return None

    def vllm(self) -> Fields | None:
        """Return vLLM's `--speculative-config`, without the draft model; None if unsupported."""
        return None

    def llama_cpp(self) -> list[str] | None:
        """Return options for llama.cpp's server, without the draft model; None if unsupported."""
        return None


NO_DRAFTER = Drafter("none", "Nobody", "nobody", "no proposals", ())
DRAFT_MODEL = Drafter("model", "Draft model", "draft model", "the draft's proposals", ("model",))
PROMPT_LOOKUP = Drafter("lookup", "Prompt lookup", "prompt lookup", "prompt lookup's proposals", ("lookup",))
BOTH = Drafter(
    "both", "Both: copies where they pay", "draft model and suffix tree", "all proposals", ("model", "suffix")
)
CONSTANT = Policy("constant", "Constant")
CONFIDENCE = Policy("confidence", "Confidence threshold")
AUTOMATIC = Policy("auto", "Automatic")

STRATEGIES: dict[str, type[Strategy]] = {}
"""Strategies that settings can name, by short name, in display order."""

Registered = TypeVar("Registered", bound=type[Strategy])


def register(strategy: Registered) -> Registered:
    """Add a strategy to the registry; a class decorator."""
    STRATEGIES[strategy.name] = strategy
    return strategy


_ANY: tuple[DraftKindName, ...] = ("model", "translated", "eagle3")
_CONSTANT = (*_ANY, "dflash", "mtp")
_NEVER_BELOW = 1e-30  # GenAI reads a threshold of 0 as unset
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


@dataclass(frozen=True)
class Plain(Strategy):
    """The target alone: nothing is proposed."""

    drafter = NO_DRAFTER

    @property
    def words(self) -> str:
        return "plain"


@register
@dataclass(frozen=True)
class Constant(Strategy):
    """The draft proposes the same number of tokens in every round."""

    num_assistant_tokens: int

    name = "constant"
    drafter = DRAFT_MODEL
    policy = CONSTANT
    drafts = _CONSTANT

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


@register
@dataclass(frozen=True)
class Heuristic(Strategy):
    """Two more tokens after a fully accepted round, one fewer after any other, as in transformers."""

    name = "heuristic"
    drafter = DRAFT_MODEL
    policy = _HEURISTIC

    @property
    def words(self) -> str:
        return "heuristic lookahead"


@register
@dataclass(frozen=True)
class Confidence(Strategy):
    """The draft stops once its own probability of what it last proposed falls below a threshold, or at the cap."""

    assistant_confidence_threshold: float
    max_assistant_tokens: int | None = None  # None: the engine has no cap

    name = "confidence"
    drafter = DRAFT_MODEL
    policy = CONFIDENCE
    drafts = _ANY

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


@register
@dataclass(frozen=True)
class Auto(Strategy):
    """As many tokens as pay off, given step costs and what was accepted so far."""

    max_assistant_tokens: int

    name = "auto"
    drafter = DRAFT_MODEL
    policy = AUTOMATIC
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
    drafts = ("server",)

    @property
    def words(self) -> str:
        return "the server's own lookahead"

    def unfit(self, draft: DraftKindName) -> str | None:
        """Refuse other drafts, which need a lookahead in each request."""
        if draft in self.drafts:
            return None
        return "Policy server is for remote engines; choose policy constant."


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


@register
@dataclass(frozen=True)
class Lookup(Strategy):
    """Prompt lookup: copies what followed an earlier occurrence of the last few tokens."""

    max_ngram_size: int
    num_assistant_tokens: int

    name = "lookup"
    drafter = PROMPT_LOOKUP
    policy = CONSTANT
    drafts = ()

    @property
    def words(self) -> str:
        return f"lookahead {self.num_assistant_tokens}, n-grams of up to {self.max_ngram_size}"

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


@register
@dataclass(frozen=True)
class Suffix(Strategy):
    """Suffix decoding: proposes what most often followed the last tokens before, as long as counts make it likely."""

    assistant_confidence_threshold: float
    max_assistant_tokens: int

    name = "suffix"
    drafter = SUFFIX_TREE
    policy = CONFIDENCE
    drafts = ()

    @property
    def words(self) -> str:
        return f"confidence threshold {self.assistant_confidence_threshold:g}"

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
class Both(Strategy):
    """In every round the draft, the suffix tree or nothing: what pays most."""

    max_ngram_size: int
    max_assistant_tokens: int

    name = "both"
    drafter = BOTH
    policy = AUTOMATIC
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


class Parameters(TextParameters, DraftParameters):
    """Settings of all strategies."""


def drafters() -> dict[str, Drafter]:
    return {strategy.drafter.name: strategy.drafter for strategy in STRATEGIES.values()}


def policies() -> dict[str, Policy]:
    return {strategy.policy.name: strategy.policy for strategy in STRATEGIES.values()}


def strategy_of(drafter: str, policy: str) -> type[Strategy] | None:
    """Return the strategy named by flat settings, or None."""
    named = (one for one in STRATEGIES.values() if (one.drafter.name, one.policy.name) == (drafter, policy))
    return next(named, None)


def strategies(
    engine: EngineName, draft: DraftKindName | None, drafter: str | None = None, policy: str | None = None
) -> Iterator[type[Strategy]]:
    """Yield the strategies an engine supports with this kind of draft (None: target alone) and these settings."""
    for strategy in STRATEGIES.values():
        named = drafter in (None, strategy.drafter.name) and policy in (None, strategy.policy.name)
        if named and strategy.name in ENGINES[engine].strategies and strategy.proposes(draft, engine):
            yield strategy


def engines_of(strategy: type[Strategy]) -> tuple[EngineName, ...]:
    """Return the engines that run a strategy, in display order."""
    return tuple(name for name, engine in ENGINES.items() if strategy.name in engine.strategies)


def shaping() -> frozenset[str]:
    """Return the settings that only affect some strategies."""
    return frozenset(name for strategy in STRATEGIES.values() for name in strategy.parameters())


def effective(strategy: type[Strategy], engine: EngineName) -> frozenset[str]:
    """Return the settings that affect a strategy on an engine."""
    return frozenset(name for name in strategy.parameters() if supports(engine, name))


def refusal(strategy: Strategy, engine: EngineName, *, kv_cache: bool = True) -> str | None:
    """Return why no pair can be decoded this way, naming the settings, or None."""
    if type(strategy) not in STRATEGIES.values():  # plain decoding
        return None
    if strategy.needs_costs and not kv_cache:
        return f"{strategy.what} needs the step costs of a KV cache, so kv_cache must be on"
    if strategy.name not in ENGINES[engine].strategies:
        other = "policy server" if engine == "server" else f"the {engines_of(type(strategy))[0]} engine"
        return f"the {engine} engine does not support {strategy.what}; choose {other}"
    return None


def pair_refusal(
    strategy: Strategy,
    draft: DraftKindName | None,
    engine: EngineName,
    *,
    sampling: bool = False,
    penalty: bool = False,
) -> str | None:
    """Return why a pair with this draft cannot be decoded this way, or None.

    `penalty`: a repetition penalty applies to tokens that a head may lack. With an EAGLE-3 head, GenAI 2026.4 refuses
    a confidence threshold in `generate()` and silently ignores it when stepped. A repetition penalty fails on
    prompt tokens that the head lacks.
    """
    if type(strategy) not in STRATEGIES.values() or draft is None:
        return None
    if draft == "server" and "server" not in strategy.drafts:
        return "This server speculates as it was configured at start-up; choose policy server."
    if not strategy.drafter.model:
        return None
    greedy = DRAFT_KINDS[draft].greedy
    if greedy is not None and sampling:
        return greedy
    if (unfit := strategy.unfit(draft)) is not None:
        return unfit
    if DRAFT_KINDS[draft].constant and not strategy.proposes(draft, engine):
        which = capitalised(DRAFT_KINDS[draft].noun)
        return f"{which} proposes a constant number of tokens in the {engine} engine; choose policy constant."
    if not strategy.proposes(draft, engine):
        others = [each for each in DRAFT_KINDS[draft].engines if strategy.proposes(draft, each)]
        or_engine = f", or the {others[0]} engine" if others else ""
        noun = DRAFT_KINDS[draft].noun
        return f"With {noun} the {engine} engine does not support {strategy.what}; choose policy constant{or_engine}."
    if draft == "eagle3" and engine == "genai" and penalty:
        return (
            "With this EAGLE-3 head the genai engine does not support a repetition penalty; "
            "set repetition_penalty to 1, or choose the traced engine."
        )
    return None
