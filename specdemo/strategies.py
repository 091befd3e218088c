"""Decoding strategies, and the engines and kinds of draft that can use them.

To add a strategy, write its class here with `@register`, name it in the engines that run it, and register its
proposer in `specdemo/decoding/`. It is a frozen value whose fields are flat settings: `--num-assistant-tokens 4` is
the field `num_assistant_tokens` of `Constant`. Page, terminal, measurements, copied code and docs derive from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field

from specdemo.errors import capitalised

EngineName = Literal["genai", "traced", "server"]
HeadName = Literal["eagle3", "dflash", "mtp"]  # drafters that read the target's hidden states
DraftKindName = HeadName | Literal["model", "translated", "server"]
ServerKind = Literal["llama.cpp", "openai"]  # "openai": any other with its protocol

SERVERS: dict[ServerKind, str] = {"llama.cpp": "llama.cpp", "openai": "an OpenAI-compatible server"}
"""Names for use in a sentence."""


@dataclass(frozen=True)
class EngineInfo:
    """`label` is an engine's name among choices, `words` in a sentence.

    `strategies` names those it runs, `heads` those it runs with an EAGLE-3 head, `live` those whose changed settings
    it applies while decoding; `lacks`: settings it does not support. `concurrent`: it serves several requests at
    once. `local`: models are loaded on this machine; `copies` of each. `samples_exactly`: sampling keeps the target's
    distribution, None if unknown.
    """

    name: EngineName
    label: str
    words: str
    strategies: tuple[str, ...]
    heads: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    lacks: frozenset[str] = frozenset()
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
            strategies=("constant", "confidence", "lookup"),
            heads=("constant",),
            lacks=frozenset({"kv_cache", "max_assistant_tokens"}),
            concurrent=True,
            copies=2,  # of the target for each side, of the draft also to replay its proposals
            samples_exactly=False,
        ),
        EngineInfo(
            "traced",
            label="Traced: specdemo's own loop",
            words="traced engine",
            strategies=("constant", "heuristic", "confidence", "auto", "lookup", "suffix"),
            heads=("constant", "heuristic", "confidence", "auto"),
            live=("constant", "confidence", "suffix"),
            samples_exactly=True,
        ),
        EngineInfo(
            "server",
            label="A server",
            words="remote engine",
            strategies=("server",),
            lacks=frozenset({"kv_cache", "max_assistant_tokens", "sequential"}),
            concurrent=True,
            local=False,
        ),
    )
}

LOCAL: tuple[EngineName, ...] = tuple(name for name, engine in ENGINES.items() if engine.local)
CONCURRENT: tuple[EngineName, ...] = tuple(name for name, engine in ENGINES.items() if engine.concurrent)
PARTIAL = frozenset[str]().union(*(engine.lacks for engine in ENGINES.values()))
"""Settings that some engine does not support."""


def supports(engine: EngineName, setting: str) -> bool:
    return setting not in ENGINES[engine].lacks


@dataclass(frozen=True)
class DraftKind:
    """A kind of draft, with a description and the engines that load it.

    `greedy`: it cannot sample. `copies`: its pair also supports copying from text. `limited`: GenAI speculates with
    it in greedy decoding, with a constant number of proposals, one request at a time, and without prefix caching.
    """

    name: DraftKindName
    what: str
    engines: tuple[EngineName, ...]
    greedy: bool = False
    copies: bool = True
    limited: bool = False

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
            "a draft with a different tokenizer, whose text is encoded anew for the target",
            ("traced",),
            greedy=True,
        ),
        DraftKind("eagle3", "an EAGLE-3 head, which reads the target's hidden states", LOCAL),
        DraftKind(
            "dflash",
            "a DFlash draft, which proposes a whole round in one pass from the target's hidden states",
            ("genai",),
            greedy=True,
            limited=True,
        ),
        DraftKind(
            "mtp",
            "a multi-token-prediction head, one layer that continues the target's own hidden states",
            ("genai",),
            greedy=True,
            copies=False,  # its target is exported in parts, for which GenAI has no prompt lookup
            limited=True,
        ),
        DraftKind("server", "that of a server that speculates as configured at its start", ("server",), copies=False),
    )
}


@dataclass(frozen=True)
class Policy:
    name: str
    label: str


@dataclass(frozen=True)
class Drafter:
    """A proposer; `subject` is its name in a sentence. `model`: the draft model; others copy from the text so far."""

    name: str
    label: str
    subject: str
    model: bool = False


Fields = dict[str, Any]  # of other software, by their names there


@dataclass(frozen=True)
class Strategy:
    """A drafter and when it stops. The first line of a subclass's docstring is its explanation for users.

    `drafter` and `policy` are the settings that select it, `drafts` the kinds of draft that support it. `template`
    describes its settings. `needs_costs`: it needs step costs, which require a KV cache.
    """

    name: ClassVar[str]
    drafter: ClassVar[Drafter]
    policy: ClassVar[Policy]
    template: ClassVar[str]
    drafts: ClassVar[tuple[DraftKindName, ...]] = ("model", "translated", "eagle3")
    needs_costs: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """Short description of the lookahead, such as "lookahead 4"."""
        return self.template.format(**vars(self))

    @property
    def what(self) -> str:
        """The setting that distinguishes it from others."""
        return f"policy {self.policy.name}" if self.drafter.model else f"drafter {self.drafter.name}"

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

    # Its form in other software; None if that cannot decode this way.

    def genai(self) -> Fields | None:
        """Return fields for OpenVINO GenAI's `GenerationConfig`."""
        return None

    def vllm(self) -> Fields | None:
        """Return vLLM's `--speculative-config`, without the draft model."""
        return None

    def llama_cpp(self) -> list[str] | None:
        """Return options for llama.cpp's server, without the draft model."""
        return None


NO_DRAFTER = Drafter("none", "Nobody", "nobody")
DRAFT_MODEL = Drafter("model", "Draft model", "the draft", model=True)
SERVERS_OWN = Drafter("model", "The server's own drafter", "the server's drafter", model=True)  # of any kind
PROMPT_LOOKUP = Drafter("lookup", "Prompt lookup", "prompt lookup")
SUFFIX_TREE = Drafter("suffix", "Suffix tree", "the suffix tree")
CONSTANT = Policy("constant", "Constant")
CONFIDENCE = Policy("confidence", "Confidence threshold")

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
        description="the draft stops proposing once its own probability falls below this",
    )
    max_assistant_tokens: int = Field(
        20, ge=1, le=64, title="Most proposals", description="where the draft stops proposing, however confident"
    )
    max_ngram_size: int = Field(
        3, ge=1, le=16, title="N-gram size", description="longest run of recent tokens to look up in the text so far"
    )


@dataclass(frozen=True)
class Plain(Strategy):
    """The target alone: nothing is proposed."""

    drafter = NO_DRAFTER
    template = "plain"


@register
@dataclass(frozen=True)
class Constant(Strategy):
    """The draft proposes the same number of tokens in every round."""

    num_assistant_tokens: int

    name = "constant"
    drafter = DRAFT_MODEL
    policy = CONSTANT
    drafts = ("model", "translated", "eagle3", "dflash", "mtp")
    template = "lookahead {num_assistant_tokens}"

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
    policy = Policy("heuristic", "Heuristic")
    template = "heuristic lookahead"


_NEVER_BELOW = 1e-30  # GenAI reads a threshold of 0 as unset
_MOST = Parameters.model_fields["max_assistant_tokens"].default  # also transformers' own limit for its assistant


@register
@dataclass(frozen=True)
class Confidence(Strategy):
    """The draft stops once its own probability of what it last proposed falls below a threshold, or at the cap."""

    assistant_confidence_threshold: float
    max_assistant_tokens: int | None = None  # None: the engine has no cap

    name = "confidence"
    drafter = DRAFT_MODEL
    policy = CONFIDENCE
    template = "confidence threshold {assistant_confidence_threshold:g}"

    def genai(self) -> Fields:
        """Return the threshold alone: GenAI has no cap."""
        return {"assistant_confidence_threshold": self.assistant_confidence_threshold or _NEVER_BELOW}

    def llama_cpp(self) -> list[str]:
        threshold = ["--spec-draft-p-min", f"{self.assistant_confidence_threshold:g}"]
        return ["--spec-draft-n-max", str(self.max_assistant_tokens or _MOST), *threshold]


@register
@dataclass(frozen=True)
class Auto(Strategy):
    """As many tokens as pay off, given step costs and what was accepted so far."""

    max_assistant_tokens: int

    name = "auto"
    drafter = DRAFT_MODEL
    policy = Policy("auto", "Automatic")
    needs_costs = True
    template = "automatic lookahead"


@register
@dataclass(frozen=True)
class ServerDefault(Strategy):
    """However the server was configured to speculate when it was started."""

    name = "server"
    drafter = SERVERS_OWN
    policy = Policy("server", "As the server was started")
    drafts = ("server",)
    template = "the server's own lookahead"


@register
@dataclass(frozen=True)
class Lookup(Strategy):
    """Prompt lookup: copies what followed an earlier occurrence of the last few tokens."""

    max_ngram_size: int
    num_assistant_tokens: int

    name = "lookup"
    drafter = PROMPT_LOOKUP
    policy = CONSTANT
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
    drafter = SUFFIX_TREE
    policy = CONFIDENCE
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


def drafters() -> dict[str, Drafter]:
    return {one.drafter.name: one.drafter for one in STRATEGIES.values() if one.drafter is not SERVERS_OWN}


def policies() -> dict[str, Policy]:
    return {strategy.policy.name: strategy.policy for strategy in STRATEGIES.values()}


def strategy_of(drafter: str, policy: str) -> type[Strategy] | None:
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
    return tuple(name for name, engine in ENGINES.items() if strategy.name in engine.strategies)


def shaping() -> frozenset[str]:
    """Return the settings that only affect some strategies."""
    return frozenset(name for strategy in STRATEGIES.values() for name in strategy.parameters())


def effective(strategy: type[Strategy], engine: EngineName) -> frozenset[str]:
    return frozenset(name for name in strategy.parameters() if supports(engine, name))


def refusal(strategy: Strategy, engine: EngineName, *, kv_cache: bool = True) -> str | None:
    """Return why no pair can be decoded this way, naming the settings, or None."""
    if isinstance(strategy, Plain):
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

    With an EAGLE-3 head, GenAI 2026.4 refuses a confidence threshold in `generate()` and silently ignores it when
    stepped. A repetition `penalty` fails on prompt tokens that the head lacks.
    """
    if isinstance(strategy, Plain) or draft is None:
        return None
    if draft == "server" and not isinstance(strategy, ServerDefault):
        return "This server speculates as it was configured at start-up; choose policy server."
    if not strategy.drafter.model:
        return None
    kind = DRAFT_KINDS[draft]
    if kind.greedy and sampling:
        return f"{capitalised(kind.noun)} works in greedy decoding only; switch sampling off."
    if draft != "server" and isinstance(strategy, ServerDefault):
        return "Policy server is for remote engines; choose policy constant."
    if not strategy.proposes(draft, engine):
        if kind.limited:
            what = f"{capitalised(kind.noun)} proposes a constant number of tokens in the {engine} engine"
            return f"{what}; choose policy constant."
        others = [each for each in kind.engines if strategy.proposes(draft, each)]
        or_engine = f", or the {others[0]} engine" if others else ""
        what = f"With {kind.noun} the {engine} engine does not support {strategy.what}"
        return f"{what}; choose policy constant{or_engine}."
    if draft == "eagle3" and engine == "genai" and penalty:
        return (
            "With this EAGLE-3 head the genai engine does not support a repetition penalty; "
            "set repetition_penalty to 1, or choose the traced engine."
        )
    return None
