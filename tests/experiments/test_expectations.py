"""Examples are grouped by measured speedups."""

import pytest

from specdemo.models.catalogue import bundled_pair
from specdemo.settings import GenerationSettings
from specdemo.ui.parts import examples_html


def test_expected_gains_are_shown_for_their_engine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Measured on" in examples_html(bundled_pair())
    monkeypatch.setattr("specdemo.ui.parts.pair_settings", lambda pair: GenerationSettings(engine="traced"))
    assert "Measured on" not in examples_html(bundled_pair())
