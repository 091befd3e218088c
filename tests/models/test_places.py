"""Folders of this machine that cannot be written."""

import hashlib
from pathlib import Path

import pytest

from specdemo.errors import DeviceError, SpecdemoError, UsageError
from specdemo.models import devices
from specdemo.models.converted import file_digest
from specdemo.models.devices import PROPERTIES_VARIABLE, properties
from specdemo.models.library import library
from specdemo.models.places import writable
from specdemo.settings import RuntimeSettings


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache where nothing can be written."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    return tmp_path / "file"


def test_compiled_models_are_not_cached_where_nothing_can_be_written(
    no_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert "CACHE_DIR" not in properties(RuntimeSettings(precision="f32"), "CPU")
    (record,) = caplog.records
    assert f"{no_cache}/specdemo/compiled" in record.getMessage()
    assert record.getMessage().endswith("set XDG_CACHE_HOME to a writable folder.")
    with pytest.raises(SpecdemoError, match="Rows cannot be saved in "):
        writable(no_cache / "rows", "Rows")


def test_digests_need_no_cache(no_cache: Path) -> None:
    assert file_digest(no_cache) == hashlib.sha256(b"").hexdigest()
    assert library().models


def test_properties_of_the_cpu_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_crashes_on_one_thread", lambda: False)
    monkeypatch.setenv(PROPERTIES_VARIABLE, "INFERENCE_NUM_THREADS=1 SCHEDULING_CORE_TYPE=PCORE_ONLY")
    runtime = RuntimeSettings(model_cache=False)
    given = {"INFERENCE_NUM_THREADS": "1", "SCHEDULING_CORE_TYPE": "PCORE_ONLY"}
    assert properties(runtime, "CPU") == given
    assert properties(runtime, "GPU") == {}
    two = runtime.model_copy(update={"inference_num_threads": 2})
    assert properties(two, "CPU") == given | {"INFERENCE_NUM_THREADS": "2"}
    monkeypatch.setenv(PROPERTIES_VARIABLE, "PCORE_ONLY")
    with pytest.raises(UsageError, match="SPECDEMO_CPU_PROPERTIES takes NAME=VALUE"):
        properties(runtime, "CPU")


def test_one_thread_computes_in_f32_where_openvino_would_crash(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": "1"}
    monkeypatch.delenv(PROPERTIES_VARIABLE)
    monkeypatch.setattr(devices, "_crashes_on_one_thread", lambda: True)
    monkeypatch.setattr(devices, "_probe", lambda device, asked: used | asked)
    devices._computes_in_bf16_on_one_thread.cache_clear()
    one = RuntimeSettings(inference_num_threads=1, model_cache=False)
    assert properties(one, "CPU")["INFERENCE_PRECISION_HINT"] == "f32"
    assert "so models compute in f32" in caplog.text
    with pytest.raises(DeviceError, match=r"crashes .* choose precision f32 or two threads"):
        properties(one.model_copy(update={"precision": "bf16"}), "CPU")
    two = one.model_copy(update={"inference_num_threads": 2})
    assert "INFERENCE_PRECISION_HINT" not in properties(two, "CPU")
    devices._computes_in_bf16_on_one_thread.cache_clear()
