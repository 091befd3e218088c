"""Exact weights or int8: in which form a GGUF file's weights are decoded faster on this machine.

Quantized weights are converted exactly, mostly to four bits. Which is faster, these or the same weights as int8,
depends on the processor: with AVX2 int8 is, by a tenth to a quarter; with AVX-512 it may be the other way round.
int8 in groups of 64 chooses another token at one or two positions of a hundred. So exact weights are the default
wherever they cost less than a tenth; this is measured once for each file and machine, and remembered.
"""

import hashlib
import os
import platform
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
from pydantic import ValidationError

from specdemo.models.machine import instruction_sets, processor
from specdemo.models.places import own_cache, writable
from specdemo.records import Record
from specdemo.settings import WeightsForm

WORTH = 1.1
"""Times as long as int8 that exact weights may take and still be chosen."""
_TOKENS = (1, 3)  # a plain step, and a round of two proposals
_CONTEXT = 32
_PASSES, _UNEVEN, _BLOCKS, _SECONDS = 6, 3, 8, 4.0  # the first passes: another model has just used the caches


class WeightsChoice(Record):
    """What was measured of a file on this machine: milliseconds of a pass over 1 and over 3 tokens, medians.

    Without figures, there was nothing to measure: every matrix has eight bits already, or memory is too small.
    """

    form: WeightsForm
    exact_ms: tuple[float, ...] = ()
    int8_ms: tuple[float, ...] = ()

    @property
    def reason(self) -> str:
        """Why this form, in a few words."""
        if not self.exact_ms:
            return "not measured"
        exact, eight = ("/".join(f"{value:.1f}" for value in figures) for figures in (self.exact_ms, self.int8_ms))
        return f"measured here, ms for 1/3 tokens: exact {exact}, int8 {eight}"


def remembered_choice(digest: str) -> WeightsChoice | None:
    """What was chosen for the file of this digest on this machine; None where nothing was."""
    try:
        return WeightsChoice.model_validate_json(_record_of(digest).read_bytes())
    except (OSError, ValidationError):
        return None


def remember_choice(digest: str, choice: WeightsChoice) -> None:
    """Keep a choice.

    Raises:
        SpecdemoError: nothing can be written to the cache.
    """
    record = _record_of(digest)
    writable(record.parent, "Which weights are faster")
    partial = record.with_suffix(f".{os.getpid()}")
    partial.write_text(choice.model_dump_json() + "\n", encoding="utf-8")
    partial.replace(record)


def measure_forms(exact: Path, int8: Path, device: str, properties: dict[str, str]) -> WeightsChoice:
    """Measure both forms of a model, in turns, and choose."""
    requests = [_request(folder, device, properties) for folder in (exact, int8)]
    began = perf_counter()
    blocks: list[list[list[float]]] = []  # seconds of a pass, by block, form and number of tokens
    while len(blocks) < _BLOCKS and (len(blocks) < 2 or perf_counter() - began < _SECONDS):
        blocks.append([[_median_seconds(request, tokens) for tokens in _TOKENS] for request in requests])
    seconds = np.array(blocks)
    ratio = np.median(seconds[:, 0] / seconds[:, 1], axis=0).mean()
    figures = np.round(np.median(seconds, axis=0) * 1000, 2)
    return WeightsChoice(
        form="int8" if ratio > WORTH else "exact", exact_ms=tuple(figures[0]), int8_ms=tuple(figures[1])
    )


def _request(folder: Path, device: str, properties: dict[str, str]) -> openvino.InferRequest:
    return openvino.Core().compile_model(folder / "openvino_model.xml", device, properties).create_infer_request()


def _median_seconds(request: openvino.InferRequest, tokens: int) -> float:
    """Median seconds of passes over so many tokens each, behind a text."""
    request.reset_state()
    length, seconds = 0, []
    for count in (_CONTEXT, *[tokens] * _PASSES):
        inputs = pass_inputs(length, count)
        began = perf_counter()
        request.infer(inputs)
        seconds.append(perf_counter() - began)
        length += count
    return float(np.median(seconds[_UNEVEN:]))


def pass_inputs(length: int, count: int) -> dict[str, npt.NDArray[np.integer[Any]]]:
    """Inputs of a stateful network for a pass over `count` arbitrary tokens behind `length` others."""
    return {
        "input_ids": np.arange(1, count + 1, dtype=np.int64)[None],
        "attention_mask": np.ones((1, length + count), np.int64),
        "position_ids": np.arange(length, length + count, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }


def _record_of(digest: str) -> Path:
    return own_cache() / "gguf" / "weights" / f"{digest}-{machine_name()}.json"


def machine_name() -> str:
    """A name for this processor and its instruction sets, which differ between machines of one name."""
    described = [platform.machine(), processor(), str(os.cpu_count()), *instruction_sets()]
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]
