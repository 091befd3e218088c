"""Controls for the settings: one per field, with the field's own title, description and limits."""

from collections.abc import Mapping
from typing import Any, Literal

import gradio as gr

from specdemo.capabilities import (
    DRAFT_KINDS,
    ENGINES,
    EngineName,
    live_parameters,
    local_engines,
    strategies,
    supports,
    used_parameters,
)
from specdemo.errors import SettingsError
from specdemo.models.catalogue import pair_settings
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings, RuntimeSettings, choices
from specdemo.strategies import STRATEGIES, drafters, parameters
from specdemo.ui.parts import notice

FIELDS = GenerationSettings.model_fields
RUNTIME = RuntimeSettings.model_fields
NAMES = tuple(FIELDS)
STRATEGY = ("engine", "drafter", "policy", *sorted(parameters()))
LIVE_CONTROLS = live_parameters()  # a visitor can change them during a run
Control = gr.Checkbox | gr.Dropdown | gr.Radio | gr.Number | gr.Slider | gr.Textbox


def control(name: str, *, typed: bool = False, **options: Any) -> Control:
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
    if (labels := choices(field)) is not None:
        return gr.Radio([(label, value) for value, label in labels.items()], **common)
    if field.annotation not in (int, float):
        return gr.Textbox(**common)
    bounds = {key: getattr(rule, key) for rule in field.metadata for key in ("ge", "gt", "le") if hasattr(rule, key)}
    low, high = bounds.get("ge", bounds.get("gt", 0)), bounds["le"]
    if typed or high - low > 10_000:  # a slider is no use for a seed
        return gr.Number(minimum=low, maximum=high, precision=0, **common)
    step = 1 if field.annotation is int else 0.05
    return gr.Slider(low, high, step=step, buttons=[], **common)


def annotation(name: str) -> Any:
    """Return the type that API clients see: a `Literal` if the setting has a fixed set of values."""
    values = choices(FIELDS[name])
    return FIELDS[name].annotation if values is None else Literal[tuple(values)]


def engines_for(pair: ModelPair) -> list[EngineName]:
    """Return the engines that can load the pair; for a target alone, all local ones."""
    return [*DRAFT_KINDS[pair.draft_kind or "model"].engines]


def available_choices(pair: ModelPair, engine: EngineName, drafter: str) -> dict[str, list[str]]:
    """Return the pair's engines, this engine's drafters, and this drafter's policies."""
    names = dict.fromkeys(strategy.drafter.name for strategy in strategies(engine, pair.draft_kind))
    policies = [strategy.policy.name for strategy in strategies(engine, pair.draft_kind, drafter)]
    return {"engine": engines_for(pair), "drafter": [*names], "policy": policies}


def chosen_strategy(pair: ModelPair, values: Mapping[str, Any], *, valid: bool = False) -> dict[str, str]:
    """Return engine, drafter and policy. A hidden control may have another value than its only choice, which replaces
    it, as the first choice does anything unavailable for a target alone or, if `valid`, for any pair.
    """
    chosen = {name: values[name] for name in ("engine", "drafter", "policy")}
    for name in chosen:
        options = available_choices(pair, chosen["engine"], chosen["drafter"])[name]
        if chosen[name] not in options and (len(options) == 1 or (options and (valid or pair.draft is None))):
            chosen[name] = options[0]
    return chosen


def visibility(pair: ModelPair, engine: EngineName, drafter: str, policy: str) -> dict[str, bool]:
    chosen = strategies(engine, pair.draft_kind, drafter, policy)
    used = {name for strategy in chosen for name in used_parameters(strategy, engine)}
    of_strategies, refused = parameters(), {name for other in ENGINES.values() for name in other.unsupported}
    return {
        **{name: len(options) > 1 for name, options in available_choices(pair, engine, drafter).items()},
        **{name: name in used for name in NAMES if name in of_strategies},
        **{name: supports(engine, name) for name in NAMES if name in refused - of_strategies},
        **dict.fromkeys(("apply_chat_template", "enable_thinking", "system_prompt"), pair.target.chat_template),
    }


def appearance(pair: ModelPair, engine: EngineName, drafter: str, policy: str) -> dict[str, dict[str, Any]]:
    """Return options of the controls that depend on these values: visibility, and for some also their info and CSS
    classes, which hide unavailable choices and mark settings that a run follows live.
    """
    shown = visibility(pair, engine, drafter, policy)
    for strategy in strategies(engine, pair.draft_kind, drafter):  # the browser hides those of policies not chosen
        shown |= dict.fromkeys(used_parameters(strategy, engine), True)
    options: dict[str, dict[str, Any]] = {name: {"visible": visible} for name, visible in shown.items()}
    for name, offered in available_choices(pair, engine, drafter).items():
        options[name]["elem_classes"] = [f"no-{value}" for value in _labels(name) if value not in offered]
    options["policy"]["info"] = None
    chosen = strategies(engine, pair.draft_kind, drafter, policy)
    live = any(strategy.name in ENGINES[engine].live for strategy in chosen)
    for name in LIVE_CONTROLS:
        options[name]["elem_classes"] = ["live"] if live else []
    return options


def show_valid(pair: ModelPair, engine: EngineName, drafter: str, policy: str) -> list[Any]:
    """Return updates of the controls, in the order of `visibility`, and a message if a choice is not available."""
    before = {"engine": engine, "drafter": drafter, "policy": policy}
    chosen = chosen_strategy(pair, before, valid=True)
    updates = appearance(pair, **chosen)
    changed = {name: value for name, value in chosen.items() if value != before[name]}
    if not updates["policy"]["visible"]:  # it keeps its value, for the drafter that shows it
        changed.pop("policy", None)
    for name, value in changed.items():
        updates[name]["value"] = value
    text = " ".join(_replacement(name, before[name], value) for name, value in changed.items() if name != "engine")
    return [*(gr.update(**update) for update in updates.values()), notice(text) if text else gr.skip()]


def _labels(name: str) -> dict[str, str]:
    return choices(FIELDS[name]) or {}


def _replacement(name: str, before: str, after: str) -> str:
    labels = _labels(name)
    return f"{FIELDS[name].title}: {labels[after]}, because {labels[before].lower()} is not available here."


def choices_css() -> str:
    """Hide unavailable engines, drafters and policies by a class of the control, such as `no-auto`. They stay in the
    control, since Gradio refuses to restore a value that is not among its choices. Hide the settings of policies not
    chosen, too: a policy then shows its slider at once. Hide a draft's name in the header while it does not draft.
    """
    rule = '.no-{0} label:has(input[value="{0}"]) {{ display: none; }}'
    rules = [rule.format(value) for name in ("engine", "drafter", "policy") for value in _labels(name)]
    copying = ", ".join(f'[value="{name}"]' for name, drafter in drafters().items() if not drafter.model)
    rules.append(f"body:has(#drafter input:is({copying}):checked) #header i {{ display: none; }}")
    for policy in _labels("policy"):
        used = {name for one in STRATEGIES.values() if one.policy.name == policy for name in one.parameters()}
        unused = ", ".join(f"#{name}" for name in sorted(parameters() - used))
        rules.append(f'#rail:has(#policy input[value="{policy}"]:checked) :is({unused}) {{ display: none; }}')
    return "\n".join(rules)


def start_values(pair: ModelPair) -> dict[str, Any]:
    return pair_settings(pair).model_dump()


def settings_from(pair: ModelPair, values: dict[str, Any]) -> GenerationSettings:
    """A setting without effect keeps the pair's default. SettingsError: a value is out of range."""
    chosen = chosen_strategy(pair, values)
    shown = visibility(pair, **chosen)
    used = {name: value for name, value in values.items() if shown.get(name, True)}
    return pair_settings(pair, **used | chosen)


def settings_from_link(
    pair: ModelPair, values: dict[str, str], start: dict[str, Any]
) -> tuple[GenerationSettings, SettingsError | None]:
    """Return the settings of a link or of the browser's storage, and an error if one is invalid. A missing or invalid
    one takes its value from `start`: the controls' initial values, or the pair's defaults.
    """
    chosen, invalid = dict(start), None
    # the one that supports the most settings
    lenient = min(local_engines(), key=lambda engine: len(ENGINES[engine].unsupported))
    for name in values.keys() & chosen.keys():
        try:
            settings_from(pair, {**chosen, "engine": lenient, name: values[name]})
            chosen[name] = values[name]
        except SettingsError as error:
            invalid = SettingsError(f"One of these settings cannot be used here. {error}")
    try:
        return settings_from(pair, chosen), invalid
    except SettingsError as error:
        return settings_from(pair, start), SettingsError(f"These settings contradict each other. {error}")
