"""Declarations of engines, kinds of draft, servers and strategies, and the registry of strategies.

A strategy is a frozen value whose fields are flat settings: `--num-assistant-tokens 4` is the field
`num_assistant_tokens` of `Constant`. Its class declares everything else: its drafter, where it runs, why it is
refused, and its form in other software. The page, terminal, sweep, benchmark, copied code and the docs' tables all
derive from these declarations.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

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
    speculative sampling keeps the target's distribution, None if unknown.
    """

    name: EngineName
    label: str
    words: str
    lacks: frozenset[str]
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
            lacks=frozenset(
                {"kv_cache", "alternatives", "max_assistant_tokens", "verification", "at_once"}
            ),  # its drafts have no cap
            concurrent=True,
            copies=2,  # of the target for each side, of the draft also to replay its proposals
            samples_exactly=False,
        ),
        EngineInfo(
            "traced",
            label="Traced: specdemo's own loop",
            words="traced engine",
            lacks=frozenset({"at_once"}),
            samples_exactly=True,
        ),
        EngineInfo(
            "server",
            label="A server",
            words="remote engine",
            # its drafts have no cap
            lacks=frozenset({"kv_cache", "alternatives", "max_assistant_tokens", "verification", "sequential"}),
            concurrent=True,
            local=False,
        ),
    )
}
"""All engines, in display order."""

LOCAL: tuple[EngineName, ...] = tuple(name for name, engine in ENGINES.items() if engine.local)
CONCURRENT: tuple[EngineName, ...] = tuple(name for name, engine in ENGINES.items() if engine.concurrent)


def supports(engine: EngineName, setting: str) -> bool:
    """Whether an engine supports a setting."""
    return setting not in ENGINES[engine].lacks


def engines_with(setting: str) -> tuple[EngineName, ...]:
    """Return the engines that support a setting."""
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
        """Whether a draft model takes part."""
        return "model" in self.sources


@dataclass(frozen=True)
class Strategy(ABC):
    """A drafter and when it stops. The first line of a subclass's docstring is its explanation for users.

    Class attributes:
        name: short name, such as "lookup".
        what: name in messages; by default, the setting that distinguishes it from others.
        drafter, policy: values of the two settings that select it.
        switch: a third setting that selects it if above 0, if any.
        engines: those that support it, the preferred one first.
        drafts: kinds of draft that support it; `heads`: engines where an EAGLE-3 head does.
        samples: whether the target may sample.
        needs_costs: whether it needs step costs, which require a KV cache.
        live: engines that apply changed settings while decoding.
    """

    name: ClassVar[str]
    what: ClassVar[str]
    drafter: ClassVar[Drafter]
    policy: ClassVar[Policy]
    switch: ClassVar[str | None] = None
    engines: ClassVar[tuple[EngineName, ...]] = ()
    drafts: ClassVar[tuple[DraftKindName, ...]] = ("model", "translated", "eagle3")
    heads: ClassVar[tuple[EngineName, ...]] = ("traced",)
    samples: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = False
    live: ClassVar[tuple[EngineName, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Derive `what` from the drafter and the policy."""
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
        """Return a one-sentence explanation for users."""
        return (cls.__doc__ or "").partition("\n")[0]

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        """Return the names of its settings."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def proposes(cls, draft: DraftKindName | None, engine: EngineName) -> bool:
        """Whether an engine that knows the strategy supports it for pairs with this kind of draft."""
        if not cls.drafter.model:
            return draft is None or DRAFT_KINDS[draft].copies
        if draft not in cls.drafts or engine not in DRAFT_KINDS[draft].engines:
            return False
        return draft != "eagle3" or engine in cls.heads

    def contradiction(self) -> str | None:
        """Return why its settings contradict each other, or None."""
        return None

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

    def transformers(self) -> Fields | None:
        """Return arguments of transformers' `generate()` or its assistant's config; None if unsupported."""
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


def drafters() -> dict[str, Drafter]:
    """Return all drafters by name."""
    return {strategy.drafter.name: strategy.drafter for strategy in STRATEGIES.values()}


def policies() -> dict[str, Policy]:
    """Return all policies by name."""
    return {strategy.policy.name: strategy.policy for strategy in STRATEGIES.values()}


def strategy_of(drafter: str, policy: str, switched: Collection[type[Strategy]]) -> type[Strategy] | None:
    """Return the strategy named by flat settings, or None. `switched`: strategies whose switch is on."""
    for strategy in STRATEGIES.values():
        chosen = [strategy] if strategy.switch is not None else []
        if (strategy.drafter.name, strategy.policy.name) == (drafter, policy) and chosen == [*switched]:
            return strategy
    return None


def strategies(
    engine: EngineName, draft: DraftKindName | None, drafter: str | None = None, policy: str | None = None
) -> Iterator[type[Strategy]]:
    """Yield the strategies an engine supports with this kind of draft (None: target alone) and these settings."""
    for strategy in STRATEGIES.values():
        named = drafter in (None, strategy.drafter.name) and policy in (None, strategy.policy.name)
        if named and engine in strategy.engines and strategy.proposes(draft, engine):
            yield strategy


def shaping() -> frozenset[str]:
    """Return the settings that only affect some strategies."""
    return frozenset(name for strategy in STRATEGIES.values() for name in strategy.parameters())


def effective(strategy: type[Strategy], engine: EngineName) -> frozenset[str]:
    """Return the settings that affect a strategy on an engine."""
    return frozenset(name for name in strategy.parameters() if supports(engine, name))


def refusal(strategy: Strategy, engine: EngineName, *, sampling: bool = False, kv_cache: bool = True) -> str | None:
    """Return why no pair can be decoded this way, naming the settings, or None."""
    if type(strategy) not in STRATEGIES.values():  # plain decoding and experimental strategies
        return None
    what = strategy.what if strategy.switch is None else f"{strategy.what} ({strategy.switch} above 0)"
    if strategy.needs_costs and not kv_cache:
        return f"{what} needs the step costs of a KV cache, so kv_cache must be on"
    if engine not in strategy.engines:
        other = "policy server" if engine == "server" else f"the {strategy.engines[0]} engine"
        return f"the {engine} engine does not support {what}; choose {other}"
    if sampling and not strategy.samples:
        return f"{what} needs greedy decoding; set do_sample to false"
    return strategy.contradiction()


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
    a confidence threshold in `generate()` and silently ignores it when stepped. It ignores a repetition penalty in
    trees; in chains it fails on prompt tokens that the head lacks.
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
