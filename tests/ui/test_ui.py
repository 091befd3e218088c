from contextlib import ExitStack
from inspect import signature
from typing import Any, cast
from unittest import mock

import gradio as gr
import pytest

from specdemo.cli.commands import build_parser
from specdemo.cli.options import chosen_pair, given_settings
from specdemo.errors import SettingsError
from specdemo.models.catalogue import Defaults, bundled_pair, bundled_prompts, find, pair_settings
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import Suffix
from specdemo.ui.compare import CompareCallbacks
from specdemo.ui.controls import (
    NAMES,
    appearance,
    control,
    settings_from,
    settings_from_link,
    show_valid,
    start_values,
    visibility,
)
from specdemo.ui.page import prompt_for, restore
from specdemo.ui.registry import Registry, values_of
from specdemo.ui.session import Sessions, Visitors

PAIR = bundled_pair()
REGISTRY, START = Registry(PAIR, Visitors()), start_values(PAIR)


@pytest.mark.parametrize("name", NAMES)
def test_controls_have_the_limits_of_the_settings(name: str) -> None:
    made = control(name)
    field = GenerationSettings.model_fields[name]
    assert (made.label, made.info, made.value) == (field.title, field.description, field.default)
    if isinstance(made, gr.Slider):
        GenerationSettings.checked(engine="traced", **{name: made.maximum})
        with pytest.raises(SettingsError):
            GenerationSettings.checked(engine="traced", **{name: made.maximum + made.step})


def test_settings_that_genai_lacks_are_not_offered() -> None:
    assert not visibility(PAIR, "genai", "model", "constant")["kv_cache"]
    assert visibility(PAIR, "traced", "model", "constant")["kv_cache"]
    _, _, policy, *_ = show_valid(PAIR, "genai", "model", "auto")
    assert (policy["value"], policy["elem_classes"]) == ("constant", ["no-auto", "no-server"])
    engine, _, policy, *_, message = show_valid(PAIR, "server", "suffix", "constant")
    assert (engine["value"], engine["elem_classes"], "Prompt lookup" in message) == ("genai", ["no-server"], False)
    values = START | {"kv_cache": "off"}
    assert settings_from(PAIR, values) == GenerationSettings()


def test_a_hidden_policy_keeps_its_value_and_does_not_hide_what_is_live() -> None:
    names = appearance(PAIR, "traced", "suffix", "confidence")
    updates = dict(zip(names, show_valid(PAIR, "traced", "suffix", "constant"), strict=False))
    assert updates["assistant_confidence_threshold"]["elem_classes"] == ["live"]
    assert (updates["policy"]["visible"], "value" in updates["policy"]) == (False, False)
    assert settings_from(PAIR, START | {"engine": "traced", "drafter": "suffix"}).strategy == Suffix(0.4, 20)


def test_reading_the_controls_opens_no_file() -> None:
    settings_from(PAIR, START)  # looks up the pair, once
    with ExitStack() as patched:
        for name in ("os.open", "io.open", "builtins.open", "os.listdir", "os.scandir"):
            patched.enter_context(mock.patch(name, side_effect=AssertionError(name)))
        assert settings_from(PAIR, START | {"num_assistant_tokens": 7}).num_assistant_tokens == 7
        assert settings_from_link(PAIR, {"top_k": "7"}, START)[0].top_k == 7


def test_a_link_carries_settings() -> None:
    assert settings_from_link(PAIR, {"top_k": "7", "unknown": "x"}, START) == (GenerationSettings(top_k=7), None)
    settings, wrong = settings_from_link(PAIR, {"top_k": "many", "seed": "3"}, START)
    assert settings == GenerationSettings(seed=3)
    assert "One of these settings cannot be used here. Top-k" in str(wrong)
    for value, advice in (("auto", "choose the traced engine"), ("server", "choose the genai engine")):
        settings, wrong = settings_from_link(PAIR, {"policy" if value == "auto" else "engine": value}, START)
        assert settings == GenerationSettings()
        assert advice in str(wrong)


def restored(saved: str, registry: Registry = REGISTRY) -> dict[str, Any]:
    return restore(registry, saved, start_values(registry.default))


def test_an_invalid_stored_value_is_a_message_and_an_empty_store_changes_nothing() -> None:
    changed = restored('{"prompt": "Say", "top_k": "7", "seed": "none"}')
    assert "Seed (seed) should be a valid integer" in changed.pop("message")
    assert changed == {"prompt": "Say", "top_k": 7}
    assert restored("{}") == {}


def test_stored_values_are_restored() -> None:
    changed = restored('{"prompt": "Say", "top_k": "7", "draft": "", "inference_num_threads": "2"}')
    pair, header = changed.pop("pair"), changed.pop("header")
    assert changed == {"prompt": "Say", "top_k": 7, "drafter": "lookup", **values_of(pair)}
    assert (pair.target, pair.draft, pair.runtime.inference_num_threads) == (PAIR.target, None, 2)
    assert ("no draft" in header, changed["draft"]) == (True, "")


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        ('{"device": "TPU"}', "no device &#39;TPU&#39;; choose one of"),
        ('{"inference_num_threads": "-1"}', "Threads (inference_num_threads) should be greater"),
    ],
)
def test_an_unusable_pair_is_a_message(saved: str, reason: str) -> None:
    (name, message), *others = restored(saved).items()
    assert (name, others) == ("message", [])
    assert "The link&#39;s pair cannot be used." in message
    assert reason in message


def test_visitors_may_choose_the_device_that_the_page_was_started_with() -> None:
    runtime = PAIR.runtime.model_copy(update={"device": "MULTI:CPU(2)"})
    registry = Registry(PAIR.model_copy(update={"runtime": runtime}), Visitors())
    assert next(iter(registry.devices())) == "MULTI:CPU(2)"
    changed = restored('{"inference_num_threads": "2", "draft_device": "CPU"}', registry)
    assert ("message" in changed, changed["pair"].runtime.device) == (False, "MULTI:CPU(2)")


def test_a_new_pair_replaces_an_example_of_the_other_kind_but_no_typed_prompt() -> None:
    story, chat = (bundled_prompts(kind)[0] for kind in ("base", "chat"))
    assert [prompt_for(PAIR, prompt) for prompt in (chat, story, "Mine")] == [story, gr.skip(), gr.skip()]


CHOSEN = {"repetition_penalty": 1.3, "num_assistant_tokens": 7}


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> ModelPair:
    """Return a pair with its own initial settings in the catalogue."""
    entry = find("story-pair")
    entry = entry.model_copy(update={"defaults": Defaults(generation=CHOSEN, runtime=entry.defaults.runtime)})
    monkeypatch.setattr("specdemo.models.catalogue.catalogue", lambda: (entry,))
    return bundled_pair()


def test_page_links_terminal_and_endpoint_start_with_a_pairs_own_settings(pair: ModelPair) -> None:
    start = start_values(pair)
    assert start == GenerationSettings().model_dump() | CHOSEN
    assert settings_from(pair, start | {"repetition_penalty": 1.0}).repetition_penalty == 1
    assert settings_from_link(pair, {}, start) == (GenerationSettings(**CHOSEN), None)
    settings, wrong = settings_from_link(pair, {"repetition_penalty": "1.0", "seed": "none"}, start)
    assert settings == GenerationSettings(**CHOSEN | {"repetition_penalty": 1.0})
    assert "Seed" in str(wrong)
    for options, changed in (((), {}), (("--repetition-penalty", "1"), {"repetition_penalty": 1.0})):
        parsed = build_parser().parse_args(["compare", "Say", *options])
        given = given_settings(parsed, GenerationSettings)
        assert pair_settings(chosen_pair(parsed), **given) == GenerationSettings(**CHOSEN | changed)
    endpoint = signature(CompareCallbacks(cast(Sessions, None)).api(pair)).parameters
    assert {name: endpoint[name].default for name in CHOSEN} == CHOSEN
