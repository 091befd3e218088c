"""The decoding strategies that a benchmark compares, by short names."""

from specdemo.errors import PairError, SettingsError
from specdemo.models.checks import check_strategy, compared
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import ENGINES, KINDS, EngineName, Kind, Tree, kinds, supports


def name_of(kind: Kind) -> str:
    """The short name of a row of `KINDS`."""
    if kind.drafter == "model":
        return kind.policy
    return kind.drafter if kind.policy == "constant" else f"{kind.drafter} {kind.policy}"


METHODS = {name_of(kind): kind for strategy, kind in KINDS.items() if strategy is not Tree}
"""Every decoding strategy by a short name, except trees, which have their own settings to try."""


def widest(pair: ModelPair) -> EngineName:
    """The engine that supports most decoding strategies with this pair."""
    return "served" if pair.target.server is not None else "traced"


def available(pair: ModelPair, settings: GenerationSettings) -> dict[str, GenerationSettings]:
    """Every decoding strategy that this pair supports, by a name such as `traced auto`.

    Raises:
        LoadError: OpenVINO refused a tokenizer.
    """
    strategies, pair = {}, compared(pair)
    for engine in ENGINES:
        known = {name: value for name, value in settings if supports(engine, name)}
        able = list(kinds(engine, pair.draft_kind))
        for method, kind in METHODS.items():
            if kind not in able:
                continue
            try:
                chosen = GenerationSettings.checked(
                    **{**known, "engine": engine, "drafter": kind.drafter, "policy": kind.policy}
                )
                check_strategy(pair, engine, chosen.strategy, chosen.sampling)
            except (PairError, SettingsError):  # not with these settings
                continue
            strategies[f"{engine} {method}"] = chosen
    return strategies
