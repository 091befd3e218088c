"""This machine: its processor, memory and OpenVINO devices, and the properties that models are compiled with.

Processors of one name can differ by half: VNNI and AMX multiply int8 and bf16 several times faster than AVX2, so
verifying more tokens costs little. OpenVINO is imported inside functions, since listing models does not need it.
"""

import ctypes
import logging
import os
import platform
import re
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from rich import filesize

from specdemo.capabilities import ENGINES, EngineName
from specdemo.errors import DeviceError, UsageError, quoted
from specdemo.records import Environment, ModelPair
from specdemo.settings import RuntimeSettings
from specdemo.version import __version__

INSTRUCTION_SETS = {
    "AVX2": "avx2", "AVX-VNNI": "avx_vnni", "AVX-512": "avx512f", "AVX-512 VNNI": "avx512_vnni",
    "AVX-512 BF16": "avx512_bf16", "AVX-512 FP16": "avx512_fp16", "AMX INT8": "amx_int8", "AMX BF16": "amx_bf16",
    "NEON": "asimd neon", "dot product": "asimddp feat_dotprod", "I8MM": "i8mm feat_i8mm", "SVE": "sve",
}  # fmt: skip
"""Instruction sets that matter for decoding, with their names in /proc/cpuinfo."""
_NUMPY = {"X86_V3": "avx2", "AVX2": "avx2", "X86_V4": "avx512f", "AVX512F": "avx512f", "AVX512_ICL": "avx512_vnni"}


@cache
def multiplies_int8() -> bool:
    """Whether this processor multiplies int8 several times faster than f32."""
    return bool({"AVX-VNNI", "AVX-512 VNNI", "AMX INT8"} & set(instruction_sets()))


def _cpuinfo() -> list[str]:
    with suppress(OSError):
        return Path("/proc/cpuinfo").read_text().splitlines()
    return []


def instruction_sets() -> list[str]:
    """Return the instruction sets that Linux reports or, on other systems, those that numpy detects."""
    flags = {word for line in _cpuinfo() if line.startswith(("flags", "Feat")) for word in line.split()}
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    flags |= {_NUMPY[name] for name in (*extensions["baseline"], *extensions["found"]) if name in _NUMPY}
    return [name for name, names in INSTRUCTION_SETS.items() if flags & {*names.split()}]


def processor() -> str:
    name = next((line.partition(":")[2] for line in _cpuinfo() if line.startswith("model name")), "")
    return name.strip() or platform.processor() or platform.machine()


_CGROUPS, _OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cpu_quota() -> tuple[float, Path] | None:
    """Return the processors that a container may use, and the control group (cgroup v2) with this limit, if any."""
    quotas = list[tuple[float, Path]]()
    with suppress(OSError, IndexError):
        group = _CGROUPS / _OWN_CGROUP.read_text().rpartition("0::")[2].splitlines()[0].strip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # the root has no limit, and "max" is none
                quota, period = (folder / "cpu.max").read_text().split()
                quotas.append((int(quota) / int(period), folder))
    return min(quotas, default=None)


def processors() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def usable_processors() -> int:
    """Return how many threads compute at once. A part of a processor is left out: a thread more would often wait."""
    number, quota = len(processors()), cpu_quota()
    return number if quota is None else min(number, max(1, int(quota[0])))


FIXED_BYTES = 300e6
"""Weights of the largest model whose passes the traced engine compiles by length. Each length packs the weights again
(SmolLM2-135M: 200 MB, two seconds of a core) and saves 1 to 2 ms a pass, for which larger models take too much."""
_COPY_FACTOR, _LENGTHS_FACTOR = 1.2, 8.0  # bytes per byte of weights: of each copy, and of passes compiled by length


def memory_needed(target_bytes: int, draft_bytes: int, engine: EngineName) -> int:
    """Estimate the bytes of an engine's process with a pair of these stored weights, without KV caches of long texts.

    Measured, in GB, with estimates: traced, 1.5 and 0.5 billion weights 2.0 (2.1), SmolLM2 with its head 1.4 (1.5);
    GenAI, 1.5 and 0.5 billion 4.2 (3.8), where each side has its own target.
    """
    needed = _COPY_FACTOR * (ENGINES[engine].copies * target_bytes + draft_bytes)
    if ENGINES[engine].fixed_lengths:
        needed += _LENGTHS_FACTOR * sum(size for size in (target_bytes, draft_bytes) if size <= FIXED_BYTES)
    return int(1e8 + needed)  # 0.1 GB: Python and OpenVINO


def memory_free() -> int:
    return int(psutil.virtual_memory().available)


_MADV_DONTNEED = 4  # MADV_DONTNEED of Linux


def release_mapped_weights() -> None:
    """Give back the memory of weights that were read from their files, and which OpenVINO has packed since then.

    It keeps the files mapped, so that their pages would count as this process's memory; what is needed again, such as
    a row of the embedding, is read again. Only on Linux.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, access, *_, file = line.split(maxsplit=5)
            if access.startswith("r--") and file.endswith("_model.bin"):
                begin, end = (int(address, 16) for address in span.split("-"))
                library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def in_units(amount: float) -> str:
    return filesize.decimal(round(amount), precision=int(amount >= 1e9))


_NPU = "GenAI's speculative pipeline for NPUs cannot be stepped, and the traced engine needs dynamic shapes"

# Activations that share a scale: OpenVINO's default. With 16, one choice in a hundred more agrees with exact
# activations (docs/models.md), but passes take a tenth longer.
_GROUP_SIZE = 32

_REPORTED_PROPERTIES = (
    "INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE", "INFERENCE_NUM_THREADS",
    "EXECUTION_DEVICES",
)  # fmt: skip
"""Properties that records store, as read from a compiled model."""
PROPERTIES_VARIABLE = "SPECDEMO_CPU_PROPERTIES"
"""Environment variable with properties for every model on a CPU; runtime settings override them."""


class Device(NamedTuple):
    """A device's short and full name in OpenVINO, and the reason if it cannot be used."""

    name: str
    full_name: str
    reason: str | None = None


def devices() -> list[Device]:
    import openvino

    names = openvino.Core().available_devices
    present = [Device(name, device_name(name), _NPU if name.startswith("NPU") else None) for name in names]
    return [*present, Device("AUTO", "OpenVINO chooses")]


def check_devices(runtime: RuntimeSettings, *, head: bool = False) -> None:
    import openvino

    if head and runtime.device == "AUTO":  # GenAI queries properties that only real devices have
        raise DeviceError("The target of an EAGLE-3 head cannot run on AUTO; choose a device, such as CPU.")

    available = openvino.Core().available_devices
    accepted = {*available, *(name.partition(".")[0] for name in available), "AUTO"}  # GPU is another name of GPU.0
    for device in (runtime.device, draft_device(runtime)):
        virtual = re.match("(AUTO|HETERO|MULTI|BATCH):", device)
        if virtual is not None:
            raise DeviceError(f"specdemo runs a model on one device, not on {virtual[1]}:…; choose one, or AUTO.")
        if device.removesuffix(".0") not in accepted:
            names = ", ".join([*available, "AUTO"])
            raise DeviceError(f"This machine has no device {quoted(device)}; choose one of {names}.")
        if device.startswith("NPU"):
            raise DeviceError(f"{_NPU}; choose CPU or GPU.")


def draft_device(runtime: RuntimeSettings) -> str:
    return runtime.draft_device or runtime.device


def device_name(device: str) -> str:
    import openvino

    try:
        return str(openvino.Core().get_property(device, "FULL_DEVICE_NAME"))
    except RuntimeError:
        return device


def properties(runtime: RuntimeSettings, device: str, *, group: int = _GROUP_SIZE) -> dict[str, str]:
    """Return the properties to compile a model with; where activations are quantized, `group` of them share a scale.

    OpenVINO's cache of compiled models is off: on a CPU, reading one takes longer than compiling it (1.5 billion
    weights: 2.8 against 1.1 s), and it is as large as the weights.
    """
    on_cpu = device.startswith("CPU")
    chosen = _environment_properties() if on_cpu else {}
    if runtime.precision != "default":
        chosen["INFERENCE_PRECISION_HINT"] = chosen["KV_CACHE_PRECISION"] = runtime.precision
    if runtime.kv_cache_precision != "default":
        chosen["KV_CACHE_PRECISION"] = runtime.kv_cache_precision
    if runtime.dynamic_quantization != "default":
        size = group if runtime.dynamic_quantization == "on" else 0
        chosen["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = str(size)
    threads = runtime.inference_num_threads
    if not threads and "INFERENCE_NUM_THREADS" not in chosen and (usable := usable_processors()) < len(processors()):
        threads = usable  # OpenVINO does not see a container's limit
    if threads and on_cpu:
        chosen["INFERENCE_NUM_THREADS"] = str(threads)
    if on_cpu and "AMX BF16" in instruction_sets() and _computes_in_bf16_on_one_thread(tuple(chosen.items())):
        if chosen.get("INFERENCE_PRECISION_HINT") == "bf16":
            raise DeviceError(f"{_CRASH}; choose precision f32 or two threads.")
        chosen["INFERENCE_PRECISION_HINT"] = "f32"
    return chosen


def _environment_properties() -> dict[str, str]:
    pairs = [part.partition("=") for part in os.environ.get(PROPERTIES_VARIABLE, "").split()]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise UsageError(f"{PROPERTIES_VARIABLE} takes NAME=VALUE, separated by spaces, not {quoted(name)}.")
    return {name: value for name, _, value in pairs}


_CRASH = "OpenVINO 2026.4.1 crashes when it compiles a model in bf16 for one thread on a processor with AMX"


@cache
def _computes_in_bf16_on_one_thread(requested: tuple[tuple[str, str], ...]) -> bool:
    used = _probe("CPU", dict(requested))
    crashes = used.get("INFERENCE_PRECISION_HINT") == "bf16" and used.get("INFERENCE_NUM_THREADS") == "1"
    if crashes and dict(requested).get("INFERENCE_PRECISION_HINT") is None:
        logging.getLogger(__name__).warning("%s, so models compute in f32; two threads allow bf16.", _CRASH)
    return crashes


def _probe(device: str, requested: dict[str, str]) -> dict[str, str]:
    """Return the effective properties, read from a compiled model of one operation, which takes hardly any time."""
    import openvino
    from openvino import opset13 as opset

    tokens = opset.parameter([1, 1], np.float32)
    model = openvino.Model([opset.result(opset.relu(tokens))], [tokens], "probe")
    compiled = openvino.Core().compile_model(model, device, requested)
    values = {}
    for name in _REPORTED_PROPERTIES:
        with suppress(RuntimeError):
            value = compiled.get_property(name)
            text = value.to_string() if isinstance(value, openvino.Type) else value
            values[name] = ", ".join(text) if isinstance(text, list) else str(text)
    return values


def describe_environment(pair: ModelPair, target_runtime: RuntimeSettings | None = None) -> Environment:
    """Return the environment of a loaded pair; `target_runtime` replaces its settings for the target."""
    runtime = target_runtime or pair.runtime

    draft_on = draft_device(runtime)
    target = _probe(runtime.device, properties(runtime, runtime.device))  # may differ from the properties requested
    draft = target if draft_on == runtime.device else _probe(draft_on, properties(pair.runtime, draft_on))
    groups = target.get("DYNAMIC_QUANTIZATION_GROUP_SIZE")
    return Environment(
        specdemo=__version__,
        python=platform.python_version(),
        openvino=version("openvino"),
        openvino_genai=version("openvino-genai"),
        openvino_tokenizers=version("openvino-tokenizers"),
        device=_full_name(runtime.device, target),
        draft_device=_full_name(draft_on, draft),
        inference_precision=target.get("INFERENCE_PRECISION_HINT", "unknown"),
        kv_cache_precision=target.get("KV_CACHE_PRECISION", "unknown"),
        dynamic_quantization={None: "unknown", "0": "off"}.get(groups, f"groups of {groups}"),
        threads=int(target["INFERENCE_NUM_THREADS"]) if "INFERENCE_NUM_THREADS" in target else None,
    )


def _full_name(device: str, used: dict[str, str]) -> str:
    chosen = used.get("EXECUTION_DEVICES", device).strip("()")
    return device_name(device) if chosen == device else f"{device}: {device_name(chosen)}"
