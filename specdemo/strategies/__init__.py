"""Decoding strategies, engines and kinds of draft.

To add a strategy, write its class in `draft.py` or `text.py` (or in a module of its own, imported here), decorate it
with `@register`, and add its proposer to `specdemo/decoding/`.
"""

from specdemo.strategies.base import (
    CONCURRENT,
    DRAFT_KINDS,
    ENGINES,
    LOCAL,
    PARTIAL,
    SERVERS,
    SOURCES,
    STRATEGIES,
    Drafter,
    DraftKindName,
    EngineName,
    Fields,
    HeadName,
    Policy,
    ServerKind,
    Source,
    Strategy,
    drafters,
    effective,
    engines_with,
    pair_refusal,
    policies,
    refusal,
    register,
    shaping,
    strategies,
    strategy_of,
    supports,
)
from specdemo.strategies.draft import (
    Auto,
    Confidence,
    Constant,
    DraftParameters,
    Heuristic,
    Plain,
    Planned,
    ServerDefault,
    Tree,
)
from specdemo.strategies.text import TOKENS_PER_MATCHED, Both, Lookup, Suffix, TextParameters


class Parameters(TextParameters, DraftParameters):
    """Settings of all strategies. A new module of strategies adds its own to the bases."""


__all__ = [
    "CONCURRENT",
    "DRAFT_KINDS",
    "ENGINES",
    "LOCAL",
    "PARTIAL",
    "SERVERS",
    "SOURCES",
    "STRATEGIES",
    "TOKENS_PER_MATCHED",
    "Auto",
    "Both",
    "Confidence",
    "Constant",
    "DraftKindName",
    "Drafter",
    "EngineName",
    "Fields",
    "HeadName",
    "Heuristic",
    "Lookup",
    "Parameters",
    "Plain",
    "Planned",
    "Policy",
    "ServerDefault",
    "ServerKind",
    "Source",
    "Strategy",
    "Suffix",
    "Tree",
    "drafters",
    "effective",
    "engines_with",
    "pair_refusal",
    "policies",
    "refusal",
    "register",
    "shaping",
    "strategies",
    "strategy_of",
    "supports",
]
