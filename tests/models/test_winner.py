"""The strategy that wins the bundled suite on this machine: the page starts with it."""

import json
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from specdemo.cli import main
from specdemo.engines.scripted import ScriptedEngine
from specdemo.experiments.bench import BenchPlan
from specdemo.experiments.plan import run
from specdemo.experiments.suites import bundled_tasks
from specdemo.models import winner as kept
from specdemo.models.pairs import bundled_pair, initial_settings, start_settings
from specdemo.models.winner import winner_of
from specdemo.records import ModelPair
from specdemo.strategies import EngineName
from specdemo.ui.controls import default_values, explanation, start_values
from specdemo.ui.page import restore
from specdemo.ui.registry import Registry
from specdemo.ui.session import Visitors
from specdemo.worker import Prepare

PAIR = bundled_pair()
METHODS = ("genai constant", "genai lookup", "traced constant")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "own_cache", lambda: tmp_path)
    return tmp_path


def load(name: EngineName, pair: ModelPair = PAIR) -> ScriptedEngine:
    return ScriptedEngine(draft=0.02 if name == "genai" else 0.001)


def said(prompts: int = 99, genai: float = 0.02, **given: Any) -> str | None:
    """Measure the bundled suite, with this many seconds a draft step on GenAI; return what is said of the winner."""
    settings = {"max_new_tokens": 32, **given.pop("settings", {})}
    plan = BenchPlan(
        PAIR,
        bundled_tasks(PAIR.target.prompts)[:prompts],
        initial_settings(PAIR.target, **settings),
        **{"methods": METHODS, "repeats": 1, **given},
    )
    result = [*run(plan, lambda name: ScriptedEngine(draft=genai if name == "genai" else 0.001))][-1].result
    return plan.remember(result)


def test_the_page_starts_with_the_winner_and_says_so() -> None:
    assert start_settings(PAIR) == initial_settings(PAIR.target)
    assert (
        explanation(PAIR, "traced", "model", "constant")
        == "The draft proposes the same number of tokens in every round."
    )
    words = str(said())
    assert "traced constant" in words
    start = start_values(PAIR)
    assert (start["engine"], start["drafter"], start["policy"]) == ("traced", "model", "constant")
    assert start["max_new_tokens"] == initial_settings(PAIR.target).max_new_tokens
    sentence = str(explanation(PAIR, "traced", "model", "constant"))
    assert "The fastest of 3 methods in this machine's benchmark of 20" in sentence
    assert "benchmark" not in str(explanation(PAIR, "genai", "model", "constant"))
    assert Prepare("traced", PAIR)._initial() == start_settings(PAIR)
    assert Prepare("genai", PAIR)._initial() == initial_settings(PAIR.target)


def test_links_mean_the_same_with_and_without_a_winner() -> None:
    registry = Registry(PAIR, Visitors())

    def opened(**named: str) -> dict[str, Any]:
        start = start_values(PAIR)
        found = zip(start.items(), restore(registry, json.dumps(named)).controls, strict=True)
        return {name: value if new == gr.skip() else new for (name, value), new in found}

    links = [{"engine": "traced"}, {"num_assistant_tokens": "7"}, {"engine": "genai", "policy": "constant"}]
    before = [opened(**link) for link in links]
    assert opened() == default_values(PAIR)
    said()
    assert [opened(**link) for link in links] == before
    assert opened() == start_values(PAIR) != default_values(PAIR)


def test_it_is_of_this_pair_with_these_runtime_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    said()
    assert winner_of(PAIR) is not None
    assert winner_of(bundled_pair(inference_num_threads=1)) is None
    assert winner_of(PAIR.model_copy(update={"draft": None})) is None
    monkeypatch.setattr(kept, "machine_name", lambda: "another")
    assert winner_of(PAIR) is None


def test_the_default_stays_unless_another_is_clearly_faster() -> None:
    assert "traced constant" in str(said())
    assert "As fast as any of 3 methods" in str(said(genai=0.0011))
    assert start_settings(PAIR) == initial_settings(PAIR.target)


@pytest.mark.parametrize(
    "given", [{"prompts": 6}, {"methods": METHODS[1:]}, {"settings": {"repetition_penalty": 1.3}}]
)
def test_nothing_is_kept_of_another_measurement(given: dict[str, Any]) -> None:
    assert said(**given) is None
    assert winner_of(PAIR) is None


def test_a_damaged_or_outdated_winner_is_ignored(cache: Path) -> None:
    said()
    (file,) = (cache / "winners").iterdir()
    file.write_text(file.read_text().replace('"constant"', '"unheard of"'))
    assert start_settings(PAIR) == initial_settings(PAIR.target)
    file.write_text("{")
    assert start_settings(PAIR) == initial_settings(PAIR.target)


def test_the_terminal_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "--target", "story-pair/target", "--draft", "story-pair/draft", "--repeats", "1"]
    command += ["--methods", ",".join(METHODS), "--max-new-tokens", "16", "--no-hardware"]
    assert main(command, load=load) == 0
    assert "The page starts with it from now on: traced constant." in capsys.readouterr().err
    assert start_settings(PAIR).engine == "traced"
