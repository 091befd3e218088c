"""What the page's examples are said to do is what was measured."""

import json
from pathlib import Path

import pytest

from specdemo.engines.scripted import ScriptedEngine
from specdemo.models.catalogue import bundled_pair, bundled_prompts
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.ui.parts import examples_html
from tests.benchmarks.expectations import expectations, write


@pytest.mark.parametrize(("draft", "expect"), [(0.001, "wins"), (0.05, "loses")])
def test_every_example_is_measured_and_called_by_its_interval(draft: float, expect: str, tmp_path: Path) -> None:
    def load(name: EngineName, pair: ModelPair) -> ScriptedEngine:
        return ScriptedEngine(words=(" so", " it", " goes") * 20, draft=draft)

    found = expectations(bundled_pair(), load, repeats=2, tokens=97)
    assert found.key == "story-pair/target|story-pair/draft"
    assert [each["prompt"] for each in found.entry["prompts"]] == bundled_prompts("base")
    for each in found.entry["prompts"]:
        assert each["expect"] == expect
        assert each["low"] < each["speedup"] < each["high"]
    assert found.entry["engine"] == "genai"
    path = tmp_path / "expectations.json"
    path.write_text('{"other|pair": {"measured_on": "", "prompts": []}}')
    write([found], path)
    assert set(json.loads(path.read_text())) == {"other|pair", found.key}


def test_gains_are_shown_only_with_the_engine_they_were_measured_with(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Measured on" in examples_html(bundled_pair())
    monkeypatch.setattr("specdemo.ui.parts.initial_settings", lambda pair: GenerationSettings(engine="traced"))
    assert "Measured on" not in examples_html(bundled_pair())
