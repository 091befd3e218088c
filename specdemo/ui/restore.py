"""What a page starts with: whatever of its address or the browser's storage can be used."""

from typing import Any, NamedTuple

import gradio as gr
from pydantic import TypeAdapter, ValidationError

from specdemo.errors import SettingsError, SpecdemoError
from specdemo.models.pairs import bundled_prompts
from specdemo.records import ModelPair
from specdemo.settings import RuntimeSettings
from specdemo.ui.controls import NAMES, settings_from_link, start_values
from specdemo.ui.html.parts import alert, header_html
from specdemo.ui.registry import PAIR_NAMES, Names, Registry, values_of

_SAVED = TypeAdapter(dict[str, str])


class Restored(NamedTuple):
    """Updates of prompt, controls, message, pair, header, and the controls that name a pair."""

    prompt: Any
    controls: list[Any]
    message: Any
    pair: Any
    header: Any
    pair_controls: list[Any]


def restore(registry: Registry, saved: str) -> Restored:
    """What to start with; `saved` is a JSON object of names and texts, or empty."""
    values, damaged = _read(saved)
    pair, wrong = _pair(registry, {name: values[name] for name in PAIR_NAMES if name in values})
    start = start_values(registry.default)
    named = {name: values[name] for name in NAMES if name in values}
    settings, wrong_setting = settings_from_link(pair, named, start)
    error = damaged or wrong or wrong_setting
    other = pair != registry.default
    return Restored(
        prompt=values.get("prompt", bundled_prompts(pair.target.prompts)[0] if other else gr.skip()),
        controls=[gr.skip() if value == start[name] else value for name, value in settings],
        message=alert(error) if error is not None else gr.skip(),
        pair=pair if other else gr.skip(),
        header=header_html(pair) if other else gr.skip(),
        pair_controls=[value if other else gr.skip() for value in values_of(pair).values()],
    )


def _read(saved: str) -> tuple[dict[str, str], SpecdemoError | None]:
    """The names and texts, or none and what is wrong."""
    try:
        return _SAVED.validate_json(saved or "{}"), None
    except ValidationError:
        return {}, SettingsError("What this browser saved cannot be read, so the page begins with its defaults.")


def _pair(registry: Registry, named: dict[str, str]) -> tuple[ModelPair, SpecdemoError | None]:
    """The named pair, or the default one and what is wrong."""
    if not named:
        return registry.default, None
    start = values_of(registry.default)
    if "target" in named:  # a link that names another target lists what differs from that target's defaults
        start |= registry.suited(named["target"]).model_dump() | {"draft": "", "draft_device": ""}
    values = start | named
    try:
        runtime = {name: values[name] for name in RuntimeSettings.model_fields}
        return registry.choose(Names(values["target"], values["draft"]), runtime), None
    except SpecdemoError as error:
        return registry.default, type(error)(f"The link's pair cannot be used. {error}")
