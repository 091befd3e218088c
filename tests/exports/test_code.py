import ast
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import xllamacpp

from specdemo.capabilities import strategies
from specdemo.engines.genai.engine import GenAIEngine
from specdemo.errors import SettingsError
from specdemo.exports.code import SOFTWARE, code, command
from specdemo.models.catalogue import BUNDLED, bundled_models, bundled_pair, find, pair_of, pair_settings
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import inspect_model
from specdemo.models.library import Origin
from specdemo.racing.race import run_alone
from specdemo.records import ModelPair, Request
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import DraftKindName
from tests.support import llama
from tests.support.scripted import ScriptedEngine

PAIR = ScriptedEngine().pair
FIXTURES = Path(__file__).parents[1] / "fixtures"
CHAT = PAIR.model_copy(update={"target": PAIR.target.model_copy(update={"chat_template": True})})
PROMPT = 'Say it\'s "so"'


def written(flavour: str, pair: ModelPair = PAIR, **chosen: Any) -> str:
    return code(flavour, pair, GenerationSettings.checked(**chosen), PROMPT)


@pytest.mark.openvino
@pytest.mark.parametrize(
    "chosen",
    [{"policy": "confidence", "assistant_confidence_threshold": 0.3}, {"drafter": "lookup", "max_ngram_size": 2}],
    ids=str,
)
def test_the_lines_for_genai_write_what_the_engine_writes(
    engine: GenAIEngine, chosen: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    settings = pair_settings(engine.pair, max_new_tokens=40, repetition_penalty=1.1, **chosen)
    prompt = "Once upon a time there was a fox who"
    expected = run_alone(engine.decoder(Request.of(prompt, settings))).text
    lines = code("genai", engine.pair, settings, prompt, local=True)
    capfd.readouterr()
    exec(lines, {})
    assert capfd.readouterr().out == expected + "\n"


@pytest.mark.openvino
@pytest.mark.parametrize("kind", ["eagle3", "model"])
def test_the_lines_for_genai_run_whatever_the_page_offers(kind: DraftKindName) -> None:
    """GenAI refuses a confidence threshold with an EAGLE-3 head, and lacks some policies and the suffix tree."""
    folders = [FIXTURES / ("eagle3" if kind == "eagle3" else "llama") / part for part in ("target", "draft")]
    pair = pair_of(*map(inspect_folder, folders), runtime=RuntimeSettings.checked())
    different = set[str]()
    for strategy in strategies("traced", kind):
        chosen = {"engine": "traced", "drafter": strategy.drafter.name, "policy": strategy.policy.name}
        settings = GenerationSettings.checked(**chosen, max_new_tokens=4, ignore_eos=True)
        assert isinstance(settings.strategy, strategy)
        lines = code("genai", pair, settings, "abc", local=True)
        refused = kind == "eagle3" and "threshold" in settings.strategy.description
        assert ("is the nearest that it runs" in lines) == (settings.strategy.genai() is None or refused)
        different.add(lines[lines.index("import") :])
    for lines in different:
        exec(lines, {})


def requested(flavour: str, pair: ModelPair = PAIR, **chosen: Any) -> tuple[str, dict[str, Any]]:
    words = shlex.split(written(flavour, pair, **chosen).strip().split("\n\n")[1], comments=True)
    body: dict[str, Any] = json.loads(words[-1])
    return words[1].removeprefix("http://localhost:8000"), body


def test_no_default_of_the_software_changes_what_is_sampled() -> None:
    chosen: dict[str, Any] = {"do_sample": True, "top_k": 0, "repetition_penalty": 1}
    assert {"config.top_k = 9223372036854775807", "config.repetition_penalty = 1.0"} <= set(
        written("genai", **chosen).splitlines()
    )
    body = requested("vllm", **chosen)[1]
    assert (body["top_k"], body["repetition_penalty"]) == (-1, 1)
    body = requested("llama.cpp", **chosen)[1]
    assert (body["top_k"], body["min_p"], body["repeat_penalty"]) == (0, 0, 1)
    assert requested("llama.cpp", repetition_penalty=1.3)[1]["repeat_penalty"] == 1.3


@pytest.mark.parametrize("flavour", ["vllm", "llama.cpp"])
def test_code_for_a_server_chats_only_if_the_target_can(flavour: str) -> None:
    path, body = requested(flavour)
    assert (path, body["prompt"]) == ("/v1/completions", PROMPT)
    assert requested(flavour, CHAT, apply_chat_template=False)[0] == "/v1/completions"
    path, body = requested(flavour, CHAT)
    assert (path, "prompt" in body, "chat_template_kwargs" in body) == ("/v1/chat/completions", False, False)
    assert body["messages"] == [{"role": "user", "content": PROMPT}]
    assert requested(flavour, CHAT, enable_thinking=False)[1]["chat_template_kwargs"] == {"enable_thinking": False}


def test_settings_as_code() -> None:
    assert "--spec-draft-p-min 0.3" in written("llama.cpp", policy="confidence", assistant_confidence_threshold=0.3)
    assert "--spec-type ngram-simple" in written("llama.cpp", drafter="lookup")
    suffix: dict[str, Any] = {"engine": "traced", "drafter": "suffix"}
    assert "--spec-type ngram-cache --spec-draft-n-max 20" in written("llama.cpp", **suffix)
    assert "# llama.cpp's n-gram cache decides how much to propose by thresholds of its own" in written(
        "llama.cpp", **suffix
    )
    combined: dict[str, Any] = {"engine": "traced", "drafter": "combined"}
    lines = written("llama.cpp", **combined)
    assert "--spec-type draft-simple,ngram-mod" in lines
    assert "vLLM does not run draft and suffix tree with automatic lookahead" in written("vllm", **combined)
    assert '"suffix_decoding_max_cached_requests": 0' in written("vllm", **suffix)
    assert '"method": "suffix"' in written("vllm", **suffix)
    assert '"method": "ngram", "prompt_lookup_min": 1' in written("vllm", drafter="lookup")
    assert "--per-request-spec-decode-metrics" not in written("vllm")  # missing in older versions
    assert '"seed": 3' in written("vllm", do_sample=True, seed=3)


@pytest.mark.parametrize("flavour", SOFTWARE)
def test_settings_that_cannot_be_reproduced_are_noted(flavour: str) -> None:
    auto = written(flavour, engine="traced", policy="auto", num_assistant_tokens=3)
    assert auto.startswith(
        f"# {SOFTWARE[flavour].title} does not run draft model with automatic lookahead, at most 20 "
    )
    assert auto.splitlines()[0].endswith("; lookahead 3 is the nearest that it runs")
    alone = PAIR.model_copy(update={"draft": None})
    with pytest.raises(SettingsError, match="no draft model"):
        written(flavour, alone)
    translated = PAIR.model_copy(update={"translated": True})
    with pytest.raises(SettingsError, match="a different tokenizer than its target"):
        written(flavour, translated)
    assert written(flavour, translated, drafter="lookup")


HOSTILE = (
    "it's\ntouch broken\n#",
    "a’; touch broken; ’b “$(touch broken)” ‘‚‛’",
    "$(touch broken)`touch broken`\r\ntouch broken",
    "a\u2028b\u202ec\x1b[31m\t",
    "\"; touch broken; '; import os; os.system('touch broken') #",
    "é 漢字 !x %PATH% \\",
)


@pytest.mark.parametrize("flavour", SOFTWARE)
def test_no_prompt_name_path_or_note_injects_code(
    flavour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the lines in Bash, with programs that only print their arguments; parse Python."""
    for program in ("vllm", "llama-server", "curl"):
        made = tmp_path / program
        made.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"; printf '\\1'\n")
        made.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    for text in HOSTILE:
        name = text if flavour == "genai" else "".join(filter(str.isprintable, text))
        monkeypatch.setattr("specdemo.exports.code.origin", lambda *_, name=name, text=text, **__: Origin(name, text))
        named = PAIR.model_copy(update={"target": PAIR.target.model_copy(update={"name": name})})
        lines = code(flavour, named, GenerationSettings(), text)
        assert all(line.isprintable() for line in lines.split("\n"))
        if flavour == "genai":
            strings = [node.value for node in ast.walk(ast.parse(lines)) if isinstance(node, ast.Constant)]
            assert strings.count(text) >= 3, "the prompt, the target and the draft"
            continue
        done = subprocess.run(["bash", "-c", lines], capture_output=True, cwd=tmp_path, env=environment, check=True)
        started, request = (each.decode().split("\0")[:-1] for each in done.stdout.split(b"\1")[:-1])
        in_json = [value for each in started if each[:1] == "{" for value in json.loads(each).values()]
        assert [*started, *in_json].count(name) >= 2, "the target and the draft"
        body = json.loads(request[-1])
        assert (body["model"], body["prompt"]) == (name, text)
        assert not [*tmp_path.glob("*broken*")]


def test_a_name_with_invisible_characters_is_in_no_command() -> None:
    with pytest.raises(SettingsError, match=r"'a\\nb' has invisible characters; rename it"):
        command(["vllm", "serve", "a\nb"])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    target, draft = map(inspect_model, llama.write_pair(tmp_path_factory.mktemp("gguf")))
    return pair_of(target, draft, runtime=RuntimeSettings())


def llama_cpp(command: list[str]) -> xllamacpp.Server:
    given = dict(zip(command[1::2], command[2::2], strict=True))
    params = xllamacpp.CommonParams()
    params.port, params.n_ctx = 0, 1024
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.model.path, speculative = given.pop("-m"), params.speculative
    kinds = given.pop("--spec-type").upper().replace("-", "_").split(",")
    speculative.types = [xllamacpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{kind}"] for kind in kinds]
    options: dict[str, tuple[Any, str, Any]] = {
        "--port": (params, "port", lambda value: 0),
        "--spec-draft-model": (speculative.draft.mparams, "path", str),
        "--spec-draft-n-max": (speculative.draft, "n_max", int),
        "--spec-draft-p-min": (speculative.draft, "p_min", float),
        "--spec-ngram-simple-size-n": (speculative.ngram_simple, "size_n", int),
        "--spec-ngram-simple-size-m": (speculative.ngram_simple, "size_m", int),
    }
    for name, value in given.items():
        owner, attribute, of = options[name]
        setattr(owner, attribute, of(value))
    return xllamacpp.Server(params)


@pytest.mark.parametrize(
    "chosen",
    [
        {"policy": "confidence", "assistant_confidence_threshold": 0.3},
        {"drafter": "lookup", "max_ngram_size": 2},
        {"engine": "traced", "drafter": "combined"},
    ],
    ids=str,
)
def test_the_lines_for_llama_cpp_run_in_it(tiny: ModelPair, chosen: dict[str, Any]) -> None:
    settings = GenerationSettings.checked(**{"max_new_tokens": 24, "ignore_eos": True, **chosen})
    lines = code("llama.cpp", tiny, settings, "a b a b a", local=True)
    command, request = (shlex.split(part, comments=True) for part in lines.strip().split("\n\n"))
    server = llama_cpp(command)
    path = request[1].removeprefix("http://localhost:8000")
    sent = httpx.post(
        f"{server.listening_address}{path}", content=request[-1], headers={"Content-Type": "application/json"}
    )
    answer = sent.json()
    assert "usage" in answer, answer
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["choices"][0]["message"]["content"]


def test_an_unsupported_strategy_is_noted_and_replaced_by_ngrams(tiny: ModelPair) -> None:
    mixed = tiny.model_copy(update={"draft": bundled_models()[1]})
    lines = code("llama.cpp", mixed, GenerationSettings(), PROMPT, local=True)
    assert lines.startswith(
        "# llama.cpp cannot load story-pair/draft as a draft; n-grams of the text propose instead"
    )
    assert "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 4" in lines
    for flavour in ("vllm", "llama.cpp"):
        with pytest.raises(SettingsError, match="cannot load 'story-pair/target', which exists for OpenVINO only"):
            code(flavour, bundled_pair(), GenerationSettings(), PROMPT, local=True)


def test_remote_visitors_see_no_paths(tiny: ModelPair) -> None:
    pair, settings = bundled_pair(), GenerationSettings()
    here, there = (code("genai", pair, settings, PROMPT, local=local) for local in (True, False))
    assert str(BUNDLED / "target") in here
    assert str(BUNDLED) not in there
    assert "'specdemo/assets/story-pair/target'" in there
    assert there.startswith("# story-pair/target comes with specdemo, in this folder of its package")
    assert tiny.target.path is not None
    lines = code("llama.cpp", tiny, GenerationSettings(), PROMPT)
    assert str(tiny.target.path.parent) not in lines
    assert "-m tiny-target.gguf --spec-type draft-simple --spec-draft-model tiny-draft.gguf" in lines
    assert "# tiny-target.gguf belongs to the operator of this page; ask them for it" in lines


def test_a_catalogues_model_is_named_by_its_repository(monkeypatch: pytest.MonkeyPatch, tiny: ModelPair) -> None:
    source = find("smollm2").target
    monkeypatch.setattr("specdemo.models.library.source_of", lambda model: source)
    lines = code("llama.cpp", tiny, GenerationSettings(drafter="lookup"), PROMPT)
    assert f"# hf download {source.repository} {source.file} --local-dir ." in lines
    original = source.model_copy(update={"format": "convert", "repository": "someone/model"})
    monkeypatch.setattr("specdemo.models.library.source_of", lambda model: original)
    assert "vllm serve someone/model" in code("vllm", tiny, GenerationSettings(), PROMPT)
