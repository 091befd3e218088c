"""Models that visitors may choose. The browser sends names, which are looked up and never turned into paths."""

import re
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
import psutil

from specdemo.errors import DeviceError, SpecdemoError, UnknownNameError, quoted
from specdemo.models import catalogue
from specdemo.models.checks import fitting_draft
from specdemo.models.devices import devices, draft_device
from specdemo.models.hub import download
from specdemo.models.library import add_model, library
from specdemo.records import Model, ModelPair, Progress
from specdemo.settings import RuntimeSettings
from specdemo.text import parameters
from specdemo.ui.parts import alert, card, download_html, html, notice
from specdemo.ui.session import Sessions, Visitors

_SELECT = ("select", "Use this model")
PAIR_NAMES = ("target", "draft", *RuntimeSettings.model_fields)  # of the controls that choose a pair, and in links


def values_of(pair: ModelPair) -> dict[str, Any]:
    draft = pair.draft.name if pair.draft is not None else ""
    runtime = pair.runtime.model_dump()
    return {"target": pair.target.name, "draft": draft} | runtime | {"draft_device": runtime["draft_device"] or ""}


def is_hub_name(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+\.gguf)?", name) is not None


def _draft_name(target: Model, models: dict[str, Model]) -> str:
    draft = fitting_draft(target, models.values())
    return draft.name if draft is not None else ""


class Registry:
    def __init__(
        self, default: ModelPair, visitors: Visitors, *, directory: Path | None = None, downloads: bool = True
    ) -> None:
        self.default = default
        self.downloads = downloads
        self._visitors = visitors
        self._directory = directory

    def models(self) -> dict[str, Model]:
        first = [model for model in (self.default.target, self.default.draft) if model is not None]
        return {model.name: model for model in library(self._directory, first).models}

    @property
    def folder(self) -> Path:
        return catalogue.models_dir(self._directory)

    def add(self, place: str) -> str:
        return add_model(place, self._directory).name

    def unknown_model(self, name: str) -> str:
        missing = f"Unknown model {quoted(name)}"
        if not is_hub_name(name):
            return f"{missing}; choose one from the list."
        if self.downloads:
            return f"{missing}; look it up on the Hub in the Models tab."
        return f"{missing}; on this page's machine, run: specdemo models download {name}"

    def choose(self, values: dict[str, Any]) -> ModelPair:
        """Return the pair with these values, by `PAIR_NAMES`. An empty draft means none."""
        models = self.models()
        target, draft = values["target"] or "", values["draft"] or ""
        for name in (target, draft) if draft else (target,):
            if name not in models:
                raise UnknownNameError(self.unknown_model(name))
        if target == self.default.target.name and self.default.servers is not None:
            return self.default
        runtime = {name: values[name] for name in RuntimeSettings.model_fields}
        settings = RuntimeSettings.checked(**runtime | {"draft_device": runtime["draft_device"] or None})
        offered = self.devices()
        for name in (settings.device, draft_device(settings)):
            if name not in offered:
                raise DeviceError(f"This page offers no device {quoted(name)}; choose one of {', '.join(offered)}.")
        return catalogue.pair_of(models[target], models[draft] if draft else None, runtime=settings)

    def devices(self) -> dict[str, str]:
        """Return the titles of the devices that visitors may choose: usable ones, and those of the default pair."""
        runtime = self.default.runtime
        titles = dict.fromkeys((runtime.device, draft_device(runtime)), "as the page was started")
        return titles | {device.name: device.full_name for device in devices() if device.reason is None}

    def default_runtime(self, target: str) -> RuntimeSettings:
        model = self.models().get(target)
        return catalogue.default_runtime(model) if model is not None else RuntimeSettings()

    def names_of(self, entry_name: str) -> dict[str, str]:
        """Return the names of a catalogue entry's target and draft, or of a model here and the draft that fits it."""
        models = self.models()
        if entry_name in models:
            return {"target": entry_name, "draft": _draft_name(models[entry_name], models)}
        entry = catalogue.find(entry_name)
        by_path = {model.path: name for name, model in models.items()}
        paths = catalogue.entry_folders(entry, self._directory, models.values())
        names = [by_path[path] for path in paths if path in by_path]
        if len(names) < len(entry.sources):
            raise UnknownNameError(f"{entry.title!r} is not on this machine yet; download or convert it first.")
        return {"target": names[0], "draft": names[1]}

    def cards(self) -> str:
        runnable, others = list[dict[str, Any]](), list[dict[str, Any]]()
        models, known = self.models(), set[Path | None]()
        for entry in catalogue.catalogue():
            # larger weights would be swapped
            runs = entry.supported and entry.disk_bytes < psutil.virtual_memory().total
            paths = catalogue.entry_folders(entry, self._directory, models.values())
            known.update(paths)
            present = [path is not None for path in paths]
            own_directory = self._directory is not None
            cards = runnable if runs else others
            cards.append(card(entry, present, downloads=self.downloads, own_directory=own_directory))
        return html("cards", [*self._own_cards(models, known)], runnable, others)

    def _own_cards(self, models: dict[str, Model], known: Container[Path | None]) -> Iterator[dict[str, Any]]:
        """Yield cards of targets on this machine that are neither the page's first one nor the catalogue's."""
        for model in models.values():
            if model.head is not None or model.path in known or model.name == self.default.target.name:
                continue
            draft = _draft_name(model, models)
            drafted = f"with {draft}" if draft else "no draft: prompt lookup"
            about = " · ".join((parameters(model.parameters), model.weights, drafted))
            texts = {"name": model.name, "title": model.name, "about": about, "buttons": [_SELECT]}
            yield texts | dict.fromkeys(("draft", "models", "notes", "reason", "commands"), ())

    def offer(self, name: str) -> str:
        return html("offer", name) if self.downloads and is_hub_name(name) else ""

    def download(self, visitor: str, name: str) -> Iterator[str]:
        """Yield messages. A stopped download keeps its files."""
        if not self.downloads:
            yield notice("Downloads are off on this page; use a terminal on its machine.")
            return
        try:
            with self._visitors.busy(visitor, "download") as cancelled:
                yield notice("Contacting the Hub …")
                for source, steps in _downloads(name, cancelled.is_set):
                    progress: Progress[Path | None] | None = None
                    for progress in steps:
                        yield download_html(source, progress)
                    if progress is None or progress.result is None:
                        yield notice("Stopped. Complete files are kept.")
                        return
            yield notice(f"{name if is_hub_name(name) else catalogue.find(name).title} is on this machine.")
        except SpecdemoError as error:
            yield alert(error)


class Shared(NamedTuple):
    """What the tabs share. `session_open` and `pair` hold a visitor's state. `local`: only this machine reaches the
    page, so the page may show its paths and add its files.
    """

    sessions: Sessions
    registry: Registry
    header: gr.HTML
    session_open: gr.State
    pair: gr.State
    local: bool


def _downloads(name: str, stop: Callable[[], bool]) -> Iterator[tuple[str, Iterator[Progress[Path | None]]]]:
    """Yield each source that is missing here, with the progress of its download."""
    if is_hub_name(name):
        yield name, download(name, stop=stop)
        return
    for source in catalogue.find(name).sources:
        if source.repository is not None and source.format != "convert" and not catalogue.local_folder(source):
            yield source.address, download(source.address, revision=source.revision, stop=stop)
