"""All models on this machine, by unique names: bundled, in the Hub's cache, the user's own, and other programs'.

The page can choose only among these names, which are looked up and never turned into a path. GGUF files of other
programs are listed under the names that those programs use:

- LM Studio: `~/.lmstudio/models`, as publisher/repository/file. If its settings name another folder, so can
  SPECDEMO_MODELS.
- llama.cpp: files in LLAMA_CACHE, else in `llama.cpp` in the user's cache; newer versions use the Hub's layout.
- Ollama: blobs named by digest in OLLAMA_MODELS, else in `~/.ollama/models`, or in that of its Linux service; a
  manifest for each tag names the blob that is the model.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple

import platformdirs

from specdemo.child import Failure, Limits, result_of
from specdemo.errors import FolderError, ModelError, UnknownNameError, UsageError, quoted
from specdemo.files import ASSETS, expand_path, json_value, link_or_copy, list_folder, writable_folder
from specdemo.models.catalogue import (
    MODELS_VARIABLE,
    Source,
    bundled_models,
    cached_folders,
    catalogue,
    hub_cache,
    is_source,
    local_folder,
    models_dir,
    repositories_in,
    snapshots,
    suggestion,
)
from specdemo.models.checks import fitting_draft
from specdemo.models.converted import folder_of, is_converted
from specdemo.models.folder import inspect_folder, read_start
from specdemo.models.gguf import LIMITS, inspect_gguf, inspect_limited, inspect_model
from specdemo.records import Model, Record


class UnusableModel(Record):
    name: str
    reason: str


class Library(Record):
    models: tuple[Model, ...]
    unusable: tuple[UnusableModel, ...] = ()


def library(directory: Path | None = None, first: Sequence[Model] = ()) -> Library:
    catalogued, _ = _inspect_all(
        (source.name, path)
        for entry in catalogue()
        for source in entry.sources
        if source.name is not None and (path := local_folder(source)) is not None
    )
    cached, _ = _inspect_all(cached_folders().items())
    configured = directory or os.environ.get(MODELS_VARIABLE)
    own, unusable = models_in(models_dir(directory)) if configured or models_dir().is_dir() else ([], [])
    known = {model.path and model.path.resolve() for model in (*catalogued, *own)}
    files = ((name, path) for name, path in other_programs_files() if path.resolve() not in known)
    others, others_unusable = _inspect_all(files)
    models = _unique([*first, *bundled_models(), *catalogued, *cached, *own, *others])
    return Library(models=tuple(models), unusable=(*unusable, *others_unusable))


def _unique(models: Iterable[Model]) -> Iterator[Model]:
    """Yield the first model at each path; number repeated names."""
    paths, names = set(), Counter[str]()
    for model in models:
        if model.path is not None and model.path in paths:
            continue
        paths.add(model.path)
        names[model.name] += 1
        number = names[model.name]
        yield model if number == 1 else model.model_copy(update={"name": f"{model.name} ({number})"})


def _inspect_all(candidates: Iterable[tuple[str, Path]]) -> tuple[list[Model], list[UnusableModel]]:
    models, unusable = [], []
    for name, path in candidates:
        try:
            models.append(inspect_model(path).model_copy(update={"name": name}))
        except ModelError as error:
            unusable.append(UnusableModel(name=name.encode(errors="replace").decode(), reason=str(error)))
    return models, unusable


def models_in(directory: Path) -> tuple[list[Model], list[UnusableModel]]:
    """Return the usable and unusable models in a directory: `[organisation/]name[/file.gguf]`, not hidden."""
    if not directory.is_dir():
        raise FolderError(f"There is no directory {quoted(str(directory))}; give the one that holds your models.")
    files = {file.relative_to(directory).as_posix(): file for file in gguf_files(directory, depth=2)}
    return _inspect_all([*_candidates(directory), *files.items()])


def _candidates(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield folders that hold files, by name; a folder that holds only folders is an organisation."""
    for folder in _folders(directory):
        inside = [] if any(folder.glob("openvino_*")) else _folders(folder)
        for model in inside or [folder]:
            if any(model.glob("openvino_*")) or not any(gguf_files(model, depth=0)):
                yield model.relative_to(directory).as_posix(), model


def _folders(directory: Path) -> list[Path]:
    return [path for path in list_folder(directory) if path.is_dir() and not path.name.startswith(".")]


def resolve(name: str | Path, directory: Path | None = None) -> Model:
    """Return the model at a path, if it exists or looks like one, else the model of this name."""
    path, name = Path(name), str(name)
    if path.is_file():
        return inspect_gguf(path)
    if path.is_dir():
        files = [] if any(path.glob("openvino_*")) else list(gguf_files(path, depth=0))
        largest = max(files, key=lambda file: file.stat().st_size, default=None)  # others may be its drafts
        return inspect_gguf(largest) if largest is not None else inspect_folder(path)
    if path.is_absolute() or name.startswith(".") or (len(path.parts) > 2 and ":" not in name):
        return inspect_gguf(path) if path.suffix == ".gguf" else inspect_folder(path)
    return find_model(name, directory)


def find_model(name: str, directory: Path | None = None) -> Model:
    inventory = library(directory)
    models = {model.name: model for model in inventory.models}
    if name in models:
        return models[name]
    for unusable in inventory.unusable:
        if unusable.name == name:
            raise UnknownNameError(f"{quoted(name)} cannot be used: {unusable.reason}")
    entries = {entry.name: entry for entry in catalogue()}
    if name in entries:
        source = entries[name].target
        target = source.name or source.repository or f"{name}/target"
        if target in models:
            return models[target]
        raise UnknownNameError(
            f"{quoted(name)} is a pair of the catalogue, whose target is {quoted(target)}; "
            f"'specdemo models info {name}' says how to get it."
        )
    raise UnknownNameError(f"Unknown model {quoted(name)}; {suggestion(name, [*models, *entries])}.")


def add_model(place: str, directory: Path | None = None, *, limits: Limits = LIMITS) -> Model:
    """Inspect a file or folder within `limits`, then link or copy it into the user's folder. Return it."""
    try:
        path = Path(place.strip().strip("\"'")).expanduser()
        if not path.is_absolute():
            raise FileNotFoundError
        path = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # also for an unknown user's home, or no possible name
        missing = f"There is no file or folder {quoted(place)}"
        raise UsageError(f"{missing}; give its full path on this machine.") from None
    failure = Failure(ModelError, f"{quoted(path.name)} cannot be read", "choose another model")
    found = result_of(inspect_limited(path, failure, read=resolve, limits=limits)).path or path
    folder = writable_folder(models_dir(directory), "Models", "name another folder with --models-dir")
    link = folder / path.name
    if link.exists() and not link.samefile(path):
        raise UsageError(f"Your models folder already has another {path.name!r}; rename the file and add it again.")
    if not link.exists():
        link_or_copy(path, link)
    return find_model(Path(path.name, found.relative_to(path)).as_posix(), directory)


def draft_for(target: Model, directory: Path | None = None) -> Model | None:
    beside = list[Model]()
    if target.path is not None and target.path.is_file():
        beside, _ = _inspect_all((file.name, file) for file in gguf_files(target.path.parent, depth=0))
    return fitting_draft(target, [*library(directory).models, *beside])


_MAX_FILES = 200  # of other programs; more would make lists too long to choose from
_SEARCH_SECONDS = 0.5  # per folder of a program, which may be on a slow disk
_SKIPPED_FILES = re.compile(r"mmproj|-(?!00001-)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
"""Image projectors are not language models; a model in several parts is represented by the first."""
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")


def other_programs_files() -> Iterator[tuple[str, Path]]:
    files = set()
    for name, path in islice(_all_gguf_files(), _MAX_FILES):
        with suppress(OSError):
            file = path.resolve(strict=True)
            if file not in files:
                files.add(file)
                yield name, path


def gguf_files(folder: Path, depth: int) -> Iterator[Path]:
    deadline, pending = monotonic() + _SEARCH_SECONDS, [(folder, depth)]
    while pending and monotonic() < deadline:
        current, levels = pending.pop(0)
        for path in list_folder(current):
            if path.name.startswith("."):
                continue
            if levels and path.is_dir():
                pending.append((path, levels - 1))
            elif path.name.lower().endswith(".gguf") and not _SKIPPED_FILES.search(path.name):
                yield path


def _all_gguf_files() -> Iterator[tuple[str, Path]]:
    yield from _hub_files(hub_cache())
    lm_studio = Path.home() / ".lmstudio" / "models"
    for path in gguf_files(lm_studio, depth=2):
        *repository, file = path.relative_to(lm_studio).parts
        yield f"{'/'.join(repository)}:{file}" if repository else file, path
    configured = os.environ.get("LLAMA_CACHE")
    default = platformdirs.user_cache_path("llama.cpp", appauthor=False, opinion=False)
    folder = expand_path(configured) if configured else default
    yield from _hub_files(folder)
    yield from ((path.name, path) for path in gguf_files(folder, depth=0))
    yield from _ollama_files()


def _hub_files(cache: Path) -> Iterator[tuple[str, Path]]:
    """Yield the GGUF files in a cache with the Hub's layout, newest first, as ORGANISATION/MODEL:FILE."""
    for repository, storage in repositories_in(cache):
        files = dict[str, Path]()
        for snapshot in snapshots(storage):
            for path in gguf_files(snapshot, depth=1):
                files.setdefault(f"{repository}:{path.relative_to(snapshot).as_posix()}", path)
        yield from files.items()


def _ollama_files() -> Iterator[tuple[str, Path]]:
    configured = os.environ.get("OLLAMA_MODELS")
    for folder in [expand_path(configured)] if configured else [Path.home() / ".ollama" / "models", _OLLAMA_SERVICE]:
        for manifest in sorted(folder.glob("manifests/*/*/*/*")):
            digest = _ollama_digest(manifest)
            if digest is not None:
                registry, *owner, model, tag = manifest.relative_to(folder / "manifests").parts
                is_default = registry == "registry.ollama.ai"
                owner = [part for part in owner if part != "library"] if is_default else [registry, *owner]
                yield "/".join([*owner, f"{model}:{tag}"]), folder / "blobs" / digest.replace(":", "-")


def _ollama_digest(manifest: Path) -> str | None:
    """Return the digest of the model's blob; None if this is not a model's manifest."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for layer in json_value(read_start(manifest))["layers"]:
            if layer["mediaType"] == _OLLAMA_MODEL and re.fullmatch(r"sha256:[0-9a-f]{64}", layer["digest"]):
                return str(layer["digest"])
    return None


Format = Literal["openvino", "gguf", "transformers"]
"""OpenVINO folders; GGUF files; the published format, for vLLM."""


class Origin(NamedTuple):
    """A path or repository to load. `get` says how to obtain it first."""

    path: str
    get: str | None = None


def origin(model: Model, format_: Format, *, local: bool) -> Origin | None:
    """Return where to get a model in a format, if anywhere; a path on this machine only if `local`."""
    path = model.path
    if path is None:  # read from JSON, which has only its name
        return Origin(model.name)
    is_file, source = path.is_file(), source_of(model)
    repository = source.repository if source is not None else None
    if format_ == "transformers":
        return Origin(repository) if source and repository and source.format == "convert" else None
    if format_ == "gguf" and not is_file:
        return None
    if local:
        return Origin(str(folder_of(model) if format_ == "openvino" and is_converted(model) else path))
    if path.is_relative_to(ASSETS):
        folder = f"specdemo/assets/{path.relative_to(ASSETS).as_posix()}"
        return Origin(folder, f"{model.name} comes with specdemo, in this folder of its package")
    if source is None or repository is None:
        return Origin(path.name, f"{model.name} belongs to the operator of this page; ask them for it")
    if source.format == "convert":
        return Origin(path.name, source.export_command(path.name))
    files = [source.file, "--local-dir", "."] if source.file is not None else ["--local-dir", path.name]
    return Origin(path.name, " ".join(["hf download", repository, *files]))


def source_of(model: Model) -> Source | None:
    sources = (source for entry in catalogue() for source in entry.sources)
    return next((source for source in sources if is_source(model, source)), None)
