"""OpenVINO devices of this machine, and what precision a device is asked for."""

from contextlib import suppress

import numpy as np
import openvino
from openvino import opset13 as opset

from specdemo.errors import DeviceError
from specdemo.settings import Precision

_VIRTUAL = {"AUTO", "MULTI", "HETERO"}  # choose among real devices, as in "AUTO:GPU,CPU"


def check_device(device: str) -> None:
    """Accept a device of this machine by any name OpenVINO has for it, or AUTO, MULTI or HETERO over such.

    Raises:
        DeviceError: this machine has no such device.
    """
    kind, _, members = device.partition(":")
    wanted = members.split(",") if kind in _VIRTUAL else [device]
    available = openvino.Core().available_devices
    known = {*available, *_VIRTUAL, *(name.partition(".")[0] for name in available)}  # GPU is another name of GPU.0
    for name in filter(None, wanted):  # a member may be excluded ("-CPU") or have a priority ("CPU(2)")
        bare = name.removeprefix("-").partition("(")[0].removesuffix(".0")
        if bare not in known:
            raise DeviceError(f"This machine has no device {name!r}; choose one of {', '.join(available)}.")


def device_name(device: str) -> str:
    """The device's full name, such as the processor's; the given name where OpenVINO knows no other."""
    try:
        return str(openvino.Core().get_property(device, "FULL_DEVICE_NAME"))
    except RuntimeError:
        return device


def precision_properties(precision: Precision) -> dict[str, str]:
    """OpenVINO properties for inference and KV-cache precision; empty leaves both to the device."""
    if precision == "default":
        return {}
    return {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}


def properties_in_use(device: str, precision: Precision) -> dict[str, str]:
    """Precisions and threads that a model compiled with this precision reports; a device may use another than asked.

    Read off a model of one operation, so that it takes no time.
    """
    tokens = opset.parameter([1, 1], np.float32)
    model = openvino.Model([opset.result(opset.relu(tokens))], [tokens], "probe")
    compiled = openvino.Core().compile_model(model, device, precision_properties(precision))
    known = {}
    for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "INFERENCE_NUM_THREADS"):
        with suppress(RuntimeError):
            value = compiled.get_property(name)
            known[name] = str(value.to_string() if isinstance(value, openvino.Type) else value)
    return known
