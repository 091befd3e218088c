"""What a comparison was measured on: versions, devices, precisions, threads."""

import os
import platform
import sys
from importlib.metadata import version

from specdemo import __version__
from specdemo.models.devices import device_name, device_precision
from specdemo.records import Environment, ModelPair


def describe_environment(pair: ModelPair) -> Environment:
    """The environment in which this pair is loaded."""
    runtime = pair.runtime
    chosen = None if runtime.precision == "default" else runtime.precision
    return Environment(
        specdemo=__version__,
        python=platform.python_version(),
        openvino=version("openvino"),
        openvino_genai=version("openvino-genai"),
        openvino_tokenizers=version("openvino-tokenizers"),
        device=device_name(runtime.device),
        draft_device=device_name(runtime.draft_device or runtime.device),
        inference_precision=chosen or device_precision(runtime.device, "INFERENCE_PRECISION_HINT"),
        kv_cache_precision=chosen or device_precision(runtime.device, "KV_CACHE_PRECISION"),
        threads=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
    )
