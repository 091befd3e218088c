"""Strategies and engines declare themselves: settings, page, terminal, measurements, checks and code follow."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from specdemo.capabilities import DRAFT_KINDS, ENGINES, EngineInfo, engines_of
from specdemo.cli import main
from specdemo.decoding.indexes import Match, TextIndex, index_of
from specdemo.engines import load_engine
from specdemo.engines.traced.engine import TracedEngine
from specdemo.errors import SettingsError, UsageError
from specdemo.experiments.plan import Axes, available_strategies, grid
from specdemo.models.catalogue import bundled_models
from specdemo.models.checks import check_pair
from specdemo.records import ModelPair, Side
from specdemo.results.metrics import identical
from specdemo.results.words import shared_words
from specdemo.settings import GenerationSettings, option, require_effect
from specdemo.strategies import CONSTANT_POLICY, STRATEGIES, DrafterInfo, Fields, Parameters, Strategy, parameters
from specdemo.ui import controls
from tests.support.proposals import raced
from tests.support.scripted import ScriptedEngine

PAIR = ScriptedEngine().pair


@dataclass(frozen=True)
class Parrot(Strategy):
    """Repeats the last token."""

    num_assistant_tokens: int

    name = "parrot"
    drafter = DrafterInfo("parrot", "Parrot", "the parrot")
    policy = CONSTANT_POLICY
    template = "{num_assistant_tokens} repeats"

    def genai(self) -> Fields:
        return {"parrot": self.num_assistant_tokens}


ECHO = EngineInfo(
    "echo",
    label="Echo",
    noun="echo engine",
    implementation="tests.strategies.test_strategies:EchoEngine",
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
    monkeypatch.setitem(STRATEGIES, Parrot.name, Parrot)
    traced = ENGINES["traced"]
    extended = replace(traced, strategies=(*traced.strategies, Parrot.name), live=(*traced.live, Parrot.name))
    monkeypatch.setitem(ENGINES, "traced", extended)
    monkeypatch.setitem(ENGINES, ECHO.name, ECHO)


CHOSEN = {"engine": "traced", "drafter": "parrot", "num_assistant_tokens": 3}


def test_settings_select_and_explain_a_strategy() -> None:
    settings = GenerationSettings.checked(**CHOSEN)
    assert settings.strategy == Parrot(3)
    assert f"{settings.strategy.description}, {shared_words(settings)}".startswith(
        "3 repeats, parrot, traced engine, greedy"
    )
    with pytest.raises(SettingsError, match="The genai engine does not support drafter parrot; choose the traced"):
        GenerationSettings.checked(drafter="parrot", engine="genai")
    with pytest.raises(SettingsError, match="Drafter parrot needs policy constant; change one"):
        GenerationSettings.checked(**CHOSEN | {"policy": "auto"})


def test_the_page_offers_a_strategy_with_its_settings() -> None:
    radio = controls.control("drafter")
    assert isinstance(radio, gr.Radio)
    assert ("Parrot", "parrot") in radio.choices
    assert '.no-parrot label:has(input[value="parrot"])' in controls.choices_css()
    shown = controls.visibility(PAIR, "traced", "parrot", "constant")
    assert (shown["num_assistant_tokens"], shown["max_ngram_size"], shown["policy"]) == (True, False, False)
    genai = controls.appearance(PAIR, "genai", "model", "constant")
    assert genai["drafter"]["elem_classes"] == ["no-suffix", "no-combined", "no-parrot"]
    traced = controls.appearance(PAIR, "traced", "parrot", "constant")
    assert traced["num_assistant_tokens"]["elem_classes"] == ["live"]
    start = controls.start_values(PAIR)
    assert controls.settings_from(PAIR, start | CHOSEN).strategy == Parrot(3)


def test_the_terminal_accepts_a_strategy_and_code_reproduces_it(capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--engine", "traced", "--drafter", "parrot", "--num-assistant-tokens", "2"]
    assert main(["code", "Say", *options]) == 0
    assert "config.parrot = 2" in capfd.readouterr().out
    assert main(["code", "Say", "--to", "llama.cpp", *options]) == 2
    assert "llama.cpp cannot load" in capfd.readouterr().err
    with pytest.raises(UsageError, match="--max-ngram-size has no effect with --drafter parrot; leave it out"):
        require_effect(["drafter", "max_ngram_size"], [GenerationSettings.checked(**CHOSEN)], option)
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "parrot" in capfd.readouterr().out


def test_measurements_try_a_strategy() -> None:
    plan = grid(PAIR, GenerationSettings.checked(**CHOSEN), Axes(lookaheads=(1, 4)))
    assert [variant.settings.strategy for variant in plan.values()] == [Parrot(1), Parrot(4)]
    variants = available_strategies(PAIR, GenerationSettings.checked(engine="traced"))
    assert variants["traced parrot"]["drafter"] == "parrot"
    assert "genai parrot" not in variants


@pytest.mark.parametrize("name", STRATEGIES)
def test_settings_select_every_strategy_uniquely(name: str) -> None:
    strategy = STRATEGIES[name]
    chosen = {"engine": engines_of(strategy)[0], "drafter": strategy.drafter.name, "policy": strategy.policy.name}
    assert type(GenerationSettings.checked(**chosen).strategy) is strategy


def test_every_parameter_shapes_a_strategy() -> None:
    assert parameters() == set(Parameters.model_fields)


DOCUMENT = Path(__file__).parents[2] / "docs" / "engines.md"


def test_the_documents_table_is_what_strategies_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(STRATEGIES, Parrot.name)
    monkeypatch.delitem(ENGINES, ECHO.name)
    assert table() in DOCUMENT.read_text(), f"put this into {DOCUMENT.name}:\n{table()}"


def table() -> str:
    rows = [("`--drafter`", "`--policy`", "what it does", "engines", "settings"), ("---",) * 5]
    for strategy in STRATEGIES.values():
        names = " ".join(f"`--{name.replace('_', '-')}`" for name in strategy.parameters())
        chosen, engines = (strategy.drafter.name, strategy.policy.name), ", ".join(engines_of(strategy))
        rows.append((*chosen, strategy.explanation(), engines, names))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


class LastToken(TextIndex):
    def find(self, text: Sequence[int], limit: int) -> Match:
        many = min(limit, 3)
        return Match((text[-1],) * many, (0.5,) * many)


@index_of.register
def _(strategy: Parrot) -> TextIndex:
    return LastToken()


@pytest.mark.openvino
def test_a_strategy_decodes_with_its_registered_proposer(traced: TracedEngine) -> None:
    comparison = raced(traced, "Once upon a time", GenerationSettings.checked(**CHOSEN, max_new_tokens=24))
    assert identical(comparison)
    proposed = [draft.id for step in comparison.speculative.rounds for draft in step.proposed or ()]
    assert len(proposed) >= 24


def test_an_engine_is_loaded_and_races() -> None:
    with closing(load_engine("echo", PAIR)) as engine:
        comparison = raced(engine, "Say", GenerationSettings.checked(engine="echo", max_new_tokens=8))
    assert comparison.speculative.text == comparison.plain.text == " the quick brown fox jumps over a lazy"


def test_settings_and_pairs_are_checked_against_an_engine(capfd: pytest.CaptureFixture[str]) -> None:
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


def test_the_page_and_measurements_offer_an_engine() -> None:
    radio = controls.control("engine")
    assert isinstance(radio, gr.Radio)
    assert ("Echo", "echo") in radio.choices
    shown = controls.visibility(PAIR, "echo", "model", "constant")
    assert (shown["num_assistant_tokens"], shown["top_k"], shown["policy"]) == (True, False, False)
    assert "echo constant" in available_strategies(PAIR, GenerationSettings.checked(engine="echo"))
