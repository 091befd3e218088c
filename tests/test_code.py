"""The lines that reproduce settings elsewhere; OpenVINO's are run."""

import json
import shlex
from typing import Any

import pytest

from specdemo.analysis.code import FLAVOURS, code
from specdemo.cli import main
from specdemo.engines.genai import GenAIEngine
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import SettingsError
from specdemo.measure.race import run_alone
from specdemo.models.gguf_convert import folder_of
from specdemo.models.pairs import begun
from specdemo.records import ModelPair, Request
from specdemo.settings import GenerationSettings

PAIR = ScriptedEngine().pair
PROMPT = 'Say it\'s "so"'


def written(flavour: str, pair: ModelPair = PAIR, **chosen: Any) -> str:
    return code(flavour, pair, GenerationSettings.checked(**chosen), PROMPT)


@pytest.mark.openvino
@pytest.mark.parametrize(
    "chosen",
    [
        {"num_assistant_tokens": 5},
        {"policy": "confidence", "assistant_confidence_threshold": 0.3},
        {"drafter": "lookup", "max_ngram_size": 2},
    ],
    ids=str,
)
def test_the_lines_for_genai_write_what_the_engine_writes(
    engine: GenAIEngine, chosen: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    settings = begun(engine.pair.target, max_new_tokens=40, repetition_penalty=1.1, **chosen)
    prompt = "Once upon a time there was a fox who"
    expected = run_alone(engine.decoder(Request.of(prompt, settings))).text
    lines = code("genai", engine.pair, settings, prompt, lambda model: str(folder_of(model)))
    capfd.readouterr()
    exec(lines, {})
    assert capfd.readouterr().out == expected + "\n"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_python_compiles_and_commands_keep_their_words(flavour: str) -> None:
    lines = written(flavour, num_assistant_tokens=7)
    if lines.startswith(("import", "from")):
        compile(lines, flavour, "exec")
        assert repr(PROMPT) in lines
        assert "num_assistant_tokens = 7" in lines
        return
    command, request = (shlex.split(part) for part in lines.strip().split("\n\n"))
    body = json.loads(request[-1])
    assert body["messages"][0]["content"] == PROMPT
    assert ("7" in command or '"num_speculative_tokens": 7' in " ".join(command)) != ("num_assistant_tokens" in body)


def test_what_settings_become() -> None:
    assert "--spec-draft-p-min 0.3" in written("llama.cpp", policy="confidence", assistant_confidence_threshold=0.3)
    assert "--spec-type ngram-simple" in written("llama.cpp", drafter="lookup")
    assert '"method": "ngram"' in written("vllm", drafter="lookup")
    assert '"seed": 3' in written("vllm", do_sample=True, seed=3)
    assert "prompt_lookup_num_tokens=4" in written("transformers", drafter="lookup")
    assert "'heuristic'" in written("transformers", engine="traced", policy="heuristic")
    assert '"prompt_lookup": true' in written("ovms", drafter="lookup")


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_what_cannot_be_reproduced_is_said(flavour: str) -> None:
    with pytest.raises(SettingsError, match="cannot decode with automatic lookahead"):
        written(flavour, engine="traced", policy="auto")
    alone = PAIR.model_copy(update={"draft": None})
    with pytest.raises(SettingsError, match="no draft model"):
        written(flavour, alone)


def test_the_terminal_prints_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["code", PROMPT, "--to", "vllm", "--num-assistant-tokens", "3"]) == 0
    assert '"num_speculative_tokens": 3' in capfd.readouterr().out
    assert main(["code", PROMPT, "--engine", "traced", "--policy", "auto"]) == 2
