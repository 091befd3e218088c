"""Models that visitors may choose. The browser sends names, which are looked up and never turned into paths."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from specdemo.errors import DeviceError, SpecdemoError, UnknownNameError, quoted
from specdemo.models.catalogue import (
    catalogue,
    entry_folders,
    find,
    initial_runtime,
    local_folder,
    models_dir,
    pair_of,
)
from specdemo.models.devices import devices, draft_device, memory_total
from specdemo.models.hub import download, download_source
from specdemo.models.library import add_model, library
from specdemo.records import Model, ModelPair, Progress
from specdemo.settings import RuntimeSettings
from specdemo.ui.parts import alert, card, download_html, html, notice
from specdemo.ui.session import Sessions, Visitors

PAIR_NAMES = ("target", "draft", *RuntimeSettings.model_fields)  # of the controls and links that choose a pair


def values_of(pair: ModelPair) -> dict[str, Any]:
    draft = pair.draft.name if pair.draft is not None else ""
    runtime = pair.runtime.model_dump()
    return {"target": pair.target.name, "draft": draft} | runtime | {"draft_device": runtime["draft_device"] or ""}


def is_hub_name(name: str) -> bool:
    """The form of a model's or a GGUF file's name on the Hub."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+\.gguf)?", name) is not None


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
        return models_dir(self._directory)

    def add(self, place: str) -> str:
        return add_model(place, self._directory).name

    def elsewhere(self, name: str) -> str:
        missing = f"Unknown model {quoted(name)}"
        if not is_hub_name(name):
            return f"{missing}; choose one from the list."
        if self.downloads:
            return f"{missing}; look it up on the Hub in the Models tab."
        return f"{missing}; on this page's machine, run: specdemo models download {name}"

    def choose(self, values: dict[str, Any]) -> ModelPair:
        """The pair of these values of `PAIR_NAMES`; an empty draft means none."""
        models, (target, draft) = self.models(), (values[role] or "" for role in ("target", "draft"))
        for name in (target, *filter(None, [draft])):
            if name not in models:
                raise UnknownNameError(self.elsewhere(name))
        if target == self.default.target.name and self.default.servers is not None:
            return self.default
        runtime = {name: values[name] for name in RuntimeSettings.model_fields}
        settings = RuntimeSettings.checked(**runtime | {"draft_device": runtime["draft_device"] or None})
        offered = self.devices()
        unknown = next((name for name in (settings.device, draft_device(settings)) if name not in offered), None)
        if unknown is not None:
            raise DeviceError(f"This page offers no device {quoted(unknown)}; choose one of {', '.join(offered)}.")
        return pair_of(models[target], models[draft] if draft else None, runtime=settings)

    def devices(self) -> dict[str, str]:
        """Titles of those that visitors may choose: usable ones, and those of the default pair."""
        usable = [device for device in devices() if device.reason is None]
        own = (self.default.runtime.device, draft_device(self.default.runtime))
        return dict.fromkeys(own, "as the page was started") | {device.name: device.full_name for device in usable}

    def default_runtime(self, target: str) -> RuntimeSettings:
        model = self.models().get(target)
        return initial_runtime(model) if model is not None else RuntimeSettings()

    def names_of(self, entry_name: str) -> dict[str, str]:
        """The names of a catalogue entry's target and draft."""
        entry = find(entry_name)
        by_path = {model.path: name for name, model in self.models().items()}
        names = [by_path.get(folder) for folder in entry_folders(entry, self._directory)]
        if None in names:
            raise UnknownNameError(f"{entry.title!r} is not on this machine yet; download or convert it first.")
        return dict(zip(("target", "draft"), [name or "" for name in (*names, "")], strict=False))

    def cards(self) -> str:
        able, unable = list[dict[str, Any]](), list[dict[str, Any]]()
        for entry in catalogue():  # weights that exceed all memory can only be swapped
            runs = entry.supported and entry.disk_bytes < memory_total()
            here = [local_folder(source, self._directory) is not None for source in entry.sources]
            own = self._directory is not None
            (able if runs else unable).append(card(entry, here, downloads=self.downloads, own_directory=own))
        return html("cards", able, unable)  # the second are folded

    def offer(self, name: str) -> str:
        """HTML for a model not on this machine; empty if it cannot be downloaded."""
        return html("offer", name) if self.downloads and is_hub_name(name) else ""

    def download(self, visitor: str, name: str) -> Iterator[str]:
        """Yield messages; a stopped download keeps its files."""
        if not self.downloads:
            yield notice("Downloads are off on this page; use a terminal on its machine.")
            return
        try:
            with self._visitors.busy(visitor, "download") as cancelled:
                yield notice("Contacting the Hub …")
                for source, steps in _downloads(name, cancelled.is_set):
                    last: Progress[Path | None] | None = None
                    for last in steps:
                        yield download_html(source, last)
                    if last is None or last.result is None:
                        yield notice("Stopped. Downloaded files are kept; download again to resume.")
                        return
            yield notice(f"{name if is_hub_name(name) else find(name).title} is on this machine.")
        except SpecdemoError as error:
            yield alert(error)


class Shared(NamedTuple):
    """What the tabs share. `session_open` and `pair` hold a visitor's state; `local`: only this machine reaches the
    page, which may then show its paths and add its files.
    """

    sessions: Sessions
    registry: Registry
    header: gr.HTML
    session_open: gr.State
    pair: gr.State
    local: bool


def _downloads(name: str, stop: Callable[[], bool]) -> Iterator[tuple[str, Iterator[Progress[Path | None]]]]:
    """The source and the progress of each."""
    if is_hub_name(name):
        yield name, download(name, stop=stop)
        return
    for source in find(name).sources:
        if source.repository is not None and source.format != "convert" and not local_folder(source):
            yield source.address, download_source(source, stop)
