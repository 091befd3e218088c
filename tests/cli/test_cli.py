import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdemo.cli import main
from specdemo.cli.commands import build_parser
from specdemo.cli.options import chosen_pair
from specdemo.cli.terminal import progress
from specdemo.models.catalogue import BUNDLED
from specdemo.settings import GenerationSettings, RuntimeSettings
from tests.support.scripted import ScriptedEngine

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"


def test_a_spaces_app_file_runs_serve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["app.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "app.py"), run_name="__main__")
    assert ended.value.code == 0
    assert "specdemo serve" in capsys.readouterr().out


def test_the_headline_counts_its_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    shared = [tmp_path / f"run.{kind}" for kind in ("html", "gif")]
    files = [part for file in shared for part in (f"--{file.suffix[1:]}", str(file))]
    arguments = ["compare", "Say", "--repeats", "6", "--json", str(path), *files]
    assert main(arguments, load=lambda *_: ScriptedEngine(wrong=(4,))) == 0
    assert [file.read_bytes()[:4] for file in shared] == [b"<!do", b"GIF8"]
    printed = " ".join(capsys.readouterr().out.split())
    assert "1.82× (95 % interval" in printed
    assert "scripted on scripted: lookahead 4, draft model, GenAI engine, greedy, at most 128 tokens." in printed
    summary = json.loads(path.read_text())["summary"]
    assert (summary["pooled"], summary["runs"]) == ("in the race and 6 repeats", 7)
    low, high = summary["speedup_interval"]
    assert low < summary["speedup"] < high
    assert main(["compare", "Say", "--repeats", "0", "--explain"], load=lambda *_: ScriptedEngine(wrong=(4,))) == 0
    alone = capsys.readouterr().out
    assert "For the same 8 tokens plain decoding took" in alone
    assert alone.count("faster in this race.") == 1, "nothing changed it"
    assert main(["compare", "Say", "--gif", str(tmp_path)], load=lambda *_: ScriptedEngine(wrong=(4,))) == 2


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare x --device TPU", "This machine has no device 'TPU'"),
        ("compare x --draft d", "--draft needs --target"),
        ("compare x --json /nowhere/run.json", "Cannot write a file at '/nowhere/run.json'"),
        ("compare x --html -", "Cannot write a file at '-'; choose another path"),
        ("compare x --json run.x --html ./run.x", "Two results would be written to one file"),
        ("compare x --target a --url http://127.0.0.1:9", "are for the server engine"),
        ("compare x --engine genai --plain-url http://127.0.0.1:9", "are for the server engine"),
        ("code x --temperature 0.3", "no effect in greedy decoding"),
        (f"tune x --lookaheads {'n' * 5000}", "should be a valid integer"),
        ("models info a\0b", "Unknown model"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_requests_are_one_sentence(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    sentences = [line for line in captured.err.splitlines() if line.startswith("specdemo: ") and line.endswith(".")]
    assert len(sentences) == 1
    assert message in sentences[0]
    assert "Traceback" not in captured.err
    assert len(captured.err) < 1500


@pytest.mark.parametrize(
    "arguments", ["", "code", "compare x --policy hope", "serve --port 70000", "compare x --repeats -1"]
)
def test_bad_usage_exits_with_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == 2
    (sentence,) = capsys.readouterr().err.splitlines()  # without the full usage
    assert sentence.startswith("specdemo: ")
    assert sentence.endswith("--help lists all options.")


def test_progress_into_a_pipe_is_one_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "Say", "--repeats", "1"], load=lambda *_: ScriptedEngine()) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "specdemo: loading"
    assert "specdemo: warming up" in lines
    assert "specdemo: racing" in lines
    assert "specdemo: repeating, 1 repeat so far; Ctrl+C keeps the results so far" in lines
    with progress("starting") as show:
        show("measuring", ", 1 of 40 runs")
        show("measuring", ", 2 of 40 runs")  # too soon after the previous line
    assert capsys.readouterr().err.splitlines() == ["specdemo: starting", "specdemo: measuring, 1 of 40 runs"]


def test_serve_takes_hosts_and_a_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr("specdemo.ui.page.serve", lambda pair, **given: options.update(given))
    assert main(["serve", "--allowed-host", "demo.example.org", "--allowed-host", "*.lan"]) == 0
    assert options["allowed_hosts"] == ["demo.example.org", "*.lan"]
    for name in ("https://demo.example.org", "demo:80", "a.*", ""):
        with pytest.raises(SystemExit):
            main(["serve", "--allowed-host", name])
        assert "give it without scheme and port" in capsys.readouterr().err
    for auth in ("", "user:"):
        assert main(["serve", "--auth", auth]) == 2
        assert "--auth takes USER:PASSWORD" in capsys.readouterr().err


def test_every_setting_is_an_option_with_its_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        build_parser().parse_args(["compare", "--help"])
    assert stopped.value.code == 0
    help_ = " ".join(capsys.readouterr().out.split())
    for name, field in {**GenerationSettings.model_fields, **RuntimeSettings.model_fields}.items():
        assert f"--{name.replace('_', '-')}" in help_
        assert field.title
        assert str(field.description) in help_


INTERRUPTED = """
import signal
from specdemo.cli.terminal import interruptible
from specdemo.engines import load_engine
from specdemo.models.catalogue import bundled_pair

with interruptible() as stop:
    load_engine("traced", bundled_pair()).close()
    signal.raise_signal(signal.SIGINT)
    assert stop()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("Interrupted.")
"""


@pytest.mark.openvino
def test_ctrl_c_works_after_an_engine_was_freed() -> None:
    """Runs in a separate process, which would crash if OpenVINO left a stack behind for signal handlers."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Interrupted.\n"), done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_an_output_that_cannot_be_written_is_named() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "specdemo", "models", "list"]
        ended = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert ended.returncode == 1
    assert ended.stderr == "specdemo: Cannot write the output (No space left on device); send it elsewhere.\n"


def test_ctrl_c_at_the_start_ends_silently() -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'numpy': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from specdemo.cli import main\n"
        "sys.exit(main(['models', 'list']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.openvino
def test_a_target_alone_is_raced_with_prompt_lookup_and_not_with_a_draft(capsys: pytest.CaptureFixture[str]) -> None:
    alone = ["compare", "x", "--repeats", "0", "--target", str(FIXTURES / "llama" / "target")]
    assert main(alone, load=lambda *_: ScriptedEngine()) == 0
    assert main([*alone, "--drafter", "model"], load=lambda *_: pytest.fail("nothing is loaded")) == 1
    captured = capsys.readouterr()
    assert "prompt lookup" in captured.out
    assert "This pair has no draft model; add one, or choose prompt lookup." in captured.err


def test_a_target_takes_the_draft_that_fits_unless_another_drafter_is_named() -> None:
    parse, given = build_parser().parse_args, ["compare", "x", "--target", str(BUNDLED / "target")]
    for drafter in ((), ("--drafter", "combined")):
        draft = chosen_pair(parse([*given, *drafter])).draft
        assert draft is not None
        assert draft.path == BUNDLED / "draft"
    assert chosen_pair(parse([*given, "--drafter", "lookup"])).draft is None
