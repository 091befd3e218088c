"""A pair's initial settings are the catalogue's, on the page, in the terminal and at the endpoint."""

from inspect import signature
from typing import cast

import gradio as gr
import pytest

from specdemo.cli.commands import build_parser
from specdemo.cli.options import chosen_pair, raced_settings
from specdemo.models.catalogue import Defaults, bundled_pair, find
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.ui.compare import CompareCallbacks
from specdemo.ui.controls import NAMES, settings_from, settings_from_link, start_values
from specdemo.ui.page import restore
from specdemo.ui.registry import Registry
from specdemo.ui.session import Sessions, Visitors

BEGUN = {"repetition_penalty": 1.3, "num_assistant_tokens": 7}


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> ModelPair:
    entry = find("story-pair")
    entry = entry.model_copy(update={"begin": Defaults(generation=BEGUN, runtime=entry.begin.runtime)})
    monkeypatch.setattr("specdemo.models.catalogue.catalogue", lambda: (entry,))
    return bundled_pair()


def test_the_page_begins_with_them(pair: ModelPair) -> None:
    start = start_values(pair)
    assert start == GenerationSettings().model_dump() | BEGUN
    assert settings_from(pair, start) == GenerationSettings(**BEGUN)
    assert settings_from(pair, start | {"repetition_penalty": 1.0}).repetition_penalty == 1
    untouched = restore(Registry(pair, Visitors()), "{}", start_values(pair)).controls
    assert [name for name, value in zip(NAMES, untouched, strict=True) if value != gr.skip()] == [
        "num_assistant_tokens"
    ]


def test_a_link_names_what_differs_from_them(pair: ModelPair) -> None:
    start = start_values(pair)
    assert settings_from_link(pair, {}, start) == (GenerationSettings(**BEGUN), None)
    settings, wrong = settings_from_link(pair, {"repetition_penalty": "1.0", "seed": "none"}, start)
    assert settings == GenerationSettings(**BEGUN | {"repetition_penalty": 1.0})
    assert "Seed" in str(wrong)


def test_so_do_the_terminal_and_the_endpoint(pair: ModelPair) -> None:
    def settings(*options: str) -> GenerationSettings:
        parsed = build_parser().parse_args(["compare", "Say", *options])
        return raced_settings(parsed, chosen_pair(parsed))

    assert settings() == GenerationSettings(**BEGUN)
    assert settings("--repetition-penalty", "1") == GenerationSettings(**BEGUN | {"repetition_penalty": 1.0})
    endpoint = signature(CompareCallbacks(cast(Sessions, None)).api(pair)).parameters
    assert {name: endpoint[name].default for name in BEGUN} == BEGUN
