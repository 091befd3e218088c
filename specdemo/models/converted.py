"""The folder of OpenVINO IR for a model: its own, or the conversion of its GGUF file in our cache.

A conversion's folder is named by its file's SHA-256 digest, the version of our conversion and the form of its
weights, so a copied or renamed file is not converted again.

Quantized weights are converted exactly, mostly to four bits. Whether these or the same weights as int8 decode faster
depends on the processor: with AVX2, int8 is faster by a tenth to a quarter; with AVX-512 it may be the other way
round. int8 in groups of 64 chooses another token at one to three positions of a hundred. So exact weights are the
default wherever they cost less than a tenth; this is measured once for each file and machine, and stored.
"""

import hashlib
import os
import platform
import tempfile
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
from pydantic import ValidationError

from specdemo.errors import LoadError, SpecdemoError
from specdemo.models.machine import instruction_sets, processor, use_huge_pages
from specdemo.models.places import own_cache, writable, write_whole
from specdemo.records import Model, Record
from specdemo.settings import WeightsForm

VERSION = 3
"""Increased when the conversion changes, so that older conversions are redone."""
_FOLDERS: dict[WeightsForm, str] = {"exact": "", "int8": "-int8"}


class WeightsChoice(Record):
    """The chosen form of a file's weights on this machine, with median milliseconds of passes over 1 and 3 tokens.

    No figures: nothing to measure, since every matrix has eight bits already, or too little memory.
    """

    form: WeightsForm
    exact_ms: tuple[float, ...] = ()
    int8_ms: tuple[float, ...] = ()

    @property
    def reason(self) -> str:
        """Why this form was chosen, in a few words."""
        if not self.exact_ms:
            return "not measured"
        exact, eight = ("/".join(f"{value:.1f}" for value in figures) for figures in (self.exact_ms, self.int8_ms))
        return f"measured here, ms for 1/3 tokens: exact {exact}, int8 {eight}"


def folder_of(model: Model) -> Path:
    """Return the folder of OpenVINO IR to load: the model's own, or the conversion of its GGUF file.

    A file whose form of weights is not chosen yet uses its exact weights.

    Raises:
        LoadError: it is not converted yet, or the model was read from JSON, which never holds paths.
    """
    if model.path is None:
        raise LoadError(f"The folder of {model.name!r} on this machine is unknown; choose it.")
    folder = converted_folder(model.path, form_of(model)) if model.path.is_file() else model.path
    if folder is None:
        raise LoadError(f"The GGUF file {model.name!r} is not converted yet; choose it as a target or draft again.")
    return folder


def form_of(model: Model) -> WeightsForm:
    """Return the form of a GGUF model's weights: as set, else as chosen for this machine, else exact."""
    if model.form != "auto":
        return model.form
    choice = choice_of(model)
    return choice.form if choice is not None else "exact"


def has_int8_weights(model: Model) -> bool:
    """Whether a model's weights are int8 as it is loaded."""
    in_file = model.path is not None and model.path.is_file() and form_of(model) == "int8"
    return in_file or model.weights in ("int8", "Q8_0")


def choice_of(model: Model) -> WeightsChoice | None:
    """Return the stored choice for a GGUF model on this machine; None if there is none, or it is a folder."""
    digest = recorded_digest(model.path) if model.path is not None and model.path.is_file() else None
    return remembered_choice(digest) if digest is not None else None


def stored_form(model: Model) -> str | None:
    """Describe the form of a GGUF model's weights and why; None for a folder, or a file not converted yet."""
    if model.path is None or not model.path.is_file() or not is_converted(model):
        return None
    choice = choice_of(model)
    words = {"exact": "exact weights", "int8": "int8 in groups of 64"}[form_of(model)]
    if model.form != "auto":
        return f"{words} (as set)"
    return f"{words} ({choice.reason if choice is not None else 'not measured yet'})"


def tokenizer_folder(model: Model) -> Path:
    """Return the folder of a model's tokenizer, which is the same in every form.

    Raises:
        LoadError: as for `folder_of`.
    """
    exact = converted_folder(model.path) if model.path is not None and model.path.is_file() else None
    return exact or folder_of(model)


def is_converted(model: Model) -> bool:
    """Whether a model is OpenVINO IR, or a GGUF file converted to it in any form."""
    path = model.path
    return path is None or not path.is_file() or any(converted_folder(path, form) for form in _FOLDERS)


def awaits_conversion(model: Model) -> bool:
    """Whether a model is a GGUF file that must be converted, or its form chosen, before it is loaded."""
    if model.path is None or not model.path.is_file():
        return False
    if model.form == "auto" and choice_of(model) is None:
        return True
    return converted_folder(model.path, form_of(model)) is None


def converted_folder(path: Path, form: WeightsForm = "exact") -> Path | None:
    """Return the folder of a file's conversion, if any; instant, since converted files have a stored digest."""
    digest = recorded_digest(path)
    folder = place_of(digest, form) if digest is not None else None
    return folder if folder is not None and folder.is_dir() else None


def place_of(digest: str, form: WeightsForm) -> Path:
    """Return the folder for the conversion of a file with this digest."""
    return conversions() / f"{digest}-{VERSION}{_FOLDERS[form]}"


def conversions() -> Path:
    """Return the folder of all conversions."""
    return own_cache() / "gguf"


def file_digest(path: Path) -> str:
    """Return the SHA-256 digest of a file's content, recomputed only if its size or time has changed.

    Raises:
        OSError: it cannot be read.
    """
    stored = recorded_digest(path)
    if stored is not None:
        return stored
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    record = _record_of(path)
    if record is not None:
        with suppress(OSError, SpecdemoError):  # without a cache it is computed again
            writable(record.parent, "Digests of models")
            with tempfile.NamedTemporaryFile("w", dir=record.parent, delete=False, encoding="ascii") as written:
                written.write(digest)
            Path(written.name).replace(record)
    return digest


def recorded_digest(path: Path) -> str | None:
    """Return the stored digest of a file as it is now, if any."""
    record = _record_of(path)
    try:
        return record.read_text(encoding="ascii") if record is not None else None
    except (OSError, UnicodeDecodeError):
        return None


def _record_of(path: Path) -> Path | None:
    """Return the path for the digest of a file of this size and time."""
    try:
        state = path.stat()
    except OSError:
        return None
    key = f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
    return conversions() / "digests" / hashlib.sha256(os.fsencode(key)).hexdigest()


WORTH = 1.1
"""Exact weights are chosen if they take at most this many times as long as int8."""
_TOKENS = (1, 3)  # a plain step, and a round of two proposals
_CONTEXT = 32
_RULE = 2  # increased when forms are measured or chosen differently, so that earlier choices are made anew
_PASSES, _UNEVEN, _BLOCKS, _SECONDS = 6, 3, 8, 4.0  # first passes are uneven: another model used the caches


def remembered_choice(digest: str) -> WeightsChoice | None:
    """Return the stored choice for a file with this digest on this machine, if any."""
    try:
        return WeightsChoice.model_validate_json(_choice_file(digest).read_bytes())
    except (OSError, ValidationError):
        return None


def remember_choice(digest: str, choice: WeightsChoice) -> None:
    """Store a choice.

    Raises:
        SpecdemoError: the cache is not writable.
    """
    write_whole(_choice_file(digest), choice.model_dump_json() + "\n", "Which weights are faster")


def measure_forms(
    exact: Path, int8: Path, device: str, properties: dict[str, str], int8_properties: dict[str, str]
) -> WeightsChoice:
    """Measure both forms of a model in turns, each with its own properties, and choose one."""
    requests = [_request(exact, device, properties), _request(int8, device, int8_properties)]
    use_huge_pages(device)  # as engines do
    began = perf_counter()
    blocks: list[list[list[float]]] = []  # seconds of a pass, by block, form and number of tokens
    while len(blocks) < _BLOCKS and (len(blocks) < 2 or perf_counter() - began < _SECONDS):
        blocks.append([[median_seconds(request, tokens) for tokens in _TOKENS] for request in requests])
    seconds = np.array(blocks)
    ratio = np.median(seconds[:, 0] / seconds[:, 1], axis=0).mean()
    figures = np.round(np.median(seconds, axis=0) * 1000, 2)
    return WeightsChoice(
        form="int8" if ratio > WORTH else "exact", exact_ms=tuple(figures[0]), int8_ms=tuple(figures[1])
    )


def _request(folder: Path, device: str, properties: dict[str, str]) -> openvino.InferRequest:
    return openvino.Core().compile_model(folder / "openvino_model.xml", device, properties).create_infer_request()


def median_seconds(request: openvino.InferRequest, tokens: int) -> float:
    """Return the median seconds of passes over this many tokens, after a text."""
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
    """Return inputs of a stateful network for a pass over `count` arbitrary tokens after `length` others."""
    return {
        "input_ids": np.arange(1, count + 1, dtype=np.int64)[None],
        "attention_mask": np.ones((1, length + count), np.int64),
        "position_ids": np.arange(length, length + count, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }


def _choice_file(digest: str) -> Path:
    return own_cache() / "gguf" / "weights" / f"{digest}-{machine_name()}-{_RULE}.json"


def machine_name() -> str:
    """Return an id of this processor and its instruction sets, which vary between machines of one name."""
    described = [platform.machine(), processor(), str(os.cpu_count()), *instruction_sets()]
    return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]
