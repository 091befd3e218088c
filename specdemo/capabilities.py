"""Engines and kinds of draft, and the strategies and settings that each supports.

Other combinations are refused before a model is loaded: `refusal` and `pair_refusal` give the reason and a remedy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from specdemo.errors import capitalised
from specdemo.strategies import STRATEGIES, Constant, DraftKindName, Plain, Strategy

EngineName = str  # a key of ENGINES
ServerKind = Literal["llama.cpp", "openai"]  # "openai": any other with its protocol

SERVERS: dict[ServerKind, str] = {"llama.cpp": "llama.cpp", "openai": "an OpenAI-compatible server"}
"""Names for use in a sentence."""


@dataclass(frozen=True)
class EngineInfo:
    """What an engine is and can do. `label` names it in a list of choices, `noun` in a sentence.

    `implementation` is its class, imported when it is loaded. It runs `strategies`, and those in `with_heads` also
    with such a draft, and loads `drafts`. Settings of `live` strategies can be changed during a run.
    `unsupported`: settings that it refuses. `concurrent`: it serves several requests at once. `local`: it loads
    models on this machine, `copies` of the target, and more memory for passes of `fixed_lengths`. `samples_exactly`:
    whether sampling keeps the target's distribution; None if unknown. `repeats_bits`: greedy outputs stay identical
    with quantized activations.
    """

    name: EngineName
    label: str
    noun: str
    implementation: str
    strategies: tuple[str, ...]
    drafts: tuple[DraftKindName, ...]
    with_heads: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    unsupported: frozenset[str] = frozenset()
    concurrent: bool = False
    local: bool = True
    copies: int = 1
    fixed_lengths: bool = False
    samples_exactly: bool | None = None
    repeats_bits: bool = False
    # for targets and drafts that differ from most
    compares_special_tokens: bool = False  # of target and draft, by their ids
    penalises_heads: bool = True  # a repetition penalty works if the head lacks some of the target's tokens
    when_refused: str = ""  # another likely reason if no proposal was accepted


ENGINES: dict[EngineName, EngineInfo] = {}


def register(engine: EngineInfo) -> None:
    ENGINES[engine.name] = engine


DEFAULT_ENGINE, SERVER_ENGINE = "genai", "server"

register(
    EngineInfo(
        DEFAULT_ENGINE,
        label="OpenVINO GenAI",
        noun="GenAI engine",
        implementation="specdemo.engines.genai.engine:GenAIEngine",
        strategies=("constant", "confidence", "lookup"),
        drafts=("model", "eagle3"),
        with_heads=("constant",),
        unsupported=frozenset({"kv_cache", "max_assistant_tokens"}),
        concurrent=True,
        copies=2,  # of the target for each side, of the draft also to replay its proposals
        samples_exactly=False,
        compares_special_tokens=True,
        penalises_heads=False,
        when_refused="A faulty load is possible, too (openvino.genai issue 4425): restart specdemo and compare.",
    )
)
register(
    EngineInfo(
        "traced",
        label="Traced: specdemo's own loop",
        noun="traced engine",
        implementation="specdemo.engines.traced.engine:TracedEngine",
        strategies=("constant", "confidence", "auto", "lookup", "suffix", "combined"),
        drafts=("model", "translated", "eagle3"),
        with_heads=("constant", "confidence", "auto", "combined"),
        live=("constant", "confidence", "suffix"),
        fixed_lengths=True,
        samples_exactly=True,
        repeats_bits=True,
    )
)
register(
    EngineInfo(
        SERVER_ENGINE,
        label="A server",
        noun="server engine",
        implementation="specdemo.engines.server.engine:ServerEngine",
        strategies=("server",),
        drafts=("server",),
        unsupported=frozenset({"kv_cache", "max_assistant_tokens", "sequential"}),
        concurrent=True,
        local=False,
        when_refused="Check which draft the server was started with.",
    )
)


def local_engines() -> tuple[EngineName, ...]:
    return tuple(name for name, engine in ENGINES.items() if engine.local)


def engine_that(can: Callable[[EngineInfo], bool]) -> str:
    """Name an engine in a sentence that advises it, such as "the traced engine"."""
    return next((f"the {engine.name} engine" for engine in ENGINES.values() if can(engine)), "another engine")


def live_parameters() -> tuple[str, ...]:
    live = (STRATEGIES[strategy] for engine in ENGINES.values() for strategy in engine.live)
    return tuple(dict.fromkeys(name for strategy in live for name in strategy.parameters()))


def supports(engine: EngineName, setting: str) -> bool:
    return setting not in ENGINES[engine].unsupported


@dataclass(frozen=True)
class DraftKind:
    """A kind of draft. `noun` names it in a sentence.

    `greedy_only`: it cannot sample. `allows_lookup`: its pair also supports prompt lookup and suffix decoding.
    `head`: it reads the target's hidden states.
    """

    name: DraftKindName
    noun: str
    greedy_only: bool = False
    allows_lookup: bool = True
    head: bool = False

    @property
    def engines(self) -> tuple[EngineName, ...]:
        return tuple(name for name, engine in ENGINES.items() if self.name in engine.drafts)


DRAFT_KINDS: dict[DraftKindName, DraftKind] = {
    kind.name: kind
    for kind in (
        DraftKind("model", "a model with the target's tokenizer"),
        # its text is encoded anew for the target
        DraftKind("translated", "a draft with a different tokenizer", greedy_only=True),
        DraftKind("eagle3", "an EAGLE-3 head", head=True),
        DraftKind("server", "a server's draft", allows_lookup=False),
    )
}


def proposes(strategy: type[Strategy], draft: DraftKindName | None, engine: EngineName) -> bool:
    """Whether an engine that knows the strategy supports it for pairs with this kind of draft."""
    if not strategy.drafter.model:
        return draft is None or DRAFT_KINDS[draft].allows_lookup
    if draft not in strategy.drafts or engine not in DRAFT_KINDS[draft].engines:
        return False
    return not DRAFT_KINDS[draft].head or strategy.name in ENGINES[engine].with_heads


def strategies(
    engine: EngineName, draft: DraftKindName | None, drafter: str | None = None, policy: str | None = None
) -> Iterator[type[Strategy]]:
    """Yield the strategies an engine supports with this kind of draft (None: target alone) and these settings."""
    for strategy in STRATEGIES.values():
        selected = drafter in (None, strategy.drafter.name) and policy in (None, strategy.policy.name)
        if selected and strategy.name in ENGINES[engine].strategies and proposes(strategy, draft, engine):
            yield strategy


def engines_of(strategy: type[Strategy]) -> tuple[EngineName, ...]:
    return tuple(name for name, engine in ENGINES.items() if strategy.name in engine.strategies)


def used_parameters(strategy: type[Strategy], engine: EngineName) -> frozenset[str]:
    return frozenset(name for name in strategy.parameters() if supports(engine, name))


def refusal(strategy: Strategy, engine: EngineName, *, kv_cache: bool = True) -> str | None:
    """Return why no pair can be decoded this way, naming the settings, or None."""
    if isinstance(strategy, Plain):
        return None
    setting = " ".join(strategy.setting())
    if strategy.needs_costs and not kv_cache:
        return f"{setting} needs the step costs of a KV cache, so kv_cache must be on"
    if strategy.name not in ENGINES[engine].strategies:
        others = [name for name in engines_of(type(strategy)) if ENGINES[name].local == ENGINES[engine].local]
        first = " ".join(STRATEGIES[ENGINES[engine].strategies[0]].setting())
        other = f"the {others[0]} engine" if others else first
        return f"the {engine} engine does not support {setting}; choose {other}"
    return None


def pair_refusal(
    strategy: Strategy, draft: DraftKindName | None, engine: EngineName, *, sampling: bool, penalty: bool
) -> str | None:
    """Return why a pair with this draft cannot be decoded this way, or None.

    With an EAGLE-3 head, GenAI 2026.4 refuses a confidence threshold in `generate()` and silently ignores it when
    stepped. A repetition `penalty` fails on prompt tokens that the head lacks.
    """
    if isinstance(strategy, Plain) or draft is None:
        return None
    kind, by_model = DRAFT_KINDS[draft], strategy.drafter.model
    if by_model and kind.greedy_only and sampling:
        return f"{capitalised(kind.noun)} works in greedy decoding only; switch sampling off."
    if not proposes(type(strategy), draft, engine):
        engines = [name for name in kind.engines if proposes(type(strategy), draft, name)]
        or_engine = f", or the {engines[0]} engine" if engines else ""
        reason = f"With {kind.noun} the {engine} engine does not support {' '.join(strategy.setting())}"
        other = next(strategies(engine, draft, "model"), Constant)
        return f"{reason}; choose {' '.join(other.setting())}{or_engine}."
    if by_model and kind.head and penalty and not ENGINES[engine].penalises_heads:
        other_engine = engine_that(lambda able: kind.name in able.drafts and able.penalises_heads)
        return (
            f"With {kind.noun} the {engine} engine does not support a repetition penalty; "
            f"set repetition_penalty to 1, or choose {other_engine}."
        )
    return None
