"""The Anatomy tab: the last run round by round, and saved ones."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from specdemo.engines.scripted import ScriptedEngine
from specdemo.exports import schema
from specdemo.race import race
from specdemo.records import Comparison, Outcome
from specdemo.settings import GenerationSettings
from specdemo.trials import repeats
from tests.support.browser import Visit, downloaded, rests, run, skip
from tests.support.proposals import proposals

pytestmark = pytest.mark.browser


def test_the_anatomy_of_the_last_run_and_of_a_saved_one(visit: Visit, tmp_path: Path) -> None:
    page = visit("/#num_assistant_tokens=3&max_new_tokens=48")
    page.click("button[role=tab] >> text=Anatomy")
    expect(page.locator(".anatomy .empty")).to_be_visible()
    page.click("button[role=tab] >> text=Compare")
    run(page)
    comparison = downloaded(page)
    page.click(".rounds")
    expect(page.locator(".slow-motion .saying")).to_contain_text("The draft guesses 3 tokens")
    page.click(".slow-motion .all")
    steps = page.locator(".anatomy .step")
    expect(steps).to_have_count(len(comparison.speculative.rounds))
    for outcome in Outcome:
        drafts = [d for step in comparison.speculative.rounds for d in proposals(step) if d.verdict is outcome]
        expect(page.locator(f".anatomy .chip.{outcome}")).to_have_count(len(drafts))
    page.focus(".anatomy .steps")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    expect(page.locator(".anatomy .place")).to_have_text(f"round 4 of {len(comparison.speculative.rounds)}")
    page.keyboard.press("End")
    assert page.locator(".so-far").text_content() == comparison.prompt + comparison.speculative.text
    page.keyboard.press("Home")
    page.click(".anatomy .forward")
    expect(steps.nth(1)).to_have_class("step current")
    assert page.locator(".anatomy tbody tr").count() == 3
    widths = page.evaluate("[...document.querySelectorAll('.anatomy .main-svg')].map(e => e.clientWidth)")
    assert min(widths) > 300
    assert page.evaluate("document.querySelector('.chart.timeline').data.length") == 2
    timeline = page.locator(".chart.timeline")
    steps.nth(2).hover()
    expect(steps.nth(2)).to_have_class("step ahead lit")
    assert len(timeline.evaluate("chart => chart.layout.shapes")) == 2  # the current round and this one
    box = timeline.locator(".bars path").nth(5).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(steps.nth(5)).to_have_class("step ahead lit")
    whole = timeline.evaluate("chart => chart.layout.xaxis.range[1] - chart.layout.xaxis.range[0]")
    page.click("[data-zoom='0.5']")
    assert timeline.evaluate("chart => chart.layout.xaxis.range[1] - chart.layout.xaxis.range[0]") < 0.6 * whole
    page.focus(".anatomy .steps")
    page.keyboard.press("End")
    start, end = timeline.evaluate("chart => chart.layout.xaxis.range")
    assert start < 1000 * sum(step.seconds for step in comparison.speculative.rounds) < end
    page.click("[data-zoom='0']")
    assert timeline.evaluate("chart => chart.layout.xaxis.range[0]") <= 0
    assert_opened_on_both_tabs(page, tmp_path)


def assert_opened_on_both_tabs(page: Page, folder: Path) -> None:
    """A saved run, and nothing else."""
    engine = ScriptedEngine(wrong=(4,))
    *_, raced = race(engine, "Say", GenerationSettings())
    assert isinstance(raced, Comparison)
    *_, firmer = repeats(engine, raced, number=1)
    saved, again, wrong = (folder / f"{name}.json" for name in ("run", "again", "wrong"))
    saved.write_text(json.dumps(schema.to_json(raced)))
    again.write_text(json.dumps(schema.to_json(firmer)))
    comparison = schema.from_json(schema.to_json(firmer))
    wrong.write_text("{}")
    page.set_input_files("#open input, input[type=file]", saved)
    rounds = len(comparison.speculative.rounds)
    expect(page.locator(".anatomy .step")).to_have_count(rounds)
    page.click(".anatomy .forward")
    chart = "JSON.stringify(document.querySelector('.anatomy .chart.position').data)"
    before = page.evaluate(chart)
    page.set_input_files("#open input, input[type=file]", again)  # as when a repeat ends while somebody reads
    page.wait_for_function(f"before => {chart} !== before", arg=before)
    rests(page)
    expect(page.locator(".anatomy .place")).to_have_text(f"round 2 of {rounds}")
    page.set_input_files("#open input, input[type=file]", wrong)
    expect(page.locator("[role=alert]")).to_contain_text("not a comparison of schema 2")
    expect(page.locator(".anatomy .step")).to_have_count(len(comparison.speculative.rounds))
    page.click("button[role=tab] >> text=Compare")
    skip(page)
    assert downloaded(page) == comparison
