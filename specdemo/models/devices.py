"""OpenVINO devices of this machine, and the properties a model is compiled with."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino
from openvino import opset13 as opset

from specdemo.errors import DeviceError, quoted
from specdemo.models.places import own_cache, writable
from specdemo.settings import RuntimeSettings

_VIRTUAL = {"AUTO", "MULTI", "HETERO"}  # choose among real devices, as in "AUTO:GPU,CPU"
_NPU = (
    "GenAI decodes speculatively on an NPU only in a pipeline that cannot be stepped, adapts the lookahead by itself "
    "and takes no confidence threshold, and the traced engine needs dynamic shapes"
)

_TOLD = (
    "INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE", "INFERENCE_NUM_THREADS",
)  # fmt: skip


class Device(NamedTuple):
    """A device: its name in OpenVINO, its full name, and why it cannot be used here, if so."""

    name: str
    full_name: str
    reason: str | None = None


def devices() -> list[Device]:
    """Every device of this machine, and AUTO, which lets OpenVINO choose."""
    names = openvino.Core().available_devices
    found = [Device(name, device_name(name), _NPU if name.startswith("NPU") else None) for name in names]
    return [*found, Device("AUTO", "OpenVINO chooses")]


def check_devices(runtime: RuntimeSettings) -> None:
    """Check both devices of a pair.

    Raises:
        DeviceError: this machine has no such device, or it does not support what both engines need.
    """
    for device in {runtime.device, draft_device(runtime)}:
        _check_device(device)


def _check_device(device: str) -> None:
    """Accept a device of this machine by any of its OpenVINO names, or AUTO, MULTI or HETERO over such."""
    kind, _, members = device.partition(":")
    wanted = members.split(",") if kind in _VIRTUAL else [device]
    available = openvino.Core().available_devices
    known = {*available, *_VIRTUAL, *(name.partition(".")[0] for name in available)}  # GPU is another name of GPU.0
    for name in filter(None, wanted):  # a member may be excluded ("-CPU") or have a priority ("CPU(2)")
        bare = name.removeprefix("-").partition("(")[0].removesuffix(".0")
        if bare not in known:
            raise DeviceError(f"This machine has no device {quoted(name)}; choose one of {', '.join(available)}.")
        if bare.startswith("NPU") and not name.startswith("-"):
            raise DeviceError(f"{_NPU}; choose CPU or GPU.")


def check_head_device(device: str) -> None:
    """Check that an EAGLE-3 head's target can run there: GenAI queries it for what only a real device has.

    Raises:
        DeviceError: the device is one that chooses among others.
    """
    if device.partition(":")[0] in _VIRTUAL:
        raise DeviceError(f"The target of an EAGLE-3 head cannot run on {device}; choose a device, such as CPU.")


def draft_device(runtime: RuntimeSettings) -> str:
    """The device of the draft, the target's unless it has its own."""
    return runtime.draft_device or runtime.device


def device_name(device: str) -> str:
    """The device's full name, such as the processor's; the given name where OpenVINO knows no other."""
    try:
        return str(openvino.Core().get_property(device, "FULL_DEVICE_NAME"))
    except RuntimeError:
        return device


def properties(runtime: RuntimeSettings, device: str) -> dict[str, str]:
    """OpenVINO properties that a model on this device is compiled with; empty leaves all to the device.

    Compiled models are cached without their weights, which are read from the model's folder.

    Raises:
        SpecdemoError: they cannot be cached, but should.
    """
    chosen: dict[str, str] = {}
    if runtime.precision != "default":
        chosen["INFERENCE_PRECISION_HINT"] = chosen["KV_CACHE_PRECISION"] = runtime.precision
    if runtime.kv_cache_precision != "default":
        chosen["KV_CACHE_PRECISION"] = runtime.kv_cache_precision
    if runtime.dynamic_quantization == "off":
        chosen["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"
    if runtime.inference_num_threads and device.startswith("CPU"):
        chosen["INFERENCE_NUM_THREADS"] = str(runtime.inference_num_threads)
    if runtime.model_cache:
        chosen |= {"CACHE_DIR": str(_compiled()), "CACHE_MODE": "OPTIMIZE_SIZE"}
    return chosen


def _compiled() -> Path:
    """Where compiled models are kept; OpenVINO's own complaint would read as if the model were damaged."""
    advice = "set XDG_CACHE_HOME to a writable folder, or switch the compiled-model cache off"
    return writable(own_cache() / "compiled", "Compiled models", advice)


def properties_in_use(runtime: RuntimeSettings, device: str) -> dict[str, str]:
    """The properties a model compiled this way reports; a device may use others than requested.

    Read from a model of one operation, which takes no time.
    """
    tokens = opset.parameter([1, 1], np.float32)
    model = openvino.Model([opset.result(opset.relu(tokens))], [tokens], "probe")
    asked = properties(runtime.model_copy(update={"model_cache": False}), device)
    compiled = openvino.Core().compile_model(model, device, asked)
    known = {}
    for name in (*_TOLD, "EXECUTION_DEVICES"):
        with suppress(RuntimeError):
            value = compiled.get_property(name)
            text = value.to_string() if isinstance(value, openvino.Type) else value
            known[name] = ", ".join(text) if isinstance(text, list) else str(text)
    return known
