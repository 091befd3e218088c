from pathlib import Path

import pytest

from specdemo.errors import DeviceError, UsageError
from specdemo.models import devices
from specdemo.models.devices import PROPERTIES_VARIABLE, check_devices, properties
from specdemo.settings import RuntimeSettings


def test_properties_of_the_cpu_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "instruction_sets", list)
    monkeypatch.setenv(PROPERTIES_VARIABLE, "INFERENCE_NUM_THREADS=1 SCHEDULING_CORE_TYPE=PCORE_ONLY")
    runtime = RuntimeSettings()
    variables = {"INFERENCE_NUM_THREADS": "1", "SCHEDULING_CORE_TYPE": "PCORE_ONLY"}
    assert properties(runtime, "CPU") == variables
    assert properties(runtime, "GPU") == {}
    two = runtime.model_copy(update={"inference_num_threads": 2})
    assert properties(two, "CPU") == variables | {"INFERENCE_NUM_THREADS": "2"}
    monkeypatch.setenv(PROPERTIES_VARIABLE, "PCORE_ONLY")
    with pytest.raises(UsageError, match="SPECDEMO_CPU_PROPERTIES takes NAME=VALUE"):
        properties(runtime, "CPU")


def test_one_thread_computes_in_f32_if_openvino_would_crash(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": "1"}
    monkeypatch.delenv(PROPERTIES_VARIABLE)
    monkeypatch.setattr(devices, "instruction_sets", lambda: ["AMX BF16"])
    monkeypatch.setattr(devices, "_probe", lambda device, requested: used | requested)
    devices._computes_in_bf16_on_one_thread.cache_clear()
    one = RuntimeSettings(inference_num_threads=1)
    assert properties(one, "CPU")["INFERENCE_PRECISION_HINT"] == "f32"
    assert "so models compute in f32" in caplog.text
    with pytest.raises(DeviceError, match=r"crashes .* choose precision f32 or two threads"):
        properties(one.model_copy(update={"precision": "bf16"}), "CPU")
    two = one.model_copy(update={"inference_num_threads": 2})
    assert "INFERENCE_PRECISION_HINT" not in properties(two, "CPU")
    devices._computes_in_bf16_on_one_thread.cache_clear()


@pytest.mark.parametrize("device", ["TPU", "HETERO", "cpu", "CPU.7", "T" * 9999])
def test_devices_this_machine_does_not_have(device: str) -> None:
    with pytest.raises(DeviceError, match=r"This machine has no device '.*'; choose one of .*CPU") as caught:
        check_devices(RuntimeSettings(device=device))
    assert len(str(caught.value)) < 500


class Machine:
    available_devices = ("CPU", "GPU.0", "GPU.1", "NPU")


def test_gpus_are_accepted_by_any_of_their_names_and_npus_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openvino.Core", Machine)
    for device in ("GPU", "GPU.0", "GPU.1", "AUTO"):
        check_devices(RuntimeSettings(device=device))
    with pytest.raises(DeviceError, match=r"no device 'GPU\.2'"):
        check_devices(RuntimeSettings(device="GPU.2"))
    for virtual in ("AUTO", "HETERO", "MULTI", "BATCH"):
        with pytest.raises(DeviceError, match=f"on one device, not on {virtual}:…; choose one, or AUTO"):
            check_devices(RuntimeSettings(draft_device=f"{virtual}:GPU.1,CPU"))
    with pytest.raises(DeviceError, match=r"cannot be stepped.*; choose CPU or GPU"):
        check_devices(RuntimeSettings(device="NPU"))
    check_devices(RuntimeSettings(device="GPU"), head=True)
    with pytest.raises(DeviceError, match="cannot run on AUTO; choose a device, such as CPU"):
        check_devices(RuntimeSettings(device="AUTO"), head=True)


def test_instruction_sets_are_those_that_the_system_reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: A processor\nflags\t\t: fpu avx2 avx512f avx512_vnni amx_int8\n")
    monkeypatch.setattr(devices, "Path", lambda path: info)
    assert devices.processor() == "A processor"
    assert {"AVX2", "AVX-512", "AVX-512 VNNI", "AMX INT8"} <= set(devices.instruction_sets())
