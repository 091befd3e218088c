import io
import json
import signal
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from specdemo.cli import main
from specdemo.engines.base import Decoder, Prefill
from specdemo.errors import LoadError, ServerError
from specdemo.records import Costs, Request, Round
from specdemo.strategies import Plain
from tests.support.failing import failing_engine
from tests.support.scripted import ScriptedEngine

REFUSED = "The server at http://127.0.0.1:9 refused; start it."


class Interrupted(ScriptedEngine):
    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        decoder = super().decoder(request, costs)
        with_proposals = decoder.with_proposals

        def interrupting(rounds: Sequence[Round]) -> list[Round]:
            if self.requests == 2 and len(rounds) > 1:
                signal.raise_signal(signal.SIGINT)
            return with_proposals(rounds)

        decoder.with_proposals = interrupting  # type: ignore[method-assign]
        return decoder


class HalfDown(ScriptedEngine):
    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        decoder = super().decoder(request, costs)
        if isinstance(request.strategy, Plain):
            decoder.rounds = refusing  # type: ignore[method-assign]
        return decoder


def refusing() -> Generator[Prefill | Round]:
    yield from ()
    raise ServerError(REFUSED)


@pytest.mark.parametrize(
    ("engine", "reason"), [(Interrupted(), "cancelled"), (failing_engine(KeyboardInterrupt, 7), "length")]
)
def test_ctrl_c_during_and_after_a_race_keeps_its_results(
    engine: ScriptedEngine, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    options = ["--json", str(path), "--ignore-eos", "--repeats", "9", "--max-new-tokens", "200"]
    assert main(["compare", "Say", *options], load=lambda *_: engine) == 130
    data = json.loads(path.read_text())
    assert {data[side]["finish_reason"] for side in ("plain", "speculative")} == {reason}
    assert "the quick brown fox" in capsys.readouterr().out


def test_a_prompt_is_typed_or_all_of_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfOne\r\n\ntwo\n")))
    assert main(["compare", "-", "--repeats", "0", "--json", str(out)], load=lambda *_: ScriptedEngine()) == 0
    assert json.loads(out.read_text())["prompt"] == "One\n\ntwo"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"two \xff")))
    assert main(["compare", "-"], load=lambda *_: pytest.fail("nothing is loaded")) == 2
    assert "Cannot read 'standard input' as text" in capsys.readouterr().err
    refused = {str(out): "is the name of a file; pipe it to the prompt -", "": "The prompt is empty"}
    for prompt, message in refused.items():
        assert main(["compare", prompt], load=lambda *_: pytest.fail("nothing is loaded")) == 2
        assert message in capsys.readouterr().err


def test_a_side_that_failed_is_named_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    options = ["--repeats", "0", "--json", str(path)]
    assert main(["compare", "Say", *options], load=lambda *_: HalfDown(name="server")) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == f"specdemo: The plain side failed: {REFUSED}"
    assert "the quick brown fox" in captured.out
    assert json.loads(path.read_text())["failures"] == {"plain": REFUSED}


def test_files_that_cannot_be_written_are_named_and_skip_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "a.html"
    options = ["--repeats", "0", "--json", "/dev/full", "--markdown", "/proc/a.md", "--html", str(html)]
    assert main(["compare", "Say", *options], load=lambda *_: ScriptedEngine()) == 1
    assert html.read_bytes()[:2] == b"<!"
    *_, complaint, cause, other = capsys.readouterr().err.splitlines()
    assert "'/dev/full' (No space left on device); choose another path. Cannot write '/proc/a.md' (" in complaint
    assert cause.strip() == "OSError: [Errno 28] No space left on device"
    assert other.strip() == "FileNotFoundError: [Errno 2] No such file or directory"


def test_answers_and_names_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine(words=(" \x1b[31m[red]", " a\u202eb", " :smile:"))
    engine.pair = engine.pair.model_copy(update={"name": "x\x1b]0;title\x07"})
    assert main(["compare", "Say \x1b[2J", "--repeats", "0", "--explain"], load=lambda *_: engine) == 0
    out = capsys.readouterr().out
    assert not set(out) & {"\x1b", "\x07", "\u202e"}
    for shown in (r"\x1b[31m[red]", r"a\u202eb", ":smile:", r"Say \x1b[2J", r"x\x1b]0;title"):
        assert shown in out


def test_a_traceback_is_logged_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    def load(*_: object) -> ScriptedEngine:
        try:
            raise RuntimeError("Exception from core.cpp:99")
        except RuntimeError as error:
            raise LoadError.of(error, "OpenVINO cannot load 'x' on CPU", "export it again") from error

    assert main(["compare", "Say"], load=load) == 1
    *_, complaint, cause = capsys.readouterr().err.splitlines()
    assert complaint == "specdemo: OpenVINO cannot load 'x' on CPU; export it again."
    assert cause == "  RuntimeError: Exception from core.cpp:99"
    assert main(["--log-level", "debug", "compare", "Say"], load=load) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err
