"""What engines, kinds of draft and servers declare, and strategies; the registry of strategies settings can name.

A strategy is a frozen value whose fields are flat settings, so that `--num-assistant-tokens 4` is the field
`num_assistant_tokens` of `Constant`. Its class says everything else about it: who proposes, where it runs, why it is
refused, and its form in other software. Page, terminal, sweep, benchmark and copied code read it from here.
Controls, checks, the wording of results and the docs' tables follow from these declarations.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

EngineName = Literal["genai", "traced", "served"]
DraftKindName = Literal["model", "translated", "eagle3", "dflash", "mtp", "gemma4_mtp", "server", "request"]
ServerKind = Literal["llama.cpp", "vllm", "ovms", "sglang", "openai"]
"""Servers whose answers are understood; "openai" is any other that speaks OpenAI's protocol."""

SERVERS: dict[ServerKind, str] = {
    "llama.cpp": "llama.cpp",
    "vllm": "vLLM",
    "ovms": "OpenVINO Model Server",
    "sglang": "SGLang",
    "openai": "an OpenAI-compatible server",
}
"""Their names in a sentence."""


@dataclass(frozen=True)
class EngineInfo:
    """An engine: what it is called, and what it cannot do.

    `label` names it among choices, `words` in a sentence. `lacks`: the settings that have no meaning there.
    `concurrent`: it serves several requests at once. `local`: models are loaded on this machine.
    """

    name: EngineName
    label: str
    words: str
    lacks: frozenset[str]
    concurrent: bool = False
    local: bool = True


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
        ),
        EngineInfo(
            "traced",
            label="Traced: specdemo's own loop",
            words="traced engine",
            lacks=frozenset({"at_once"}),
        ),
        EngineInfo(
            "served",
            label="A server",
            words="remote engine",
            # its drafts have no cap
            lacks=frozenset({"kv_cache", "alternatives", "max_assistant_tokens", "verification", "sequential"}),
            concurrent=True,
            local=False,
        ),
    )
}
"""All engines, in the order in which they are offered."""

LOCAL: tuple[EngineName, ...] = tuple(name for name, engine in ENGINES.items() if engine.local)
CONCURRENT: tuple[EngineName, ...] = tuple(name for name, engine in ENGINES.items() if engine.concurrent)


def supports(engine: EngineName, setting: str) -> bool:
    """Whether a setting has a meaning on an engine."""
    return setting not in ENGINES[engine].lacks


def engines_with(setting: str) -> tuple[EngineName, ...]:
    """The engines on which a setting has a meaning."""
    return tuple(engine for engine in ENGINES if supports(engine, setting))


PARTIAL = frozenset[str]().union(*(engine.lacks for engine in ENGINES.values()))
"""Settings that have no meaning on some engine."""


@dataclass(frozen=True)
class DraftKind:
    """A kind of draft: which engines can load it, and what it is.

    `greedy`: why it cannot propose for a target that samples, in a sentence; None if it can. `copies`: whether its
    pair can copy from text in its place.
    """

    name: DraftKindName
    what: str
    engines: tuple[EngineName, ...]
    greedy: str | None = None
    copies: bool = True


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
        DraftKind("eagle3", "an EAGLE-3 head, which reads the target's hidden states", LOCAL),
        DraftKind(
            "dflash",
            "a DFlash draft, which proposes a whole round in one pass from the target's hidden states",
            ("genai",),
            greedy="A DFlash draft works in greedy decoding only; switch sampling off.",
        ),
        DraftKind(
            "mtp",
            "a multi-token-prediction head, one layer that continues the target's own hidden states",
            ("genai",),
            greedy="A multi-token-prediction head works in greedy decoding only; switch sampling off.",
            copies=False,  # its target is exported in parts, for which GenAI has no prompt lookup
        ),
        DraftKind("gemma4_mtp", "Gemma 4's multi-token-prediction head, which no engine here can load", ()),
        DraftKind("server", "that of a server that speculates as configured at its start", ("served",), copies=False),
        DraftKind("request", "that of a server that is asked in each request how to speculate", ("served",)),
    )
}
"""All kinds of draft."""


Source = Literal["model", "lookup", "suffix", "table"]
"""Where a proposal comes from: a draft model, a text's n-grams, its suffix tree, a table of the target's answers."""
SOURCES: dict[Source, str] = {
    "model": "the draft",
    "lookup": "prompt lookup",
    "suffix": "the suffix tree",
    "table": "the target's table",
}
"""Their names in a sentence."""

Fields = dict[str, Any]
"""Settings of other software, by their names there."""


@dataclass(frozen=True)
class Policy:
    """When proposing stops: the value of the setting `policy`, and its label among choices."""

    name: str
    label: str


@dataclass(frozen=True)
class Drafter:
    """Who proposes: the value of the setting `drafter`, its label among choices, and its name in a sentence.

    `sources`: what its proposals come from; `proposals`: what they are called.
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
class Strategy:
    """Who proposes tokens, and when it stops. The first line of a class's docstring is its explanation for users.

    Class attributes:
        name: its short name, such as "both auto".
        what: what messages call it: the setting that distinguishes it from others, unless it says otherwise.
        drafter, policy: the values of the two settings that choose it.
        switch: a third setting that chooses it where it is above 0, if any.
        engines: those that can decode this way, the preferred one first.
        drafts: the kinds of draft that can propose this way; `heads`: the engines where an EAGLE-3 head can.
        samples: whether the target may sample.
        needs_costs: whether step costs are required, which exist only with a KV cache.
        live: the engines that follow its settings while they decode.
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
        """Derive what follows from the drafter and the policy."""
        if "what" not in vars(cls) and hasattr(cls, "policy"):
            cls.what = f"policy {cls.policy.name}" if cls.drafter is DRAFT_MODEL else f"drafter {cls.drafter.name}"

    @property
    def words(self) -> str:
        """How many tokens it proposes, in a few words: "lookahead 4"."""
        raise NotImplementedError

    @property
    def fixed_lookahead(self) -> int | None:
        """Tokens proposed in every round, if it is the same number; a text may have fewer to copy."""
        return getattr(self, "num_assistant_tokens", None)

    @classmethod
    def explanation(cls) -> str:
        """What it does, in one sentence."""
        return (cls.__doc__ or "").partition("\n")[0]

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        """The flat settings that shape it."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def proposes(cls, draft: DraftKindName | None, engine: EngineName) -> bool:
        """Whether a pair with such a draft can be decoded this way on an engine that knows the strategy."""
        if not cls.drafter.model:
            return draft is None or DRAFT_KINDS[draft].copies
        if draft not in cls.drafts or engine not in DRAFT_KINDS[draft].engines:
            return False
        return draft != "eagle3" or engine in cls.heads

    def contradiction(self) -> str | None:
        """Why its settings contradict each other; None if they do not."""
        return None

    def unfit(self, draft: DraftKindName) -> str | None:
        """Why such a draft cannot propose this way, in a sentence; None if nothing but the engine could forbid it."""
        return None

    def genai(self) -> Fields | None:
        """As fields of OpenVINO GenAI's `GenerationConfig`; None: it cannot."""
        return None

    def ovms(self) -> Fields | None:
        """As fields of a request to OpenVINO Model Server; None: it cannot."""
        return self.genai()

    def vllm(self) -> Fields | None:
        """As vLLM's `--speculative-config`, without the draft model; None: it cannot."""
        return None

    def llama_cpp(self) -> list[str] | None:
        """As options of llama.cpp's server, without the draft model; None: it cannot."""
        return None

    def transformers(self) -> Fields | None:
        """As arguments of transformers' `generate()`, or of its assistant's generation config; None: it cannot."""
        return None


NOBODY = Drafter("none", "Nobody", "nobody", "no proposals", ())
DRAFT_MODEL = Drafter("model", "Draft model", "draft model", "the draft's proposals", ("model",))
PROMPT_LOOKUP = Drafter("lookup", "Prompt lookup", "prompt lookup", "prompt lookup's proposals", ("lookup",))
BOTH = Drafter(
    "both", "Both: lookup where it pays", "draft model and prompt lookup", "all proposals", ("model", "lookup")
)
CONSTANT = Policy("constant", "Constant")
CONFIDENCE = Policy("confidence", "Confidence threshold")
AUTOMATIC = Policy("auto", "Automatic")

STRATEGIES: dict[str, type[Strategy]] = {}
"""Every strategy that settings can name, by its short name, in the order in which they are offered."""

Registered = TypeVar("Registered", bound=type[Strategy])


def register(strategy: Registered) -> Registered:
    """Let settings name a strategy; a class decorator."""
    STRATEGIES[strategy.name] = strategy
    return strategy


def drafters() -> dict[str, Drafter]:
    """All drafters by name."""
    return {strategy.drafter.name: strategy.drafter for strategy in STRATEGIES.values()}


def policies() -> dict[str, Policy]:
    """All policies by name."""
    return {strategy.policy.name: strategy.policy for strategy in STRATEGIES.values()}


def strategy_of(drafter: str, policy: str, switched: Collection[type[Strategy]]) -> type[Strategy] | None:
    """The strategy that flat settings name; `switched` are those whose switch is on. None if there is none."""
    for strategy in STRATEGIES.values():
        chosen = [strategy] if strategy.switch is not None else []
        if (strategy.drafter.name, strategy.policy.name) == (drafter, policy) and chosen == [*switched]:
            return strategy
    return None


def strategies(
    engine: EngineName, draft: DraftKindName | None, drafter: str | None = None, policy: str | None = None
) -> Iterator[type[Strategy]]:
    """Those that an engine supports with such a draft (None: target alone) and that these settings can name."""
    for strategy in STRATEGIES.values():
        named = drafter in (None, strategy.drafter.name) and policy in (None, strategy.policy.name)
        if named and engine in strategy.engines and strategy.proposes(draft, engine):
            yield strategy


def shaping() -> frozenset[str]:
    """Settings that shape some strategies and have no effect in others."""
    return frozenset(name for strategy in STRATEGIES.values() for name in strategy.parameters())


def effective(strategy: type[Strategy], engine: EngineName) -> frozenset[str]:
    """The settings that shape a strategy on an engine."""
    return frozenset(name for name in strategy.parameters() if supports(engine, name))


def refusal(strategy: Strategy, engine: EngineName, *, sampling: bool = False, kv_cache: bool = True) -> str | None:
    """Why no pair can be decoded this way, in terms of the settings that name it; None if some pair can."""
    if type(strategy) not in STRATEGIES.values():  # plain decoding, and strategies for experiments
        return None
    what = strategy.what if strategy.switch is None else f"{strategy.what} ({strategy.switch} above 0)"
    if strategy.needs_costs and not kv_cache:
        return f"{what} needs the step costs of a KV cache, so kv_cache must be on"
    if engine not in strategy.engines:
        return f"the {engine} engine does not support {what}; choose the {strategy.engines[0]} engine"
    if sampling and not strategy.samples:
        return f"{what} needs greedy decoding; set do_sample to False"
    return strategy.contradiction()


_CONSTANT_ONLY: dict[DraftKindName, str] = {"dflash": "A DFlash draft", "mtp": "A multi-token-prediction head"}


def pair_refusal(
    strategy: Strategy,
    draft: DraftKindName | None,
    engine: EngineName,
    *,
    sampling: bool = False,
    penalty: bool = False,
) -> str | None:
    """Why a pair with such a draft cannot be decoded this way; None if it can. `penalty`: on tokens a head may lack.

    With an EAGLE-3 head, GenAI 2026.4 refuses a confidence threshold in `generate()` and silently ignores it
    when stepped. It ignores a repetition penalty in trees; in chains it fails on prompt tokens that the head lacks.
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
    if draft in _CONSTANT_ONLY and not strategy.proposes(draft, engine):
        what = _CONSTANT_ONLY[draft]
        return f"{what} proposes a constant number of tokens in the genai engine; choose policy constant."
    if not strategy.proposes(draft, engine):
        return (
            f"With an EAGLE-3 head the {engine} engine does not support a confidence threshold; "
            "choose the constant policy, or the traced engine."
        )
    if draft == "eagle3" and engine == "genai" and penalty:
        return (
            "With this EAGLE-3 head the genai engine does not support a repetition penalty; "
            "set repetition_penalty to 1, or choose the traced engine."
        )
    return None
