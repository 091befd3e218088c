"""The first screen of the Compare tab: everything that matters while a run plays is in view, at any size."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from specdemo.exports import schema
from tests.support.browser import (
    BRIEF,
    TABS,
    Visit,
    downloaded,
    finalized,
    finish,
    is_no_wider_than,
    open_tab,
    repeated,
    run,
    set_slider,
    skip,
    start,
)
from tests.support.proposals import proposals

pytestmark = pytest.mark.browser
CHAT = "/#target=chat/target&draft=chat/draft&max_new_tokens=64"
LINES = 8
SIZES = {(1440, 900): "both", (1024, 768): "both", (390, 844): "speculative"}

VISIBLE = """selectors => selectors.filter(selector => {
  const shown = element => {
    const box = element.getBoundingClientRect();
    const inside = box.width && box.top >= 0 && box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight;
    const at = (x, y) => element.contains(document.elementFromPoint(x, y));
    return inside && at(box.left + box.width / 2, box.top + 4) && at(box.left + box.width / 2, box.bottom - 4);
  };
  return ![...document.querySelectorAll(selector)].some(shown);
})"""
"""The selectors without an element that is wholly in view and uncovered."""


UNCOVERED = """text => {
  text.scrollIntoView({ block: "start" });
  const { top, left, width } = text.getBoundingClientRect();
  const line = parseFloat(getComputedStyle(text).lineHeight);
  let count = 0;
  while (text.contains(document.elementFromPoint(left + width / 2, top + (count + 0.5) * line))) count += 1;
  return count;
}"""
"""Lines of a pane that are uncovered when scrolled to."""

CUT = """() => [...document.querySelectorAll('main *')].filter(e => {
    const box = e.getBoundingClientRect();
    return box.width && (box.left < 0 || box.right > innerWidth) && !e.closest('.text, svg, .visually-hidden');
}).map(e => e.outerHTML.slice(0, 80))"""
"""Elements that the window cuts off."""

EDGES = """() => ['#header', '.tabitem:not([style*="display: none"])'].map(selector => {
    const { left, width } = document.querySelector(selector).getBoundingClientRect();
    return `${left} ${width}`;
}).join()"""
"""Left edges and widths of the header and the open tab."""


def lines(page: Page, side: str) -> float:
    """Lines of text that a pane has room for."""
    size = "e => e.clientHeight / parseFloat(getComputedStyle(e).lineHeight)"
    return float(page.locator(f".pane.{side} .text").evaluate(size))


def test_everything_is_in_view_while_a_run_plays(visit: Visit) -> None:
    page = visit(CHAT)
    run(page)
    expect(page.locator("#anew")).to_be_visible()
    page.wait_for_function("sessionStorage.getItem('specdemo-chat') !== null")
    repeated(page)
    page.reload()  # the browser keeps the chat and the last run
    page.wait_for_selector(".race[data-state=done]")
    expect(page.locator("#anew")).to_be_visible()
    page.select_option(".speed", "100")
    page.fill("#prompt textarea", "And then?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".race[data-state=playing]")
    page.wait_for_function("document.querySelector('.pane.plain .text [data-index=\"3\"]')")
    page.click(".toggle")  # so that it does not end before everything has been looked at
    expect(page.locator(".pane.plain .turns li")).to_have_count(1)
    for scheme in ("light", "dark"):
        page.evaluate("dark => document.body.classList.toggle('dark', dark)", scheme == "dark")
        for (width, height), sides in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            finalized(page)
            shown = ["speculative"] if sides == "speculative" else ["plain", "speculative"]
            charts = [".chart.clock"] if sides == "speculative" else [".chart.clock", ".chart.acceptance"]
            needed = [
                ".conclusion",
                ":is(#run, #stop)",
                "#prompt textarea",
                "#num_assistant_tokens input[type=range]",
                *charts,
            ]
            assert page.evaluate(VISIBLE, [*needed, *(f".pane.{side} .text" for side in shown)]) == [], (
                width,
                scheme,
            )
            assert min(lines(page, side) for side in shown) >= LINES, (width, scheme)
            assert page.evaluate("scrollY") == 0
            assert page.evaluate("document.documentElement.scrollWidth") == width
    page.set_viewport_size({"width": 720, "height": 450})  # 1440x900 at 200 %
    for side, other in (("plain", "speculative"), ("speculative", "plain")):
        page.locator(f".switch [value={side}]").check()
        expect(page.locator(f".pane.{other}")).to_be_hidden()
        assert page.locator(f".pane.{side} .text").evaluate(UNCOVERED) >= LINES / 2, side
    answer, written = (page.locator(f".pane.speculative .turns .{name}") for name in ("answer", "written"))
    for raw in (False, True):
        page.locator(".as-written").evaluate("(box, raw) => box.checked === raw || box.click()", raw)
        expect(answer).to_be_visible(visible=not raw)
        expect(written).to_be_visible(visible=raw)


def test_the_verdict_takes_a_fifth_of_the_screen_with_any_number_of_warnings(visit: Visit, tmp_path: Path) -> None:
    page = visit()
    run(page)
    raced = downloaded(page)
    experts = raced.pair.target.model_copy(update={"architecture": "mixtral"})
    saved = tmp_path / "race.json"
    disturbed = {"other_load": 0.91, "repeats": (), "pair": raced.pair.model_copy(update={"target": experts})}
    saved.write_text(json.dumps(schema.to_json(raced.model_copy(update=disturbed))), encoding="utf-8")
    open_tab(page, "Anatomy")
    page.set_input_files("#open input, input[type=file]", saved)
    open_tab(page, "Compare")
    skip(page)
    expect(page.locator(".warning")).to_contain_text("91 %")
    for width, height in ((1280, 720), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        finalized(page)
        box = page.locator(".conclusion").bounding_box()
        assert box is not None
        assert box["height"] <= height / 5, width
    page.click(".why summary")
    expect(page.locator(".grounds")).to_contain_text("91 %")
    expect(page.locator(".grounds")).to_contain_text("experts")
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 1280, "height": 720})
    page.keyboard.press("p")
    finalized(page)
    box = page.locator(".conclusion").bounding_box()
    assert box is not None
    assert box["height"] <= 720 / 5
    expect(page.locator(".warning")).to_be_visible()
    cut = "e => e.scrollHeight > e.clientHeight + 1"
    assert not page.locator(".outcome").evaluate(cut)


def test_a_presenter_has_everything_in_view_and_a_key_for_it(visit: Visit) -> None:
    page = visit(f"{BRIEF}#present")
    page.set_viewport_size({"width": 1280, "height": 720})
    expect(page.locator("#rail")).to_be_hidden()
    page.keyboard.press("r")
    finish(page)
    finalized(page)
    needed = [
        ".conclusion",
        ".pane.plain",
        ".pane.speculative",
        ".chart.clock",
        ".chart.acceptance",
        ".presenter-keys",
    ]
    assert page.evaluate(VISIBLE, needed) == []
    page.keyboard.press("s")
    expect(page.locator(".slow-motion")).to_be_visible()
    page.keyboard.press("s")
    expect(page.locator(".slow-motion")).to_be_hidden()
    asked = page.locator(".presenter-keys .prompt").text_content()
    page.keyboard.press("n")
    expect(page.locator(".presenter-keys .prompt")).not_to_have_text(str(asked))
    expect(page.locator("#prompt textarea")).to_have_value(
        str(page.locator(".presenter-keys .prompt").text_content())
    )
    page.keyboard.press("w")
    page.wait_for_selector(".race[data-state=playing]")
    page.keyboard.press("w")
    expect(page.locator(".race .toggle")).to_have_text("Play")
    page.keyboard.press("p")
    expect(page.locator("#rail")).to_be_visible()


def test_without_motion_the_end_is_shown_at_once_and_answers_can_be_copied(visit: Visit) -> None:
    page = visit(BRIEF)
    page.emulate_media(reduced_motion="reduce")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("""() => {
      window.shown = new Set();
      const clock = document.querySelector(".track.plain output");
      new MutationObserver(() => shown.add(clock.textContent)).observe(clock, { childList: true });
    }""")
    start(page)
    page.wait_for_selector(".race[data-state=done]")
    assert page.evaluate("shown.size") <= 3  # when it is played, every token is another one
    plain = downloaded(page).plain
    page.click(".pane.plain .answer-copy")
    expect(page.locator(".pane.plain .answer-copy.done")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == plain.text.strip()


def test_a_lookahead_moved_while_it_runs_is_followed_and_marked(visit: Visit) -> None:
    page = visit("/#engine=traced&max_new_tokens=2000")
    start(page)
    page.wait_for_selector(".race[data-state=playing] .pane.speculative .text .token.accepted")
    expect(page.locator("#when .round")).to_be_visible()
    expect(page.locator("#when .run")).to_be_hidden()
    set_slider(page, "num_assistant_tokens", 7)
    for chart in ("clock", "acceptance"):
        expect(page.locator(f".chart.{chart} .annotation-text")).to_have_text(["lookahead 7"])
    page.click("#stop")
    page.wait_for_selector(".race[data-state=done]")
    comparison = downloaded(page)
    page.check("#drafter input[value=lookup]")
    expect(page.locator("#at-hand .moves")).to_have_count(0)
    (move,) = comparison.moves
    assert move.num_assistant_tokens == 7
    lengths = [len(proposals(step)) for step in comparison.speculative.rounds]
    assert set(lengths[: move.round - 1]) == {4}
    assert set(lengths[move.round - 1 : -1]) == {7}


def test_nothing_is_wider_than_the_window_and_tabs_are_equally_wide(visit: Visit) -> None:
    page = visit(BRIEF, width=390)
    expect(page.locator("#run")).to_be_in_viewport()
    run(page)
    expect(page.locator(".conclusion")).to_be_in_viewport()
    page.click("#more button")
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 1000})
        open_tab(page, "Compare")
        finalized(page)
        assert page.evaluate(CUT) == []
        edges = set()
        for name in TABS:
            open_tab(page, name)
            assert is_no_wider_than(page, width), name
            edges.add(page.evaluate(EDGES))
        assert len(edges) == 1
