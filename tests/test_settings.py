from typing import Any

import pytest

from specdemo.errors import SettingsError
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import (
    Auto,
    Confidence,
    Constant,
    Heuristic,
    Lookup,
    ServerDefault,
    Strategy,
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"num_assistant_tokens": 0},
            r"Lookahead \(num_assistant_tokens\) should be greater than or equal to 1, got 0",
        ),
        ({"assistant_confidence_threshold": 1.5}, r"Confidence threshold .* less than or equal to 1, got 1.5"),
        ({"drafter": "lookup", "policy": "confidence"}, "Drafter lookup needs policy constant"),
        ({"lookahead": 3}, "There is no setting called 'lookahead'; choose from engine, drafter"),
        ({"num_assistant_tokens": "many"}, "should be a valid integer"),
        ({"temperature": float("nan")}, "Temperature"),
    ],
)
def test_a_wrong_value_is_one_sentence(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as error:
        GenerationSettings.checked(**values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "strategy"),
    [
        ({}, Constant(num_assistant_tokens=7)),
        ({"engine": "traced", "policy": "heuristic"}, Heuristic()),
        ({"policy": "confidence"}, Confidence(assistant_confidence_threshold=0.6, max_assistant_tokens=None)),
        (
            {"engine": "traced", "policy": "confidence", "max_assistant_tokens": 9},
            Confidence(assistant_confidence_threshold=0.6, max_assistant_tokens=9),
        ),
        ({"engine": "traced", "policy": "auto", "max_assistant_tokens": 9}, Auto(max_assistant_tokens=9)),
        ({"drafter": "lookup"}, Lookup(max_ngram_size=5, num_assistant_tokens=7)),
        ({"engine": "server", "policy": "server"}, ServerDefault()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_settings_name_a_way(values: dict[str, Any], strategy: Strategy) -> None:
    named = {"num_assistant_tokens": 7, "max_ngram_size": 5, "assistant_confidence_threshold": 0.6, **values}
    assert GenerationSettings.checked(**named).strategy == strategy


def test_text_from_a_link_is_understood() -> None:
    settings = GenerationSettings.checked(num_assistant_tokens="7", ignore_eos="true", temperature="0.5")
    assert (settings.num_assistant_tokens, settings.ignore_eos, settings.temperature) == (7, True, 0.5)


@pytest.mark.parametrize("settings", [GenerationSettings, RuntimeSettings])
def test_every_setting_explains_itself(settings: type[GenerationSettings | RuntimeSettings]) -> None:
    for name, field in settings.model_fields.items():
        assert field.title, name
        assert field.description, name
