"""Engines that are killed, and engines that are used for long."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import psutil

from specdemo.engines import load_engine
from specdemo.engines.base import PREFILL_CHUNK
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import EngineError
from specdemo.experiments import PRESETS, Checkpoint, Header, run
from specdemo.experiments.suites import bundled_tasks
from specdemo.models.pairs import bundled_pair
from specdemo.records import Comparison, ModelPair, Phase, Progress, Slice
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.worker import Prepare, WithLoader, Worker
from tests.benchmarks.siege.tally import Tally

MOMENTS = ("loading", "calibrating", "warming up", "prefilling", "racing")
_PAIR = ScriptedEngine().pair
_PROMPT = "word " * 3 * PREFILL_CHUNK
_SHORT = GenerationSettings(max_new_tokens=16, ignore_eos=True)
_CALIBRATED = GenerationSettings(engine="traced", policy="auto", max_new_tokens=16, ignore_eos=True)
"""A run that waits until step costs are measured."""
_RESERVED = 2**29  # bytes; a KV cache takes a gigabyte, and no network of the bundled pair half of that
_AFTER = 3  # rows until a benchmark is killed


def load(name: EngineName, pair: ModelPair) -> ScriptedEngine:
    """An engine slow enough to be killed at any moment of a run."""
    sleep(0.2)
    return ScriptedEngine(step=0.004, real_time=True)


def kills(times: int) -> Tally:
    """Kill the engine's process in every phase of a run, so many times each; the next run must be answered."""
    tally = Tally()
    for moment in MOMENTS * times:
        worker = Worker(load)
        try:
            tally.tried += 2
            tally.refused += _breaks(worker, moment)
            last = list(worker.compare(_PAIR, "Say", _SHORT))[-1]
            tally.answered += isinstance(last, Comparison) and last.prompt == "Say"
        finally:
            worker.close()
    return tally


def stops(times: int) -> Tally:
    """Stop the engine's process (SIGSTOP) in every phase of a run and while it idles, so many times each.

    The run must end in a sentence, and the next one be answered.
    """
    tally = Tally()
    for moment in (*MOMENTS, "idle") * times if hasattr(signal, "SIGSTOP") else ():
        worker = Worker(load, patience=3)
        try:
            tally.tried += 2
            if moment == "idle":
                list(worker.compare(_PAIR, "Say", _SHORT))
                os.kill(worker.process_id, signal.SIGSTOP)
                with suppress(EngineError):
                    list(worker.compare(_PAIR, "Say", _SHORT))
                tally.refused += 1
            else:
                tally.refused += _breaks(worker, moment, signal.SIGSTOP)
            last = list(worker.compare(_PAIR, "Say", _SHORT))[-1]
            tally.answered += isinstance(last, Comparison) and last.prompt == "Say"
        finally:
            worker.close()
    return tally


def _breaks(worker: Worker, moment: str, how: signal.Signals = signal.SIGKILL) -> bool:
    """Whether a run whose engine gets this signal at that moment ends in a sentence."""
    settings = _CALIBRATED if moment == "calibrating" else _SHORT
    try:
        for event in worker.compare(_PAIR, _PROMPT, settings):
            if moment == (event.name if isinstance(event, Phase) else "racing" if isinstance(event, Slice) else None):
                os.kill(worker.process_id, how)
    except EngineError as error:
        return bool(str(error))
    return False


def killed_benchmarks(times: int, folder: Path) -> Tally:
    """Kill a benchmark's engine again and again: finished rows are in its checkpoint; the last run completes it."""
    tasks, strategies = bundled_tasks("base")[:3], ["traced constant", "traced heuristic"]
    settings = GenerationSettings(engine="traced", max_new_tokens=8)
    plan = PRESETS["bench"].plan(_PAIR, tasks, settings, {"strategies": strategies}, repeats=2 + times)
    checkpoint, tally = Checkpoint(folder / "killed"), Tally(tried=times + 1)
    work = partial(run, plan, checkpoint=checkpoint)
    for number in range(times + 1):
        worker = Worker(load)
        try:
            seen, ended = _rows(worker, work, kill=number < times)
        finally:
            worker.close()
        kept = checkpoint.open(Header.of(plan)).rows
        tally.lost_rows += max(seen - len(kept), 0)
        tally.answered += ended
        tally.refused += not ended
    checkpoint.delete()
    return tally


def _rows(worker: Worker, work: Callable[..., Any], *, kill: bool) -> tuple[int, bool]:
    """How many rows a benchmark was seen to finish, and whether it came to its end."""
    seen, before = 0, None
    try:
        for progress in worker.run(WithLoader(_PAIR, work)):
            if isinstance(progress, Progress):
                seen = len(progress.result.rows)
                before = seen if before is None else before
                if kill and seen >= before + _AFTER:
                    os.kill(worker.process_id, signal.SIGKILL)
    except EngineError:
        return seen, False
    return seen, progress.result.complete


def growth(runs: int, switches: int) -> Tally:
    """So many runs of the bundled pair, and switches to one loaded otherwise; memory of both processes."""
    tally, pairs = Tally(tried=runs + switches), [bundled_pair(inference_num_threads=threads) for threads in (1, 2)]
    worker = Worker(load_engine)
    try:
        sizes = []
        for number in range(runs):
            last = list(worker.compare(pairs[0], f"Once upon a time there were {number} foxes", _SHORT))[-1]
            tally.answered += isinstance(last, Comparison)
            sizes.append(_memory(worker))
        tally.growth = _grown(sizes)
        sizes = []
        for number in range(switches):
            list(worker.run(Prepare("genai", pairs[(number + 1) % 2])))
            tally.answered += 1
            if number % 2:
                sizes.append(_memory(worker))  # of the same pair each time
        tally.growth = max(tally.growth, _grown(sizes))
    finally:
        worker.close()
    return tally


def _memory(worker: Worker) -> int:
    """Resident bytes of this process and the engine's, but for KV caches.

    OpenVINO reserves those whole, and touches a block when it is first used: over hundreds of runs they fill up to
    the size that was asked for, and no further.
    """
    maps = [
        part for process in (os.getpid(), worker.process_id) for part in psutil.Process(process).memory_maps(False)
    ]
    return sum(part.rss for part in maps if part.size < _RESERVED)


def _grown(sizes: list[int]) -> float:
    """From a fifth of the way on, when everything was used once, to the end."""
    return sizes[-1] / sizes[len(sizes) // 5] - 1 if sizes else 0.0
