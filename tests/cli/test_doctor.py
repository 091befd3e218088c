import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from specdemo.cli import doctor, main
from specdemo.models.catalogue import bundled_pair
from tests.support.step_costs import costs_of

COSTS = costs_of(draft=0.002, verify=tuple(0.010 + 0.001 * n for n in range(6)))


def test_the_report_has_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-measure"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("```text\n")
    assert out.endswith("```\n")
    for word in ("specdemo 0.1.0", "Python 3.", "openvino 2026", "processor:", "instruction sets:", "memory:", "CPU"):
        assert word in out
    assert "story-pair/target, story-pair/draft" in out
    assert f"{Path.home()}/" not in out or str(Path.home()) == "/"


def test_it_shows_this_machines_limits_and_warns_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = MagicMock()
    opened.return_value.__enter__.return_value.costs.return_value = COSTS
    opened.return_value.__enter__.return_value.settings.return_value.engine = "genai"
    monkeypatch.setattr(doctor, "Pair", opened)
    monkeypatch.setattr(doctor, "OtherLoad", lambda **_: MagicMock(share=lambda: 0.5))
    first, head, *rows, warning = doctor.pair_lines(bundled_pair())
    assert first == "pair story-pair, genai engine: plain step 10.00 ms, draft step 2.00 ms"
    assert head.startswith("lookahead")
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4"], "as many as were measured"
    assert rows[1].split() == ["2", "1.20", "1.88×"], "3 / (2 × 0.2 + 1.2)"
    assert "50 %" in warning


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
    devices = [line.removeprefix("device ") for line in doctor.machine_lines() if line.startswith("device ")]
    assert devices[:1] == ["CPU: the CPU"]
    assert "must be named GPU" in devices[1]
    assert "untried" in devices[2]
    assert "refused" in devices[3]
    assert "cannot be stepped" in devices[3]
