"""GGUF files to OpenVINO IR: each is converted once, by openvino-genai's own reader, into our cache.

The reader writes beside the file it reads, so it gets a link to the file, in a hidden folder of the cache. Once
everything is written, that folder moves to its place. Where the form of the weights is to be chosen, the file is
stored in both forms, these are measured, and the slower one goes. All of it runs in a separate process: reading can
be interrupted, may need more memory than there is, and prints text that would corrupt JSON output.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, time
from typing import NamedTuple

import openvino_genai

from specdemo.child import follow
from specdemo.errors import ConversionError, DiskError
from specdemo.models.converted import (
    VERSION,
    awaits_conversion,
    choice_of,
    conversions,
    converted_folder,
    file_digest,
    form_of,
    is_converted,
    place_of,
)
from specdemo.models.devices import draft_device, properties
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import check_readable, inspect_gguf, read_header
from specdemo.models.gguf_network import configuration, ends, repair, rewrite, with_halves
from specdemo.models.graph import store_as_int8
from specdemo.models.machine import in_units, memory_free
from specdemo.models.places import link_or_copy, writable
from specdemo.models.weights import WeightsChoice, measure_forms, remember_choice
from specdemo.records import Model, ModelPair
from specdemo.settings import WeightsForm

_GROWTH = 1.5  # bytes of IR per byte of GGUF, at most: 6 bits are stored as 8, with scales
_INT8_GROWTH = 2.0  # 4 bits are stored as 8
_MEMORY = 6  # bytes of memory per byte of GGUF, to load both forms
_STALE_SECONDS = 24 * 3600


class Forms(NamedTuple):
    """The forms in which a file is wanted: one, or whichever is faster on this device with these properties."""

    form: WeightsForm | None
    device: str = "CPU"
    properties: tuple[tuple[str, str], ...] = ()


EXACT = Forms("exact")


def convert_pair(pair: ModelPair) -> Iterator[tuple[Model, float]]:
    """Convert what of a pair is GGUF and not ready to be loaded; yields the model under way and its seconds.

    Where the form of its weights is not chosen yet, it is measured on the device where the model will be loaded.
    Stops when the caller goes away.

    Raises:
        SpecdemoError: what `convert_gguf` raises.
    """
    runtime = pair.runtime.model_copy(update={"model_cache": False})
    for model, device in ((pair.target, runtime.device), (pair.draft, draft_device(runtime))):
        if model is not None and model.path is not None and awaits_conversion(model):
            form = None if model.form == "auto" and choice_of(model) is None else form_of(model)
            for seconds in convert_gguf(model.path, Forms(form, device, tuple(properties(runtime, device).items()))):
                yield model, seconds


def convert_models(models: Iterable[Model | None]) -> Iterator[tuple[Model, float]]:
    """The same for models whose tokenizer or exact network is wanted: nothing is measured."""
    for model in models:
        if model is not None and model.path is not None and not is_converted(model):
            for seconds in convert_gguf(model.path):
                yield model, seconds


def convert_gguf(path: Path, forms: Forms = EXACT) -> Iterator[float]:
    """Convert a file that is not converted yet; yields the elapsed seconds, five times a second.

    When the caller goes away the conversion ends and leaves nothing behind.

    Raises:
        GGUFError: the file cannot be read.
        DiskError: the disk is too small.
        ConversionError: openvino-genai refused it, or ran out of memory.
    """
    if forms.form is not None and converted_folder(path, forms.form) is not None:
        return
    _check_disk(inspect_gguf(path), _GROWTH + (_INT8_GROWTH if forms != EXACT else 0))
    writable(conversions(), "Conversions")
    for left in conversions().glob(".converting-*"):  # left by a process that was killed
        if time() - left.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    began = monotonic()
    died = ConversionError(
        f"The conversion of {path.name!r} ended unexpectedly, perhaps for lack of memory; free some and try again."
    )
    with (
        tempfile.TemporaryDirectory(prefix=".converting-", dir=conversions()) as scratch,
        closing(
            follow(_convert, path.resolve(), Path(scratch), forms, name="specdemo conversion", died=died)
        ) as silences,
    ):
        for _ in silences:
            yield monotonic() - began


def _check_disk(model: Model, growth: float) -> None:
    place = next(folder for folder in (conversions(), *conversions().parents) if folder.is_dir())
    needed, free = int((model.weight_bytes or 0) * growth), shutil.disk_usage(place).free
    if needed > free:
        raise DiskError(
            f"The conversion of {model.name!r} may need {in_units(needed)}, but {place} has only {in_units(free)} "
            "free; free some space, or set XDG_CACHE_HOME to a larger disk."
        )


def _convert(path: Path, scratch: Path, forms: Forms) -> Iterator[None]:
    """The child."""
    os.dup2(2, 1)  # the reader's prints are not our output
    yield from convert_here(path, scratch, forms)


def convert_here(path: Path, scratch: Path, forms: Forms = EXACT) -> Iterator[None]:
    """Convert in this process, in a scratch folder on the cache's disk, and move the results to their places.

    Yields None once it is under way. The reader prints to standard output.

    Raises:
        GGUFError: the file cannot be read.
        ConversionError: openvino-genai refused it.
    """
    digest = file_digest(path)
    exact, int8 = place_of(digest, "exact"), place_of(digest, "int8")
    if not exact.is_dir():  # else the same content under another name
        yield None
        _store_exact(path, scratch / "exact", exact)
        for version in range(1, VERSION):
            shutil.rmtree(exact.with_name(f"{digest}-{version}"), ignore_errors=True)
    if forms.form == "exact" or (forms.form == "int8" and int8.is_dir()):
        return
    yield None
    changed = int8.is_dir() or _store_int8(exact, scratch / "int8", int8)
    if forms.form is None:
        choice = WeightsChoice(form="exact")
        if changed and memory_free() > _MEMORY * path.stat().st_size:
            choice = measure_forms(exact, int8, forms.device, dict(forms.properties))
        remember_choice(digest, choice)
        if choice.form == "exact":
            shutil.rmtree(int8, ignore_errors=True)


def _store_exact(path: Path, work: Path, folder: Path) -> None:
    header = read_header(path)
    check_readable(header)
    work.mkdir()
    link = work / "model.gguf"
    if not with_halves(path, header, link):
        link_or_copy(path, link)
    try:
        openvino_genai.LLMPipeline(link, "CPU", enable_save_ov_model=True)
    except Exception as error:  # whatever makes the reader fail
        said = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        raise ConversionError(
            f"OpenVINO GenAI could not read {path.name!r} (its last message: {said}); choose another file."
        ) from error
    repair(work, path, header)
    link.unlink()
    for name, content in (("config", configuration(header)), ("generation_config", ends(header))):
        (work / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    _finish(work, folder)


def _store_int8(exact: Path, work: Path, folder: Path) -> bool:
    """Store a conversion's weights as int8 beside it; False, and an empty change, where all have eight bits."""
    shutil.copytree(exact, work)
    changed = rewrite(work, store_as_int8)
    _finish(work, folder)
    return changed > 0


def _finish(work: Path, folder: Path) -> None:
    inspect_folder(work)
    with suppress(OSError):  # another process was faster
        work.rename(folder)
