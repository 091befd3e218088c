"""Controls for the settings: one per field, with the field's own title, description and limits."""

from collections.abc import Collection, Iterable
from typing import Any, Literal

import gradio as gr
from pydantic.fields import FieldInfo

from specdemo.capabilities import DRAFT_KINDS, ENGINES, LOCAL, PARTIAL, EngineName, effective, strategies, supports
from specdemo.errors import SettingsError
from specdemo.models.catalogue import default_drafter, initial_settings, pair_settings
from specdemo.racing.race import LiveSettings
from specdemo.racing.recommend import recommended, start_settings
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings, RuntimeSettings, choices
from specdemo.strategies import drafters as all_drafters
from specdemo.strategies import parameters
from specdemo.strategies import policies as all_policies
from specdemo.ui.parts import notice

HIDDEN_CHOICE = '.no-{0} label:has(input[value="{0}"]) {{ display: none; }}'  # a label holds an input
FIELDS = GenerationSettings.model_fields
RUNTIME = RuntimeSettings.model_fields
NAMES = tuple(FIELDS)
STRATEGY = {"engine", "drafter", "policy", *parameters()}


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
    if (able := choices(field)) is not None:
        return gr.Radio([(label, value) for value, label in able.items()], **common)
    if field.annotation not in (int, float):
        return gr.Textbox(**common)
    low, high = _limits(field)
    if typed or high - low > 10_000:  # a slider is no use for a seed
        return gr.Number(minimum=low, maximum=high, precision=0, **common)
    step = 1 if field.annotation is int else 0.05
    return gr.Slider(low, high, step=step, buttons=[], **common)


def annotation(name: str) -> Any:
    """A `Literal` for API clients if the setting has a fixed set of values."""
    able = choices(FIELDS[name])
    return FIELDS[name].annotation if able is None else Literal[tuple(able)]


def _limits(field: FieldInfo) -> tuple[float, float]:
    bounds = {key: getattr(rule, key) for rule in field.metadata for key in ("ge", "gt", "le") if hasattr(rule, key)}
    return bounds.get("ge", bounds.get("gt", 0)), bounds["le"]


def visibility(pair: ModelPair, engine: EngineName, drafter: str, policy: str) -> dict[str, bool]:
    """Say of each control whether it has an effect."""
    able = [*strategies(engine, pair.draft_kind, drafter)]
    allowed = {strategy.policy.name for strategy in able}
    chosen = policy if policy in allowed else first_policy(allowed)  # a hidden control keeps its value
    acting = {name for strategy in able if strategy.policy.name == chosen for name in effective(strategy, engine)}
    return {
        "engine": len(engines_for(pair)) > 1,
        "drafter": len(drafters(pair, engine)) > 1,
        "policy": len(allowed) > 1,
        **{name: name in acting for name in NAMES if name in parameters()},
        **{name: supports(engine, name) for name in NAMES if name in PARTIAL and name not in parameters()},
        "apply_chat_template": pair.target.chat_template,
        "enable_thinking": pair.target.chat_template,
        "system_prompt": pair.target.chat_template,
    }


def appearance(pair: ModelPair, engine: EngineName, drafter: str, policy: str) -> dict[str, dict[str, Any]]:
    """Options of the controls that depend on these: visibility, and perhaps info and CSS classes, which hide
    unavailable choices and mark what a run follows live.
    """
    options: dict[str, dict[str, Any]] = {
        name: {"visible": shown} for name, shown in visibility(pair, engine, drafter, policy).items()
    }
    able = [*strategies(engine, pair.draft_kind, drafter, policy)]
    info = next((strategy.explanation() for strategy in able), FIELDS["policy"].description)
    options["drafter"] |= {"elem_classes": _no(all_drafters(), drafters(pair, engine))}
    options["policy"] |= {"elem_classes": _no(all_policies(), policies(pair, engine, drafter)), "info": info}
    options["num_assistant_tokens"] |= {"info": lookahead_info(pair, engine)}
    live = any(strategy.name in ENGINES[engine].live for strategy in able)
    for name in LIVE_CONTROLS:
        options[name] |= {"elem_classes": ["moves"] if live else []}
    return options


def lookahead_info(pair: ModelPair, engine: EngineName) -> str | None:
    """Name the lookahead that suits this machine; without step costs, return the setting's description."""
    best = recommended(pair, engine)
    if best is None:
        return FIELDS["num_assistant_tokens"].description
    return f"{best.lookahead} suits this machine" if best.lookahead else "plain decoding is faster here"


def show_valid(pair: ModelPair, engine: EngineName, drafter: str, policy: str) -> list[Any]:
    """Return updates of the controls, ordered as by `visibility`, and a message on choices that are not available."""
    values: dict[str, Any] = {}
    if len(engines_for(pair)) == 1:
        values["engine"] = engine = engines_for(pair)[0]
    chosen = {"drafter": drafter, "policy": policy}
    if drafter not in drafters(pair, engine):
        values["drafter"] = drafter = default_drafter(pair)
    allowed = policies(pair, engine, drafter)
    if policy not in allowed and len(allowed) > 1:  # a hidden control keeps its value, for the drafter that shows it
        values["policy"] = policy = first_policy(allowed)
    updates = appearance(pair, engine, drafter, policy)
    for name, value in values.items():
        updates[name]["value"] = value
    replaced = " ".join(_replaced(name, chosen[name], values[name]) for name in chosen.keys() & values.keys())
    return [*(gr.update(**update) for update in updates.values()), notice(replaced) if replaced else gr.skip()]


def _replaced(name: str, was: str, now: str) -> str:
    field, labels = FIELDS[name], choices(FIELDS[name]) or {}
    return f"{field.title}: {labels[now]}, because {labels[was].lower()} is not available here."


LIVE_CONTROLS = LiveSettings._fields  # what visitors can change during a run


def engines_for(pair: ModelPair) -> tuple[EngineName, ...]:
    """Return the engines that can load the pair; for a target alone, all local ones."""
    return DRAFT_KINDS[pair.draft_kind or "model"].engines


def drafters(pair: ModelPair, engine: EngineName) -> set[str]:
    return {strategy.drafter.name for strategy in strategies(engine, pair.draft_kind)}


def policies(pair: ModelPair, engine: EngineName, drafter: str) -> set[str]:
    return {strategy.policy.name for strategy in strategies(engine, pair.draft_kind, drafter)}


def choices_css() -> str:
    """Hide unavailable drafters and policies by a class of the control, such as `no-auto`. They stay in the control,
    since Gradio refuses to restore a value that is not among its choices.
    """
    values = (*all_drafters(), *all_policies())
    return "\n".join(HIDDEN_CHOICE.format(value) for value in values)


def _no(all_: Iterable[str], able: Collection[str]) -> list[str]:
    return [f"no-{value}" for value in all_ if value not in able]


def start_values(pair: ModelPair) -> dict[str, Any]:
    return start_settings(pair).model_dump()


def default_values(pair: ModelPair) -> dict[str, Any]:
    """Links list what differs from these."""
    return pair_settings(pair).model_dump()


def first_policy(able: Collection[str]) -> str:
    return "constant" if "constant" in able or not able else next(iter(able))


def settings_from(pair: ModelPair, values: dict[str, Any]) -> GenerationSettings:
    """A setting without effect here keeps the pair's default. SettingsError: a value is out of range."""
    engines = engines_for(pair)
    engine = values["engine"] if values["engine"] in engines or len(engines) > 1 else engines[0]
    drafter = values["drafter"]
    able = drafters(pair, engine)
    if drafter not in able and (pair.draft is None or len(able) == 1):  # a hidden control keeps its value
        drafter = default_drafter(pair)
    values = values | {"engine": engine, "drafter": drafter}
    if len(allowed := policies(pair, engine, drafter)) == 1:  # a hidden control keeps its value
        values["policy"] = first_policy(allowed)
    shown = visibility(pair, values["engine"], values["drafter"], values["policy"]) | {
        "policy": True,
        "engine": True,
        "drafter": True,
    }
    return initial_settings(pair, **{name: value for name, value in values.items() if shown.get(name, True)})


def settings_from_link(
    pair: ModelPair, values: dict[str, str], start: dict[str, Any]
) -> tuple[GenerationSettings, SettingsError | None]:
    """Settings in a link or the browser's storage, and an error if one is invalid; one that is missing or invalid
    takes its value from `start`: the controls' initial values, or the pair's defaults.
    """
    chosen, wrong = dict(start), None
    ablest = min(LOCAL, key=lambda engine: len(ENGINES[engine].lacks))  # it supports the most settings
    for name in values.keys() & chosen.keys():
        try:
            settings_from(pair, {**chosen, "engine": ablest, name: values[name]})
            chosen[name] = values[name]
        except SettingsError as error:
            wrong = SettingsError(f"One of the link's settings cannot be used. {error}")
    try:
        return settings_from(pair, chosen), wrong
    except SettingsError as error:
        return settings_from(pair, start), SettingsError(f"The link's settings contradict each other. {error}")
