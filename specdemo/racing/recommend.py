"""Recommendations: the engine and lookahead that should be fastest on this machine, from its kept step costs."""

import math
from typing import NamedTuple

from specdemo.capabilities import LOCAL, EngineName
from specdemo.decoding.lookahead import best_lookahead
from specdemo.models.catalogue import pair_settings
from specdemo.models.folder import agreement_per_step
from specdemo.racing.costs import recall
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import Constant

_CLEARLY = 0.85  # of the time a token; two moments of one machine gave plain steps of 10 and 14 ms


class Recommendation(NamedTuple):
    """The lookahead that should be fastest (0: plain decoding is), its speedup, and its seconds a token."""

    lookahead: int
    speedup: float
    token_seconds: float


def recommended(pair: ModelPair, engine: EngineName) -> Recommendation | None:
    """Predict from step costs of a quiet moment and the agreement that the draft's folder states; None if unknown."""
    costs = recall(engine, pair)
    if costs is None or pair.draft is None or pair.draft.path is None:
        return None
    agreement = agreement_per_step(pair.draft.path)
    if not agreement:
        return None
    lookahead, speedup = best_lookahead(agreement, costs)
    return Recommendation(lookahead, speedup, costs.plain_step / speedup)


def fastest_engine(pair: ModelPair) -> EngineName | None:
    """Return the engine whose tokens should take least time: the pair's own, unless another should be clearly faster;
    None until step costs of two are known. Engines are compared at their best constant lookaheads, whatever policy
    the pair starts with.
    """
    recommendations = {name: recommended(pair, name) for name in LOCAL}
    seconds = {name: best.token_seconds for name, best in recommendations.items() if best is not None}
    if len(seconds) < 2:
        return None
    fastest, default = min(seconds, key=seconds.__getitem__), pair_settings(pair).engine
    return fastest if seconds[fastest] < _CLEARLY * seconds.get(default, math.inf) else default


def start_settings(pair: ModelPair, engine: EngineName | None = None) -> GenerationSettings:
    """Return the settings that the page starts with: the pair's defaults, with the engine and, if it is constant, the
    lookahead best here.
    """
    chosen = engine or fastest_engine(pair)
    settings = pair_settings(pair, **({} if chosen is None else {"engine": chosen}))
    best = recommended(pair, settings.engine)
    if best is None or not isinstance(settings.strategy, Constant):
        return settings
    return settings.model_copy(update={"num_assistant_tokens": max(best.lookahead, 1)})
