"""This machine's memory and instruction sets, which determine the cost of a pass over several tokens.

Two processors of one name can differ by half: VNNI and AMX multiply int8 and bf16 several times faster than AVX2, so
verifying more tokens costs little there. Each system is queried in its own way; if none answers, the list is what
numpy found, which knows fewer. The query for Windows follows its documentation and is untested.
"""

import ctypes
import hashlib
import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic

import numpy as np
import psutil

from specdemo.strategies import ENGINES, EngineName

INSTRUCTION_SETS = {
    "AVX2": {"avx2"},
    "AVX-VNNI": {"avx_vnni"},
    "AVX-512": {"avx512f"},
    "AVX-512 VNNI": {"avx512_vnni"},
    "AVX-512 BF16": {"avx512_bf16"},
    "AVX-512 FP16": {"avx512_fp16"},
    "AMX INT8": {"amx_int8"},
    "AMX BF16": {"amx_bf16"},
    "NEON": {"asimd", "neon"},
    "dot product": {"asimddp", "feat_dotprod"},
    "I8MM": {"i8mm", "feat_i8mm"},
    "SVE": {"sve"},
}
"""Instruction sets that matter to decoding, by their names on Linux and macOS."""
_WINDOWS = {"avx2": 40, "avx512f": 41, "neon": 19, "asimddp": 43}
"""Feature numbers of `IsProcessorFeaturePresent`; it has none for VNNI and AMX."""
_NUMPY = {"X86_V3": "avx2", "AVX2": "avx2", "X86_V4": "avx512f", "AVX512F": "avx512f", "AVX512_ICL": "avx512_vnni"}

HUGE_PAGES_VARIABLE = "SPECDEMO_HUGE_PAGES"
"""Environment variable; "off" leaves loaded models in pages of the system's choice."""
_HUGE = 2 << 20  # bytes of a huge page
_COLLAPSE = 25  # MADV_COLLAPSE in <linux/mman.h>
_MOST_SECONDS = 10.0  # moving half a gigabyte takes about one


@cache
def multiplies_int8() -> bool:
    """Whether this processor multiplies int8 several times faster than f32, in VNNI's kernels.

    With AMX OpenVINO has other kernels, which could not be tested.
    """
    sets = set(instruction_sets())
    return bool({"AVX-VNNI", "AVX-512 VNNI"} & sets) and "AMX INT8" not in sets


def instruction_sets() -> list[str]:
    """Return the names in `INSTRUCTION_SETS` that this processor is known to have."""
    flags = _flags()
    return [name for name, words in INSTRUCTION_SETS.items() if words & flags]


def processor() -> str:
    """Return the processor's name, or its architecture if the system reports no more."""
    named = ""
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "linux":
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            named = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
        elif sys.platform == "darwin":
            named = _sysctl("machdep.cpu.brand_string")
    return named.strip() or platform.processor() or platform.machine()


def machine_name() -> str:
    """Return an id of this processor and its instruction sets, which vary between machines of one name."""
    described = [platform.machine(), processor(), str(os.cpu_count()), *instruction_sets()]
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]


def memory_needed(target_bytes: int, draft_bytes: int, cache_gb: int, engine: EngineName) -> int:
    """Return the maximum bytes of weights and KV caches.

    GenAI: the plain and the speculative pipeline each hold a target and a cache, and the draft is loaded a second
    time to replay its proposals. The traced engine holds each model once; its caches grow with the text and count as
    one of GenAI's size. Caches take memory only as far as they are used, so short texts need less: a pair of 113 MB
    with a cache of 1 GB took 0.7 GB in GenAI, where this says 2.4.
    """
    return ENGINES[engine].copies * (target_bytes + draft_bytes + cache_gb * 2**30)


def memory_free() -> int:
    """Return the bytes of memory available to programs now."""
    return int(psutil.virtual_memory().available)


def use_huge_pages(device: str) -> None:
    """Move this process's memory into huge pages, as far as the system allows, once a model is loaded on a CPU.

    A step reads all weights, and every page of 4 KiB needs an address translation, which on a virtual machine walks
    two tables; pages of 2 MiB need hardly any, so SmolLM2's steps take about 5 % less (docs/performance.md). Most
    systems give them only to memory that asks for them before its first use, which OpenVINO's does not. Linux 6.1 and
    newer move memory that asks later; its content and addresses stay the same.
    """
    if sys.platform != "linux" or not device.startswith("CPU") or os.environ.get(HUGE_PAGES_VARIABLE) == "off":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    until = monotonic() + _MOST_SECONDS
    with suppress(psutil.Error, OSError):
        areas = psutil.Process().memory_maps(grouped=False)
        for area in sorted(areas, key=lambda area: area.rss, reverse=True):
            low, high = (int(address, 16) for address in area.addr.split("-"))
            first, end = -(-low // _HUGE) * _HUGE, high // _HUGE * _HUGE
            private = area.perms.startswith("rw") and area.path in ("[anon]", "[heap]")
            if private and area.rss and first < end and monotonic() < until:
                madvise(first, end - first, _COLLAPSE)  # fails where there is nothing to move, or no such page


def huge_page_bytes() -> int | None:
    """Return how much of this process's memory is in huge pages; None if the system does not say."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("AnonHugePages:"))) * 1024
    return None


def in_units(amount: float) -> str:
    """Format bytes, as in 4.6 GB."""
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def _flags() -> set[str]:
    """Return the processor's features in lower case, as far as this system and numpy report them."""
    found = set[str]()
    with suppress(OSError, subprocess.SubprocessError, AttributeError):
        if sys.platform == "linux":
            for line in Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith(("flags", "Features")):
                    found = set(line.partition(":")[2].split())
                    break
        elif sys.platform == "darwin":
            lines = _sysctl("-a").splitlines()
            found = {word.lower() for line in lines if line.startswith("machdep.cpu.") for word in line.split()[1:]}
            names = (line.partition(":") for line in lines if line.startswith("hw.optional."))
            found |= {name.rpartition(".")[2].lower() for name, _, value in names if value.strip() == "1"}
        elif sys.platform == "win32":
            present = ctypes.windll.kernel32.IsProcessorFeaturePresent
            found = {flag for flag, number in _WINDOWS.items() if present(number)}
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    return found | {_NUMPY[name] for name in (*extensions["baseline"], *extensions["found"]) if name in _NUMPY}


def _sysctl(name: str) -> str:
    arguments = ["/usr/sbin/sysctl", name] if name == "-a" else ["/usr/sbin/sysctl", "-n", name]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=10, check=True).stdout
