"""Parts of the page, without a browser."""

import json
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo import metrics
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import SettingsError
from specdemo.metrics import answer
from specdemo.models.pairs import bundled_pair
from specdemo.presentation import schema
from specdemo.presentation.charts import acceptance_figure, clock_figure
from specdemo.presentation.feed import Feed
from specdemo.presentation.html import figures_html, round_html
from specdemo.race import race
from specdemo.records import Comparison, Round, Side, Slice, Token
from specdemo.settings import GenerationSettings
from specdemo.summary import summarise
from specdemo.ui.controls import NAMES, control, settings_from, settings_from_link, start_values, visibility
from specdemo.ui.page import restore
from specdemo.ui.registry import PAIR_NAMES, Registry
from specdemo.ui.session import Visitors
from specdemo.ui.tabs.compare import api_description, show_valid
from tests.support.random_records import comparisons, rounds

PAIR = bundled_pair()
SHELF, START = Registry(PAIR, Visitors()), start_values(PAIR)
EVIL = "<img src=x onerror=alert(1)>\"'&"


def events(feed: Feed) -> list[dict[str, Any]]:
    return [json.loads(line) for line in feed.everything.splitlines()]


@pytest.fixture
def feed() -> Feed:
    feed = Feed("Say", GenerationSettings())
    for item in race(ScriptedEngine(wrong=(4,)), "Say", GenerationSettings()):
        if isinstance(item, Slice | Comparison):
            feed.add(item)
    return feed


def test_events_are_numbered_and_one_update_may_be_missed(feed: Feed) -> None:
    feed.fail("over")
    assert [event["at"] for event in events(feed)] == list(range(len(events(feed))))
    assert len({event["run"] for event in events(feed)}) == 1
    assert events(feed)[-1]["text"] == "over"
    whole = feed.everything
    assert feed.news() == whole
    feed.fail("again")
    assert feed.news() == feed.everything  # also what the update before it held
    feed.fail("and again")
    assert [json.loads(line)["text"] for line in feed.news().splitlines()] == ["again", "and again"]


def test_the_feed_carries_each_sides_clock_and_figures(feed: Feed) -> None:
    start, *laps, end = events(feed)
    comparison = schema.from_json(json.loads(end["record"]))
    assert (start["kind"], start["prompt"], start["max_new_tokens"]) == ("start", "Say", 128)
    for side in ("plain", "speculative"):
        sent = [step for lap in laps if lap["side"] == side for step in lap["rounds"]]
        run = comparison.side(side)
        assert sent[0]["ms"] == 0
        assert sent[0]["rate"] is None
        assert sent[-1]["ms"] == pytest.approx(metrics.decode_seconds(run) * 1000)
        assert sent[-1]["tokens"] == len(run.tokens)
        assert sent[-1]["rate"] == pytest.approx(metrics.tokens_per_second(run))
        assert sent[-1]["alpha"] == metrics.acceptance_rate(run)
        assert [step["ms"] for step in sent] == sorted(step["ms"] for step in sent)
    assert end["identical"] is True
    assert end["headline"] == "Too noisy to call"  # nine tokens show no spread


def test_a_feed_never_holds_markup_of_a_user() -> None:
    feed = Feed("<script>", GenerationSettings())
    assert "<" not in feed.everything
    assert events(feed)[0]["prompt"] == "<script>"


@given(rounds(), st.sampled_from(["plain", "speculative"]), st.integers(0, 3))
def test_any_round_becomes_html_that_shows_its_tokens(step: Round, side: Side, number: int) -> None:
    html = round_html(step, side=side, number=number, first=5, source="replayed")
    assert html.count("data-index=") == len(step.committed)
    assert html.count('<span class="round"') == 1


def test_text_is_escaped_in_text_and_attributes() -> None:
    step = Round(committed=(Token(id=1, text=EVIL),), seconds=0.1)
    html = round_html(step, side="plain", number=1, first=0, source="measured")
    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;&#34;&#39;&amp;" in html


def test_kinds_of_tokens_are_told_apart() -> None:
    *_, comparison = race(ScriptedEngine(wrong=(4,)), "Say", GenerationSettings(num_assistant_tokens=6))
    assert isinstance(comparison, Comparison)
    step = comparison.speculative.rounds[0]
    html = round_html(step, side="speculative", number=1, first=1, source="measured")
    kinds = [part.split('"')[0] for part in html.split('class="token ')[1:]]
    assert kinds == ["accepted"] * 3 + ["rejected"] + ["discarded"] * 2 + ["own"]
    assert "correction token" in html
    assert f"round 1, {step.seconds * 1000:.2f} ms: 6 proposed, 3 accepted, 4 committed" in html


def test_thinking_is_told_apart_from_the_answer() -> None:
    feed, engine = (
        Feed("Say", GenerationSettings()),
        ScriptedEngine(words=(" <think>", " Hm", " </think>", " Yes", ".")),
    )
    for item in race(engine, "Say", GenerationSettings(num_assistant_tokens=1)):
        if isinstance(item, Slice):
            feed.add(item)
    plain = [step for event in events(feed) if event.get("side") == "plain" for step in event["rounds"]]
    assert [step["thinking"] for step in plain] == [True, True, True, False, False]
    speculative = [step for event in events(feed) if event.get("side") == "speculative" for step in event["rounds"]]
    assert [(step["thinking"], step["tokens"]) for step in speculative] == [(True, 1), (True, 3), (False, 5)]
    assert answer(" <think> Hm </think> Yes.") == "Yes."
    assert answer(" Yes.") == "Yes."
    assert answer("<think> Hm") == ""


@given(comparisons)
def test_any_comparison_has_figures(comparison: Comparison) -> None:
    html = figures_html(comparison, summarise(comparison))
    assert metrics.FORMULAS["speedup"] in html
    assert "nan" not in html


def test_charts_have_the_traces_the_page_extends() -> None:
    for figure, names in (
        (clock_figure(), ["plain", "speculative"]),
        (acceptance_figure(), ["accepted", "rejected or discarded", "running α", "other α"]),
    ):
        assert [trace["name"] for trace in json.loads(figure)["data"]] == names


@pytest.mark.parametrize("name", NAMES)
def test_controls_have_the_limits_of_the_settings(name: str) -> None:
    made = control(name)
    field = GenerationSettings.model_fields[name]
    assert (made.label, made.info, made.value) == (field.title, field.description, field.default)
    if isinstance(made, gr.Slider):
        able = {"num_assistant_tokens": 16} if name == "tree_depth" else {"engine": "traced"}
        GenerationSettings.checked(**{**able, name: made.maximum})
        with pytest.raises(SettingsError):
            GenerationSettings.checked(engine="traced", **{name: made.maximum + made.step})


def test_the_two_lookahead_settings_exclude_each_other() -> None:
    strategies = [
        ("model", "constant"),
        ("model", "confidence"),
        ("lookup", "constant"),
    ]
    for drafter, policy in strategies:
        shown = visibility(PAIR, "genai", drafter, policy)
        assert shown["num_assistant_tokens"] != shown["assistant_confidence_threshold"]
        assert shown["max_ngram_size"] == (drafter == "lookup")


def test_a_hidden_policy_does_not_spoil_prompt_lookup() -> None:
    values = START | {"drafter": "lookup", "policy": "confidence"}
    assert settings_from(PAIR, values).policy == "constant"


def test_what_genai_cannot_do_is_not_offered_for_it() -> None:
    assert not visibility(PAIR, "genai", "model", "constant")["kv_cache"]
    assert visibility(PAIR, "traced", "model", "constant")["kv_cache"]
    _, _, policy, *_ = show_valid(PAIR, "genai", "model", "heuristic")
    assert (policy["value"], policy["elem_classes"]) == ("constant", ["no-heuristic", "no-auto", "no-server"])
    values = START | {"kv_cache": "off", "alternatives": 3}
    assert settings_from(PAIR, values) == GenerationSettings()


def test_a_link_with_a_setting_that_is_hidden_is_fine() -> None:
    settings, wrong = settings_from_link(PAIR, {"drafter": "lookup", "policy": "confidence"}, START)
    assert (settings.policy, wrong) == ("constant", None)


def test_settings_travel_in_a_link() -> None:
    assert settings_from_link(PAIR, {"top_k": "7", "unknown": "x"}, START) == (GenerationSettings(top_k=7), None)
    settings, wrong = settings_from_link(PAIR, {"top_k": "many", "seed": "3"}, START)
    assert settings == GenerationSettings(seed=3)
    assert "One of the link's settings cannot be used. Top-k" in str(wrong)
    settings, wrong = settings_from_link(PAIR, {"policy": "heuristic"}, START)
    assert settings == GenerationSettings()
    assert "choose the traced engine" in str(wrong)


def test_a_stored_value_that_is_not_one_becomes_a_message() -> None:
    start = restore(SHELF, '{"prompt": "Say", "top_k": "7", "seed": "none"}')
    assert "Seed (seed) should be a valid integer" in start.message
    assert start.prompt == "Say"
    assert dict(zip(NAMES, start.controls, strict=True)) == dict.fromkeys(NAMES, gr.skip()) | {"top_k": 7}


@pytest.mark.parametrize("saved", ["", "{}"])
def test_nothing_stored_changes_nothing(saved: str) -> None:
    start = restore(SHELF, saved)
    assert [*start.controls, *start.pair_controls] == [gr.skip()] * (len(NAMES) + len(PAIR_NAMES))
    assert (start.prompt, start.message, start.pair, start.header) == (gr.skip(),) * 4


def test_stored_values_are_restored() -> None:
    start = restore(SHELF, '{"prompt": "Say", "top_k": "7", "draft": "", "cache_size": "2"}')
    assert (start.prompt, start.message) == ("Say", gr.skip())
    assert dict(zip(NAMES, start.controls, strict=True)) == dict.fromkeys(NAMES, gr.skip()) | {
        "top_k": 7,
        "drafter": "lookup",
    }
    assert (start.pair.target, start.pair.draft, start.pair.runtime.cache_size) == (PAIR.target, None, 2)
    assert "no draft" in start.header
    assert dict(zip(PAIR_NAMES, start.pair_controls, strict=True))["draft"] == ""


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        (
            '{"target": "../../etc"}',
            "Unknown model &#39;../../etc&#39;; choose one",
        ),
        ('{"device": "TPU"}', "no device &#39;TPU&#39;; choose one of"),
        ('{"device": "MULTI:CPU(5)"}', "offers no device &#39;MULTI:CPU(5)&#39;; choose one of CPU"),
        ('{"draft_device": "AUTO:CPU"}', "offers no device &#39;AUTO:CPU&#39;"),
        ('{"cache_size": "0"}', "Cache size (cache_size) should be greater"),
    ],
)
def test_a_pair_that_cannot_be_used_becomes_a_message(saved: str, reason: str) -> None:
    start = restore(SHELF, saved)
    assert "The link&#39;s pair cannot be used." in start.message
    assert reason in start.message
    assert start.pair == gr.skip()


def test_visitors_may_choose_the_device_that_the_page_was_started_with() -> None:
    runtime = PAIR.runtime.model_copy(update={"device": "MULTI:CPU(2)"})
    registry = Registry(PAIR.model_copy(update={"runtime": runtime}), Visitors())
    assert next(iter(registry.devices())) == "MULTI:CPU(2)"
    start = restore(registry, '{"cache_size": "2", "draft_device": "CPU"}')
    assert (start.message, start.pair.runtime.device) == (gr.skip(), "MULTI:CPU(2)")


def test_a_card_names_a_directory_of_ones_own_and_does_not_tell_which(tmp_path: Path) -> None:
    command = "--weight-format int8 --models-dir DIR"
    assert command in Registry(PAIR, Visitors(), directory=tmp_path).cards()
    assert command not in SHELF.cards()


def test_the_endpoint_explains_every_parameter() -> None:
    for name, field in GenerationSettings.model_fields.items():
        assert f"{name}: {field.description}" in api_description()
