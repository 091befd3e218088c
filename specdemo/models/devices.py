"""OpenVINO devices of this machine, and what precision a device is asked for."""

import openvino

from specdemo.errors import DeviceError
from specdemo.settings import Precision

_VIRTUAL = {"AUTO", "MULTI", "HETERO"}  # choose among real devices, as in "AUTO:GPU,CPU"


def check_device(device: str) -> None:
    """Accept a device of this machine, or AUTO, MULTI or HETERO over devices of this machine.

    Raises:
        DeviceError: this machine has no such device.
    """
    available = openvino.Core().available_devices
    kind, _, members = device.partition(":")
    wanted = members.split(",") if members and kind in _VIRTUAL else [device]
    unknown = [name for name in wanted if name not in available and name not in _VIRTUAL]
    if unknown:
        raise DeviceError(f"This machine has no device {unknown[0]!r}; choose one of {', '.join(available)}.")


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


def device_precision(device: str, key: str) -> str:
    """The precision a device chooses when left to itself, by property name."""
    try:
        return str(openvino.Core().get_property(device, key).to_string())
    except (RuntimeError, AttributeError):
        return "unknown"
