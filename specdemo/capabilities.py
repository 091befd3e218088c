"""Engines and kinds of draft, and the strategies and settings that each supports.

The rest is refused before a model is loaded: `refusal` and `pair_refusal` say why, and what to choose.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from specdemo.errors import capitalised
from specdemo.strategies import STRATEGIES, DraftKindName, Plain, ServerDefault, Strategy

EngineName = Literal["genai", "traced", "server"]
ServerKind = Literal["llama.cpp", "openai"]  # "openai": any other with its protocol

SERVERS: dict[ServerKind, str] = {"llama.cpp": "llama.cpp", "openai": "an OpenAI-compatible server"}
"""Names for use in a sentence."""


@dataclass(frozen=True)
class EngineInfo:
    """`label` names the engine among choices, `words` in a sentence.

    It runs `strategies`, those in `heads` also with an EAGLE-3 head; changed settings of those in `live` take effect
    while it decodes. `lacks`: settings that it does not support. `concurrent`: it serves several requests at once.
    `local`: it loads models on this machine, `copies` of each. `samples_exactly`: whether sampling keeps the target's
    distribution; None if unknown.
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
    """A kind of draft, what it is, and the engines that load it.

    `greedy`: it cannot sample. `copies`: its pair also supports prompt lookup and suffix decoding. `limited`: GenAI
    supports it only with a constant lookahead, greedily, one request at a time, and without prefix caching.
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


def proposes(strategy: type[Strategy], draft: DraftKindName | None, engine: EngineName) -> bool:
    """Whether an engine that knows the strategy supports it for pairs with this kind of draft."""
    if not strategy.drafter.model:
        return draft is None or DRAFT_KINDS[draft].copies
    if draft not in strategy.drafts or engine not in DRAFT_KINDS[draft].engines:
        return False
    return draft != "eagle3" or strategy.name in ENGINES[engine].heads


def strategies(
    engine: EngineName, draft: DraftKindName | None, drafter: str | None = None, policy: str | None = None
) -> Iterator[type[Strategy]]:
    """Yield the strategies an engine supports with this kind of draft (None: target alone) and these settings."""
    for strategy in STRATEGIES.values():
        named = drafter in (None, strategy.drafter.name) and policy in (None, strategy.policy.name)
        if named and strategy.name in ENGINES[engine].strategies and proposes(strategy, draft, engine):
            yield strategy


def engines_of(strategy: type[Strategy]) -> tuple[EngineName, ...]:
    return tuple(name for name, engine in ENGINES.items() if strategy.name in engine.strategies)


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
    if not proposes(type(strategy), draft, engine):
        if kind.limited:
            what = f"{capitalised(kind.noun)} proposes a constant number of tokens in the {engine} engine"
            return f"{what}; choose policy constant."
        others = [each for each in kind.engines if proposes(type(strategy), draft, each)]
        or_engine = f", or the {others[0]} engine" if others else ""
        what = f"With {kind.noun} the {engine} engine does not support {strategy.what}"
        return f"{what}; choose policy constant{or_engine}."
    if draft == "eagle3" and engine == "genai" and penalty:
        return (
            "With this EAGLE-3 head the genai engine does not support a repetition penalty; "
            "set repetition_penalty to 1, or choose the traced engine."
        )
    return None
