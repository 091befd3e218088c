"""The folder of OpenVINO IR that stands for a model: its own, or the conversion of its GGUF file in our cache.

A conversion's folder is named by its file's SHA-256 digest, the version of our conversion and the form of its
weights, so that a copy or a renamed file is not converted again.
"""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from specdemo.errors import LoadError, SpecdemoError
from specdemo.models.places import own_cache, writable
from specdemo.models.weights import WeightsChoice, remembered_choice
from specdemo.records import Model
from specdemo.settings import WeightsForm

VERSION = 3
"""Raised when a conversion changes, so that files converted before it are converted again."""
_FOLDERS: dict[WeightsForm, str] = {"exact": "", "int8": "-int8"}


def folder_of(model: Model) -> Path:
    """The folder of OpenVINO IR that an engine loads: the model's own, or the conversion of its GGUF file.

    A file whose form of weights was not chosen yet stands for its exact weights.

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
    """The form of a GGUF model's weights: the one it was given, else the one chosen for this machine, else exact."""
    if model.form != "auto":
        return model.form
    choice = choice_of(model)
    return choice.form if choice is not None else "exact"


def choice_of(model: Model) -> WeightsChoice | None:
    """What was measured of a GGUF model on this machine; None if nothing was, or it is a folder."""
    digest = recorded_digest(model.path) if model.path is not None and model.path.is_file() else None
    return remembered_choice(digest) if digest is not None else None


def stored_form(model: Model) -> str | None:
    """The form of a GGUF model's weights in words, and why; None of a folder, and of a file not converted yet."""
    if model.path is None or not model.path.is_file() or not is_converted(model):
        return None
    choice = choice_of(model)
    words = {"exact": "exact weights", "int8": "int8 in groups of 64"}[form_of(model)]
    if model.form != "auto":
        return f"{words} (as set)"
    return f"{words} ({choice.reason if choice is not None else 'not measured yet'})"


def tokenizer_folder(model: Model) -> Path:
    """The folder of a model's tokenizer, which is the same in every form.

    Raises:
        LoadError: what `folder_of` raises.
    """
    exact = converted_folder(model.path) if model.path is not None and model.path.is_file() else None
    return exact or folder_of(model)


def is_converted(model: Model) -> bool:
    """Whether a model is OpenVINO IR, or a GGUF file converted to it in any form."""
    path = model.path
    return path is None or not path.is_file() or any(converted_folder(path, form) for form in _FOLDERS)


def awaits_conversion(model: Model) -> bool:
    """Whether a model is a GGUF file that must be converted, or whose form must be chosen, before it is loaded."""
    if model.path is None or not model.path.is_file():
        return False
    if model.form == "auto" and choice_of(model) is None:
        return True
    return converted_folder(model.path, form_of(model)) is None


def converted_folder(path: Path, form: WeightsForm = "exact") -> Path | None:
    """Where a file's conversion is, if there is one; instant, since converted files have a stored digest."""
    digest = recorded_digest(path)
    folder = place_of(digest, form) if digest is not None else None
    return folder if folder is not None and folder.is_dir() else None


def place_of(digest: str, form: WeightsForm) -> Path:
    """Where the conversion of the file of this digest belongs."""
    return conversions() / f"{digest}-{VERSION}{_FOLDERS[form]}"


def conversions() -> Path:
    """Where conversions are kept."""
    return own_cache() / "gguf"


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, recomputed only when its size or time has changed.

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
    """The digest of a file as it is now, if it was computed before."""
    record = _record_of(path)
    try:
        return record.read_text(encoding="ascii") if record is not None else None
    except (OSError, UnicodeDecodeError):
        return None


def _record_of(path: Path) -> Path | None:
    """Where the digest of a file of this size and time is stored."""
    try:
        state = path.stat()
    except OSError:
        return None
    key = f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
    return conversions() / "digests" / hashlib.sha256(os.fsencode(key)).hexdigest()
