"""What a comparison was measured on: versions, devices, precisions, threads."""

import platform
from importlib.metadata import version

from specdemo import __version__
from specdemo.models.devices import device_name, properties_in_use
from specdemo.records import Environment, ModelPair


def describe_environment(pair: ModelPair) -> Environment:
    """The environment in which this pair is loaded."""
    runtime = pair.runtime
    draft_device = runtime.draft_device or runtime.device
    used = {device: properties_in_use(device, runtime.precision) for device in {runtime.device, draft_device}}
    target, draft = used[runtime.device], used[draft_device]
    return Environment(
        specdemo=__version__,
        python=platform.python_version(),
        openvino=version("openvino"),
        openvino_genai=version("openvino-genai"),
        openvino_tokenizers=version("openvino-tokenizers"),
        device=device_name(runtime.device),
        draft_device=device_name(draft_device),
        inference_precision=target.get("INFERENCE_PRECISION_HINT", "unknown"),
        kv_cache_precision=target.get("KV_CACHE_PRECISION", "unknown"),
        draft_inference_precision=draft.get("INFERENCE_PRECISION_HINT", "unknown"),
        threads=int(target["INFERENCE_NUM_THREADS"]) if "INFERENCE_NUM_THREADS" in target else None,
    )
