"""Decoding strategies: who proposes tokens, and when it stops. A way is one value, checked against one table.

Flat settings (command line, links, the page, JSON) become a way once, in `GenerationSettings.way`. What engines and
pairs support is defined only in `KINDS`, and what else they refuse in `refusals`: controls, checks, sweeps and
benchmarks derive from them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

EngineName = Literal["genai", "traced", "served"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
AT_ONCE: tuple[EngineName, ...] = ("genai", "served")
"""Engines that serve several requests at once."""
ServerKind = Literal["llama.cpp", "vllm", "ovms", "sglang", "openai"]
"""Servers whose answers are understood; "openai" is any other that speaks OpenAI's protocol."""
Source = Literal["model", "lookup"]
"""What a proposal can come from: a draft model, or the text so far."""
Drafter = Literal["model", "lookup", "both"]
Policy = Literal["constant", "heuristic", "confidence", "auto", "server"]
DraftKind = Literal["model", "translated", "eagle3", "server", "request"]
"""What kind of draft a pair has: one with the target's tokenizer, one with another, an EAGLE-3 head, or that of a
server, which was told how to use it when it was started, or is told in each request."""


@dataclass(frozen=True)
class Plain:
    """The target alone: nothing is proposed."""


@dataclass(frozen=True)
class Constant:
    """The draft proposes the same number of tokens in every round."""

    lookahead: int


@dataclass(frozen=True)
class Confidence:
    """The draft stops once its own probability of what it last proposed falls below a threshold, or at the cap."""

    threshold: float
    cap: int | None = None


@dataclass(frozen=True)
class Heuristic:
    """Two more tokens after a fully accepted round, one fewer after any other, as in transformers."""


@dataclass(frozen=True)
class Auto:
    """As many tokens as pay off, given step costs and what was accepted so far."""

    cap: int


@dataclass(frozen=True)
class Lookup:
    """Prompt lookup: copies what followed an earlier occurrence of the last `ngram` tokens, or fewer."""

    ngram: int
    lookahead: int


@dataclass(frozen=True)
class Both:
    """Prompt lookup where it is expected to earn more than the draft, whose lookahead is constant."""

    ngram: int
    lookahead: int


@dataclass(frozen=True)
class BothAuto:
    """The same where the draft's lookahead is automatic."""

    ngram: int
    cap: int


@dataclass(frozen=True)
class Tree:
    """An EAGLE-3 head proposes a tree of tokens, at most `lookahead` in all."""

    depth: int
    branching: int
    lookahead: int


@dataclass(frozen=True)
class AsServed:
    """However the server was told to speculate when it was started."""


@dataclass(frozen=True)
class Planned:
    """A lookahead for each round, planned in advance; after the last, nothing is proposed. For experiments only."""

    lookaheads: tuple[int, ...]


Strategy = Plain | Constant | Confidence | Heuristic | Auto | Lookup | Both | BothAuto | Tree | AsServed | Planned


class Kind(NamedTuple):
    """What holds for all ways of one type.

    `settings` are the flat settings that shape it, in the order of its fields; `drafts` the kinds of draft that can
    propose that way; an EAGLE-3 head can on the engines `heads`. `sampling`: whether the target may sample; `costs`:
    whether step costs are required, which exist only with a KV cache; `moves`: the engines that follow its settings
    while they decode.
    """

    drafter: Drafter
    policy: Policy
    settings: tuple[str, ...]
    engines: tuple[EngineName, ...]
    drafts: tuple[DraftKind, ...] = ("model", "translated", "eagle3")
    heads: tuple[EngineName, ...] = ("traced",)
    sampling: bool = True
    costs: bool = False
    moves: tuple[EngineName, ...] = ()


_BOTH: tuple[EngineName, ...] = ("genai", "traced")
_ANY: tuple[DraftKind, ...] = ("model", "translated", "eagle3", "request")
KINDS: dict[type[Strategy], Kind] = {
    Constant: Kind("model", "constant", ("num_assistant_tokens",), ENGINES, _ANY, heads=_BOTH, moves=("traced",)),
    Tree: Kind(
        "model",
        "constant",
        ("tree_depth", "branching_factor", "num_assistant_tokens"),
        ("genai",),
        ("eagle3",),
        ("genai",),
        sampling=False,
    ),
    Heuristic: Kind("model", "heuristic", (), ("traced",)),
    Confidence: Kind(
        "model",
        "confidence",
        ("assistant_confidence_threshold", "max_assistant_tokens"),
        ENGINES,
        _ANY,
        moves=("traced",),
    ),
    Auto: Kind("model", "auto", ("max_assistant_tokens",), ("traced",), costs=True),
    Lookup: Kind("lookup", "constant", ("max_ngram_size", "num_assistant_tokens"), ENGINES, ()),
    Both: Kind(
        "both",
        "constant",
        ("max_ngram_size", "num_assistant_tokens"),
        ("traced",),
        ("model",),
        costs=True,
        moves=("traced",),
    ),
    BothAuto: Kind("both", "auto", ("max_ngram_size", "max_assistant_tokens"), ("traced",), ("model",), costs=True),
    AsServed: Kind("model", "server", (), ("served",), ("server",)),
}
"""The table: one row for each type that settings can name."""

ENGINES_OF: dict[str, tuple[EngineName, ...]] = {
    "kv_cache": ("traced",),
    "alternatives": ("traced",),
    "max_assistant_tokens": ("traced",),  # GenAI has no cap
    "sequential": _BOTH,
    "at_once": ("served",),
}
"""Settings that only some engines support."""
SHAPING = frozenset(name for kind in KINDS.values() for name in kind.settings)
"""Settings that shape some ways and have no effect in others."""
ENGINES_OF_DRAFTS: dict[DraftKind, tuple[EngineName, ...]] = {
    "model": _BOTH,
    "translated": ("traced",),
    "eagle3": _BOTH,
    "server": ("served",),
    "request": ("served",),
}
"""The engines that can load a kind of draft."""


def supports(engine: EngineName, setting: str) -> bool:
    """Whether an engine supports a setting at all."""
    return engine in ENGINES_OF.get(setting, ENGINES)


def named(drafter: Drafter, policy: Policy, *, tree: bool) -> type[Strategy] | None:
    """The type of way that flat settings name; `tree`: with a depth. None if there is no such way."""
    asked = (drafter, policy, tree)
    return next(
        (strategy for strategy, kind in KINDS.items() if (kind.drafter, kind.policy, strategy is Tree) == asked), None
    )


def sources(strategy: Strategy) -> tuple[Source, ...]:
    """What proposes in a decoding strategy that proposes."""
    drafter = KINDS[type(strategy)].drafter
    return ("model", "lookup") if drafter == "both" else (drafter,)


def fixed_lookahead(strategy: Strategy) -> int | None:
    """Tokens proposed in every round, if it is the same number; prompt lookup may find fewer."""
    return getattr(strategy, "lookahead", None)


def kinds(
    engine: EngineName, draft: DraftKind | None, drafter: Drafter | None = None, policy: Policy | None = None
) -> Iterator[Kind]:
    """The rows that an engine supports with such a draft (None: target alone) and that these settings can name."""
    for kind in KINDS.values():
        named = drafter in (None, kind.drafter) and policy in (None, kind.policy)
        if named and engine in kind.engines and _can_propose(kind, engine, draft):
            yield kind


def _can_propose(kind: Kind, engine: EngineName, draft: DraftKind | None) -> bool:
    return draft != "server" if kind.drafter == "lookup" else proposes(kind, engine, draft)


def proposes(kind: Kind, engine: EngineName, draft: DraftKind | None) -> bool:
    """Whether such a draft can propose that way on an engine that supports the way."""
    if draft not in kind.drafts or engine not in ENGINES_OF_DRAFTS[draft]:
        return False
    return draft != "eagle3" or engine in kind.heads


def shapes(kind: Kind, engine: EngineName) -> frozenset[str]:
    """The settings that have an effect in ways of this kind, on this engine."""
    return frozenset(name for name in kind.settings if supports(engine, name))
