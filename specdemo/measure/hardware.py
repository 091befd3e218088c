"""Memory use, and memory bandwidth, which limits every target pass.

A plain step reads all weights to produce one token, so plain decoding cannot be faster than memory bandwidth / bytes
per pass. A speculative round reads them once for several tokens and can exceed that limit, as can a model that fits
in the processor's caches.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
import numpy.typing as npt
import psutil

from specdemo.child import Failure, run_child
from specdemo.engines import Engine, load_engine
from specdemo.errors import EngineError
from specdemo.models.convert import pass_bytes
from specdemo.models.converted import folder_of
from specdemo.records import Environment, ModelPair, Record, Request, Side
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName

MEBIBYTE = 2**20
ARRAY_BYTES = 256 * MEBIBYTE
_REPEATS = 5

Loader = Callable[[EngineName, ModelPair, Side], Engine]
"""Loads the part of a pair that one side needs."""


Work = Callable[[Engine, Request], None]
"""The work whose memory is measured; picklable."""


class MemoryUse(Record):
    """Bytes that a separate process took to load models and decode a prompt, `at_once` copies concurrently.

    It loads only what its side needs, with GenAI a single pipeline. Counted is the growth of its resident set from
    before loading: weights, caches, tokenizers, compiled code and work space; `resident` at the end, `peak` at the
    maximum.
    """

    engine: EngineName
    side: Side
    resident: int
    peak: int
    at_once: int = 1


class Bound(Record):
    """The memory-bandwidth limit of plain decoding.

    `read_bandwidth` and `copy_bandwidth` are bytes per second over all cores; a copy between arrays of `array_bytes`
    counts each byte twice, read and written. `weights` are the bytes that every target pass reads, `cache_per_token`
    those per preceding token.
    """

    read_bandwidth: float
    copy_bandwidth: float
    array_bytes: int
    threads: int
    weights: int
    cache_per_token: int
    context: int

    @property
    def bytes_per_pass(self) -> int:
        """Bytes read by a target pass after `context` tokens."""
        return self.weights + self.context * self.cache_per_token

    @property
    def tokens_per_second(self) -> float:
        """Maximum rate of plain decoding if weights come from memory."""
        return max(self.read_bandwidth, self.copy_bandwidth) / self.bytes_per_pass

    def share(self, tokens_per_second: float) -> float:
        """Return the share of that limit; speculation, or a model that fits in the caches, can exceed 1."""
        return tokens_per_second / self.tokens_per_second


def measure_bound(pair: ModelPair, environment: Environment, context: int) -> Bound:
    """Measure memory bandwidth, and count the bytes a pass reads after `context` tokens.

    Raises:
        FolderError: the target cannot be read.
    """
    read = pass_bytes(folder_of(pair.target), environment.inference_precision, environment.kv_cache_precision)
    array_bytes = min(ARRAY_BYTES, psutil.virtual_memory().available // 8)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    reading, copying = measure_bandwidth(array_bytes, threads)
    return Bound(
        read_bandwidth=reading,
        copy_bandwidth=copying,
        array_bytes=array_bytes,
        threads=threads,
        weights=read.weights,
        cache_per_token=read.cache_per_token,
        context=context,
    )


def measure_bandwidth(array_bytes: int, threads: int) -> tuple[float, float]:
    """Measure bytes per second of reading an array and of copying it to another; the best of several.

    Each thread has its part of the arrays; numpy releases the GIL while computing. The best, not the median, since
    other load can only take bandwidth away.
    """
    source, target = np.ones(array_bytes // 8, np.int64), np.empty(array_bytes // 8, np.int64)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    reading = copying = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_REPEATS):
            reading = max(reading, source.nbytes / _timed(pool, lambda part: part[0].max(), parts))
            copying = max(copying, 2 * source.nbytes / _timed(pool, lambda part: np.copyto(part[1], part[0]), parts))
    return reading, copying


Arrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _timed(pool: ThreadPoolExecutor, work: Callable[[Arrays], object], parts: list[Arrays]) -> float:
    began = perf_counter()
    list(pool.map(work, parts))
    return perf_counter() - began


def decode(engine: Engine, request: Request) -> None:
    """Decode to the end, without replaying proposals, which would load the draft again."""
    deque(engine.decoder(request).rounds(), maxlen=0)


def measure_memory(
    pair: ModelPair,
    prompt: str,
    settings: GenerationSettings,
    side: Side,
    load: Loader = load_engine,
    stop: Callable[[], bool] = lambda: False,
    *,
    work: Work = decode,
    at_once: int = 1,
) -> MemoryUse | None:
    """Measure one side's memory in a child process; return None if `stop` returned True.

    `work` decodes the prompt, `at_once` copies concurrently.

    Raises:
        SpecdemoError: loading or decoding failed, or the child died.
    """
    failure = Failure(EngineError, "Memory cannot be measured", "choose smaller models")
    arguments = (pair, prompt, settings, side, load, work)
    child = run_child(_used, *arguments, name="specdemo memory", failure=failure, stop=stop)
    with closing(child) as messages:
        found = next((message for message in messages if message is not None), None)
    if found is None:
        return None
    resident, peak = found
    return MemoryUse(engine=settings.engine, side=side, resident=resident, peak=peak, at_once=at_once)


def draft_extra(uses: Sequence[MemoryUse], engine: EngineName, what: Literal["resident", "peak"]) -> int | None:
    """Return the extra bytes of a speculative process over a plain one on this engine.

    They go to the draft, its cache, and the work space of its steps and of longer target passes.
    """
    found = {use.side: getattr(use, what) for use in uses if use.engine == engine}
    return found["speculative"] - found["plain"] if len(found) == 2 else None


def _used(
    pair: ModelPair, prompt: str, settings: GenerationSettings, side: Side, load: Loader, work: Work
) -> Iterator[tuple[int, int]]:
    """Yield the resident bytes at the end and at the peak; runs in the child."""
    process = psutil.Process()
    before = process.memory_info().rss
    engine = load(settings.engine, pair, side)
    request = Request.of(prompt, settings)
    work(engine, request.plain if side == "plain" else request)
    yield process.memory_info().rss - before, _peak(process) - before


def _peak(process: psutil.Process) -> int:
    """Return the peak resident size on Linux and Windows; elsewhere the current one."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    memory = process.memory_info()
    return int(getattr(memory, "peak_wset", memory.rss))
