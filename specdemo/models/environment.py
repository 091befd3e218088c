"""What a comparison was measured on: versions, devices, precisions, threads."""

import platform
from importlib.metadata import version

from specdemo import __version__
from specdemo.models.devices import device_name, draft_device, draft_runtime, properties_in_use
from specdemo.records import Environment, ModelPair


def describe_environment(pair: ModelPair) -> Environment:
    """The environment in which this pair is loaded."""
    runtime = pair.runtime
    names = (runtime.device, draft_device(runtime))
    sides = [(runtime, names[0]), (draft_runtime(runtime), names[1])]
    target = properties_in_use(*sides[0])
    draft = target if sides[0] == sides[1] else properties_in_use(*sides[1])
    return Environment(
        specdemo=__version__,
        python=platform.python_version(),
        openvino=version("openvino"),
        openvino_genai=version("openvino-genai"),
        openvino_tokenizers=version("openvino-tokenizers"),
        device=_full_name(runtime.device, target),
        draft_device=_full_name(names[1], draft),
        inference_precision=target.get("INFERENCE_PRECISION_HINT", "unknown"),
        kv_cache_precision=target.get("KV_CACHE_PRECISION", "unknown"),
        draft_inference_precision=draft.get("INFERENCE_PRECISION_HINT", "unknown"),
        dynamic_quantization=_groups(target.get("DYNAMIC_QUANTIZATION_GROUP_SIZE")),
        threads=int(target["INFERENCE_NUM_THREADS"]) if "INFERENCE_NUM_THREADS" in target else None,
    )


def _groups(size: str | None) -> str:
    """How activations are quantized before they meet compressed weights."""
    if size is None:
        return "unknown"
    return f"groups of {size}" if int(size) else "off"


def _full_name(device: str, used: dict[str, str]) -> str:
    """The device's full name; for one that chooses, also what it chose."""
    chosen = used.get("EXECUTION_DEVICES", device).strip("()")
    return device_name(device) if chosen == device else f"{device}: {device_name(chosen)}"
