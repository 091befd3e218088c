"""What `doctor` says of a machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdemo.cli import doctor, main
from specdemo.cli.doctor import allows, block, speculation
from specdemo.errors import DeviceError
from specdemo.models import devices
from specdemo.models.devices import check_devices, check_head_device
from specdemo.models.pairs import bundled_pair
from specdemo.records import Costs
from specdemo.settings import RuntimeSettings

COSTS = Costs(plain_step=0.010, draft_step=0.002, verify=tuple(0.010 + 0.001 * n for n in range(17)))


def test_the_block_says_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-measure"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("```text\n")
    assert out.endswith("```\n")
    for word in ("specdemo 0.1.0", "Python 3.", "openvino 2026", "processor:", "instruction sets:", "memory:", "CPU"):
        assert word in out
    assert f"{Path.home()}/" not in out or str(Path.home()) == "/"


def test_it_is_machine_readable_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-measure", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["openvino"]
    assert found["memory_bytes"] > found["memory_free_bytes"] > 0
    assert found["allows"] == []


@pytest.mark.openvino
def test_it_measures_what_this_machine_allows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] is None
    tried = [row["lookahead"] for row in found["allows"]]
    assert tried == [1, 2, 3, 4, 6, 8, 12, 16][: len(tried)]  # a busy machine times fewer lengths
    assert tried
    assert "lookahead" in "\n".join(block(found))


def test_it_warns_of_a_busy_machine() -> None:
    measured = {"engine": "genai", "costs": COSTS.model_dump(mode="json"), "allows": allows(COSTS), "other_load": 0.5}
    found = doctor.machine() | {"folders": {}, "models": []} | speculation(bundled_pair(), measure=False) | measured
    (warning,) = (line for line in block(found) if line.startswith("warning:"))
    assert "50 %" in warning
    assert not any(line.startswith("warning:") for line in block(found | {"other_load": 0.01}))


def test_instruction_sets_are_those_the_system_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: A processor\nflags\t\t: fpu avx2 avx512f avx512_vnni amx_int8\n")
    monkeypatch.setattr(devices, "Path", lambda path: info)
    assert devices.processor() == "A processor"
    assert {"AVX2", "AVX-512", "AVX-512 VNNI", "AMX INT8"} <= set(devices.instruction_sets())


def test_an_output_without_such_letters_is_no_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specdemo", "--help"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "[OPTION ?]" in done.stdout


class Machine:
    """OpenVINO on a machine with other devices."""

    available_devices = ("CPU", "GPU.0", "GPU.1", "NPU")

    def get_property(self, device: str, name: str) -> str:
        return f"the {device}"


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openvino.Core", Machine)


@pytest.mark.usefixtures("elsewhere")
def test_what_is_known_of_gpus_and_npus_is_said() -> None:
    lines = {device["name"]: device["remark"] or "" for device in doctor.machine()["devices"]}
    assert lines["CPU"] == ""
    assert "untried" in lines["GPU.1"]
    assert "must be named GPU" in lines["GPU.0"]
    for words in ("untried", "refused", "cannot be stepped", "static shapes", "top-k tokens of an EAGLE-3 head"):
        assert words in lines["NPU"], words


@pytest.mark.usefixtures("elsewhere")
def test_gpus_are_accepted_by_any_of_their_names() -> None:
    for device in ("GPU", "GPU.0", "GPU.1", "AUTO"):
        check_devices(RuntimeSettings(device=device))
    with pytest.raises(DeviceError, match=r"no device 'GPU\.2'"):
        check_devices(RuntimeSettings(device="GPU.2"))


def test_a_heads_target_needs_a_real_device() -> None:
    check_head_device("GPU")
    with pytest.raises(DeviceError, match=r"cannot run on AUTO; choose a device, such as CPU"):
        check_head_device("AUTO")
