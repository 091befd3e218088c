"""An engine declares itself: settings, page, terminal, measurements and checks follow from its `EngineInfo`."""

from contextlib import closing
from typing import Any

import gradio as gr
import pytest

from specdemo.capabilities import DRAFT_KINDS, ENGINES, EngineInfo
from specdemo.cli import main
from specdemo.engines import load_engine
from specdemo.errors import SettingsError
from specdemo.experiments.plan import available
from specdemo.models.catalogue import bundled_models
from specdemo.models.checks import check_pair
from specdemo.records import ModelPair, Side
from specdemo.settings import GenerationSettings
from specdemo.ui import controls
from tests.support.proposals import raced
from tests.support.scripted import ScriptedEngine

PAIR = ScriptedEngine().pair
ECHO = EngineInfo(
    "echo",
    label="Echo",
    noun="echo engine",
    implementation="tests.strategies.test_engines:EchoEngine",
    strategies=("constant",),
    drafts=("model",),
    live=("constant",),
    unsupported=frozenset({"top_k"}),
    samples_exactly=True,
)


class EchoEngine(ScriptedEngine):
    def __init__(self, pair: ModelPair, side: Side | None = None, **options: Any) -> None:
        super().__init__(name="echo", **options)
        self.pair = pair


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, ECHO.name, ECHO)


def test_it_is_loaded_and_races() -> None:
    with closing(load_engine("echo", PAIR)) as engine:
        comparison = raced(engine, "Say", GenerationSettings.checked(engine="echo", max_new_tokens=8))
    assert comparison.speculative.text == comparison.plain.text == " the quick brown fox jumps over a lazy"


def test_settings_and_pairs_are_checked_against_it(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match="The echo engine does not support top_k 3; choose the genai engine"):
        GenerationSettings.checked(engine="echo", top_k=3)
    with pytest.raises(SettingsError, match="The echo engine does not support drafter lookup; choose the genai"):
        GenerationSettings.checked(engine="echo", drafter="lookup")
    assert DRAFT_KINDS["model"].engines == ("genai", "traced", "echo")
    reports = check_pair(*bundled_models()).engines
    assert [report.engine for report in reports if report.can_run] == ["genai", "traced", "echo"]
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "{genai,traced,server,echo}" in capfd.readouterr().out


def test_the_page_and_measurements_offer_it() -> None:
    radio = controls.control("engine")
    assert isinstance(radio, gr.Radio)
    assert ("Echo", "echo") in radio.choices
    shown = controls.visibility(PAIR, "echo", "model", "constant")
    assert (shown["num_assistant_tokens"], shown["top_k"], shown["policy"]) == (True, False, False)
    assert "echo constant" in available(PAIR, GenerationSettings.checked(engine="echo"))
