"""The strategies that a benchmark compares, by short names."""

from specdemo.errors import PairError, SettingsError
from specdemo.models.checks import check_strategy, compared
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import ENGINES, STRATEGIES, EngineName, strategies, supports


def methods() -> list[str]:
    """Every strategy by its short name, except those with a switch, which have settings of their own to try."""
    return [name for name, strategy in STRATEGIES.items() if strategy.switch is None]


def widest(pair: ModelPair) -> EngineName:
    """The engine that supports most decoding strategies with this pair."""
    return "served" if pair.target.server is not None else "traced"


def available(pair: ModelPair, settings: GenerationSettings) -> dict[str, GenerationSettings]:
    """Every decoding strategy that this pair supports, by a name such as `traced auto`.

    Raises:
        LoadError: OpenVINO refused a tokenizer.
    """
    found, pair = {}, compared(pair)
    for engine in ENGINES:
        known = {name: value for name, value in settings if supports(engine, name)}
        for strategy in strategies(engine, pair.draft_kind):
            if strategy.name not in methods():
                continue
            named = {"engine": engine, "drafter": strategy.drafter.name, "policy": strategy.policy.name}
            try:
                chosen = GenerationSettings.checked(**{**known, **named})
                check_strategy(pair, engine, chosen.strategy, chosen.sampling)
            except (PairError, SettingsError):  # not with these settings
                continue
            found[f"{engine} {strategy.name}"] = chosen
    return found
