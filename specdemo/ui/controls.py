"""Controls for the settings: one a field, with the field's own title, description and limits."""

from typing import Any, Literal, get_args, get_origin

import gradio as gr
from pydantic.fields import FieldInfo

from specdemo.errors import SettingsError
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings, RuntimeSettings

_CHOICES = {
    "genai": "OpenVINO GenAI",
    "traced": "Traced",
    "heuristic": "Heuristic",
    "on": "On",
    "off": "Off",
    "model": "Draft model",
    "lookup": "Prompt lookup",
    "constant": "Constant",
    "confidence": "Confidence threshold",
    "auto": "Automatic",
}
FIELDS = GenerationSettings.model_fields
RUNTIME = RuntimeSettings.model_fields
NAMES = tuple(FIELDS)
DEFAULTS = tuple(field.default for field in FIELDS.values())


Control = gr.Checkbox | gr.Dropdown | gr.Radio | gr.Number | gr.Slider | gr.Textbox


def control(name: str, *, typed: bool = False, **options: Any) -> Control:
    """The control of one setting: choices as radio buttons, yes or no as a box, numbers as a slider or typed."""
    field = (FIELDS | RUNTIME)[name]
    common: dict[str, Any] = {
        "value": field.default,
        "label": field.title,
        "info": field.description,
        "elem_id": name,
        "interactive": True,
        **options,
    }
    if field.annotation is bool:
        return gr.Checkbox(**common)
    if get_origin(field.annotation) is Literal:
        return gr.Radio([(_CHOICES.get(choice, choice), choice) for choice in get_args(field.annotation)], **common)
    low, high = _limits(field)
    if typed or high - low > 10_000:  # a seed is typed, not slid to
        return gr.Number(minimum=low, maximum=high, precision=0, **common)
    step = 1 if field.annotation is int else 0.05
    return gr.Slider(low, high, step=step, **common)


def _limits(field: FieldInfo) -> tuple[float, float]:
    bounds = {key: getattr(rule, key) for rule in field.metadata for key in ("ge", "gt", "le") if hasattr(rule, key)}
    return bounds.get("ge", bounds.get("gt", 0)), bounds["le"]


def visibility(pair: ModelPair, engine: str, drafter: str, policy: str) -> dict[str, bool]:
    """Which controls have a meaning for this pair, engine, drafter and policy.

    Choices within a control that an engine lacks are hidden by the style sheet, by the engine's name as a class:
    Gradio refuses a restored value that is not among a control's choices yet.
    """
    by_model, traced = drafter == "model", engine == "traced"
    head = by_model and pair.eagle3
    return {
        "engine": not pair.eagle3,
        "drafter": pair.draft is not None,
        "policy": by_model and not head,
        "num_assistant_tokens": not by_model or policy == "constant",
        "assistant_confidence_threshold": by_model and policy == "confidence",
        "max_assistant_tokens": traced and by_model and policy in ("confidence", "auto"),
        "tree_depth": head,
        "branching_factor": head,
        "max_ngram_size": not by_model,
        "kv_cache": traced,
        "alternatives": traced,
        "apply_chat_template": pair.target.chat_template,
        "enable_thinking": pair.target.chat_template,
    }


def initially(pair: ModelPair) -> dict[str, bool]:
    """Which controls a new visitor sees."""
    return visibility(pair, FIELDS["engine"].default, first_drafter(pair), FIELDS["policy"].default)


def first_drafter(pair: ModelPair) -> str:
    """The drafter to begin with."""
    return "model" if pair.draft is not None else "lookup"


def settings_from(pair: ModelPair, values: dict[str, Any]) -> GenerationSettings:
    """The settings that controls hold; one that has no meaning for pair or drafter is left at its default.

    Raises:
        SettingsError: a value is out of its range.
    """
    values = values | {"drafter": values["drafter"] if pair.draft is not None else "lookup"}
    shown = visibility(pair, values["engine"], values["drafter"], values["policy"]) | {"drafter": True}
    return GenerationSettings.checked(**{name: value for name, value in values.items() if shown.get(name, True)})


def settings_from_link(pair: ModelPair, values: dict[str, str]) -> tuple[GenerationSettings, SettingsError | None]:
    """The settings that a link or the browser's store names, all as text, and what is wrong with the first bad one.

    What cannot be used is left at its default.
    """
    chosen, wrong = dict(zip(NAMES, DEFAULTS, strict=True)), None
    for name in values.keys() & chosen.keys():
        try:
            settings_from(pair, {**chosen, "engine": "traced", name: values[name]})  # on the engine that can do most
            chosen[name] = values[name]
        except SettingsError as error:
            wrong = SettingsError(f"One of the link's settings cannot be used. {error}")
    try:
        return settings_from(pair, chosen), wrong
    except SettingsError as error:
        return GenerationSettings(), SettingsError(f"The link's settings do not go together. {error}")
