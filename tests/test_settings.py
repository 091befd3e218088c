from typing import Any

import pytest

from specdemo.errors import SettingsError
from specdemo.settings import GenerationSettings


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
