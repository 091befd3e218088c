import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdemo.cli import doctor, main


def test_the_report_has_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("```text\n")
    assert out.endswith("```\n")
    for word in ("specdemo 0.1.0", "Python 3.", "openvino 2026", "processor:", "instruction sets:", "memory:", "CPU"):
        assert word in out
    assert "story-pair/target, story-pair/draft" in out
    assert f"{Path.home()}/" not in out or str(Path.home()) == "/"


def test_an_output_that_lacks_greek_letters_is_no_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specdemo", "--help"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "[OPTION ?]" in done.stdout


class Machine:
    available_devices = ("CPU", "GPU.0", "GPU.1", "NPU")

    def get_property(self, device: str, name: str) -> str:
        return f"the {device}"


def test_restrictions_of_gpus_and_npus_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openvino.Core", Machine)
    devices = [line.removeprefix("device ") for line in doctor.machine() if line.startswith("device ")]
    assert devices[:1] == ["CPU: the CPU"]
    assert "must be named GPU" in devices[1]
    assert "untried" in devices[2]
    assert "refused" in devices[3]
    assert "cannot be stepped" in devices[3]
