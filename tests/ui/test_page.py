"""The page as visitors see it, on scripted engines in headless Chromium."""

import gzip
import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from specdemo.exports import schema
from specdemo.files import ASSETS
from tests.support.browser import (
    BRIEF,
    TABS,
    WAIT,
    Visit,
    downloaded,
    finalized,
    grown,
    is_no_wider_than,
    open_tab,
    ready,
    reopen,
    repeated,
    rests,
    run,
    set_slider,
    share,
    skip,
    start,
    stop_before_speculative,
)
from tests.support.proposals import proposals

pytestmark = pytest.mark.browser
LONG = "/?max_new_tokens=2000"
CHAT = "/#target=chat/target&draft=chat/draft&max_new_tokens=48"
PHONE = 390  # pixels; one side is shown at a time
SIZES = ((1440, 900), (1280, 720), (1024, 768), (PHONE, 844))
LINES = 7  # of text visible in a pane at any size

# selectors without an element that is completely visible
VISIBLE = """selectors => selectors.filter(selector => {
  const shown = element => {
    const box = element.getBoundingClientRect();
    const inside = box.width && box.top >= 0 && box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight;
    const at = (x, y) => element.contains(document.elementFromPoint(x, y));
    return inside && at(box.left + box.width / 2, box.top + 4) && at(box.left + box.width / 2, box.bottom - 4);
  };
  return ![...document.querySelectorAll(selector)].some(shown);
})"""

# elements that the window cuts off, except those that scroll or end in an ellipsis
CUT = """() => [...document.querySelectorAll('main *')].filter(e => {
    const at = e.getBoundingClientRect();
    const hidden = at.width && (at.left < 0 || at.right > innerWidth);
    return hidden && !e.closest('.text, .charts, .past .open, svg, .visually-hidden');
}).map(e => e.outerHTML.slice(0, 80))"""

CONTROLS = """() => [...document.querySelectorAll('button, input, select, textarea, summary')].filter(e => {
    const { width, height } = e.getBoundingClientRect();
    const seen = e.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    return seen && width > 4 && height > 4 && !e.disabled;
}).length"""

LOOKS = """e => {
    const style = getComputedStyle(e);
    return [style.backgroundColor, style.textDecorationLine + style.boxShadow];
}"""


def shown(page: Page, side: str) -> int:
    return page.locator(f".pane.{side} .text [data-index]").count()


def length_of_bar(page: Page, side: str) -> float:
    return float(page.locator(f".track.{side} i").evaluate("e => parseFloat(e.style.width)")) / 100


def test_everything_is_in_view_while_a_run_plays_and_at_its_end(visit: Visit) -> None:
    page = visit(BRIEF)
    assert page.evaluate(CONTROLS) <= 20, "the first screen shows what one needs"
    page.locator(".speed").evaluate("e => { e.value = '100'; e.dispatchEvent(new Event('change')); }")
    page.click("#prompt textarea")
    page.keyboard.press("Enter")
    grown(page, 3)
    page.click(".toggle")  # long enough to check everything
    for over in (False, True):
        if over:
            skip(page)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            finalized(page)
            panes = [".pane.speculative .text", *([".pane.plain .text"] if width > PHONE else [])]
            charts = [".chart.tokens", *([".chart.acceptance"] if width > PHONE else [])]
            needed = [
                ".conclusion",
                ":is(#run, #stop)",
                "#prompt textarea",
                "#num_assistant_tokens input[type=range]",
                "#policy label",
            ]
            assert page.evaluate(VISIBLE, [*needed, *panes, *charts]) == [], (over, width)
            assert page.evaluate("scrollY") == 0
            assert is_no_wider_than(page, width)
            lines = "e => e.clientHeight / parseFloat(getComputedStyle(e).lineHeight)"
            assert all(page.locator(pane).evaluate(lines) >= LINES for pane in panes), (over, width)
            box = page.locator(".conclusion").bounding_box()
            assert box is not None
            assert box["height"] <= height / 5, (over, width)
    page.click("#open-advanced button")
    for width in (PHONE, 1440):
        page.set_viewport_size({"width": width, "height": 1000})
        open_tab(page, "Compare")
        finalized(page)
        assert page.evaluate(CUT) == []
        edges = set()
        for name in TABS:
            open_tab(page, name)
            assert is_no_wider_than(page, width), name
            edge = "e => `${e.getBoundingClientRect().left} ${e.getBoundingClientRect().width}`"
            edges.add(page.locator(".tabitem").filter(visible=True).evaluate(edge))
        assert len(edges) == 1, "tabs are equally wide"
    open_tab(page, "Compare")
    page.click("#open-advanced button")
    page.set_viewport_size({"width": 1280, "height": 720})
    page.locator("body").press("p")
    expect(page.locator("#prompt")).to_be_hidden()
    expect(page.locator(".presenter")).to_be_visible()
    page.evaluate("document.getAnimations().forEach(each => each.finish())")
    expect(page.locator(".presenter")).to_be_hidden()
    finalized(page)
    assert page.evaluate(VISIBLE, [".conclusion", ".pane.plain", ".pane.speculative"]) == []
    expect(page.locator("#run")).to_be_visible()
    page.click(".more")
    page.click(".rounds")
    expect(page.locator(".anatomy .step").first).to_be_visible()
    page.go_back()
    expect(page.locator(".conclusion")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#prompt")).to_be_visible()


SHIFTS = """() => new PerformanceObserver(list => {
    window.shift = list.getEntries().reduce((sum, entry) => sum + entry.value, window.shift ?? 0);
}).observe({ type: 'layout-shift' })"""


@pytest.mark.parametrize("size", [(1440, 900), (1280, 720), (820, 1180), (PHONE, 844)])  # a layout each
def test_nothing_jumps_from_run_to_the_settled_conclusion(visit: Visit, size: tuple[int, int]) -> None:
    page = visit(BRIEF, *size)
    rests(page)
    finalized(page)
    page.evaluate(SHIFTS)
    run(page)
    repeated(page)
    assert page.evaluate("window.shift ?? 0") < 0.02


def test_a_policy_shows_its_slider_at_once_and_tabs_have_addresses(visit: Visit) -> None:
    page = visit(BRIEF)
    page.route("**/run/predict*", lambda route: None)  # no answer of the server is needed
    page.check("#policy input[value=confidence]")
    expect(page.locator("#assistant_confidence_threshold")).to_be_visible(timeout=300)
    expect(page.locator("#num_assistant_tokens")).to_be_hidden()
    page.check("#policy input[value=constant]")
    expect(page.locator("#num_assistant_tokens")).to_be_visible(timeout=300)
    open_tab(page, "Measure")
    page.wait_for_function("location.hash.includes('tab=measure')")
    page.go_back()
    expect(page.locator("#prompt")).to_be_visible()
    page.unroute_all(behavior="ignoreErrors")
    page.goto(page.url.partition("#")[0] + "#tab=models")
    page.reload()
    expect(page.locator("#catalogue")).to_be_visible()


def test_a_recording_is_shown_with_its_pair_until_something_is_typed_or_run(visit: Visit) -> None:
    page = visit(BRIEF)
    page.reload()
    ready(page)
    expect(page.locator(".race")).to_have_attribute("data-recorded", "")  # it is of another pair
    pair = page.locator("#header [data-pair]").get_attribute("data-pair")
    packed = (ASSETS / "page" / "recording.json.gz").read_bytes()
    record = json.loads(gzip.decompress(packed))
    record["pair"]["name"] = pair
    body = gzip.compress(json.dumps(record).encode())
    page.route("**/recording.json.gz", lambda route: route.fulfill(body=body, content_type="application/gzip"))
    for ending in ("typed", "another pair", "run"):
        page.reload()
        page.wait_for_selector(".race[data-recorded*='-'][data-state=playing] .pane.plain [data-index]")
        expect(page.locator(".recording")).to_contain_text("Run races on this machine")
        if ending == "run":
            ready(page)
            run(page)
            expect(page.locator(".race")).to_have_attribute("data-recorded", "")
            expect(page.locator(".past li")).to_have_count(1)
            continue
        if ending == "typed":
            page.fill("#prompt textarea", "Say")
        else:
            page.evaluate("document.querySelector('#header [data-pair]').dataset.pair = 'other'")  # as Gradio does
        page.wait_for_selector(".race[data-recorded=''][data-state=idle]")
        expect(page.locator(".pane.plain .text")).to_have_text("The large model writes one token at a time.")


def test_text_streams_on_both_sides_at_once(visit: Visit) -> None:
    page = visit()
    page.locator(".speed").evaluate("e => { e.value = '100'; e.dispatchEvent(new Event('change')); }")
    start(page)
    page.wait_for_selector(".race[data-state=playing]")
    clocks = "[...document.querySelectorAll('.pane [data-fact=ms]')].map(clock => Number(clock.dataset.value))"
    for tokens in (3, 6):
        grown(page, tokens)
        one, other = page.evaluate(clocks)
        assert abs(one - other) < 60  # both at the same time on their clocks, up to the current round
    expect(page.locator(".reason")).to_contain_text("100× slower than it ran")
    page.click(".toggle")
    before = shown(page, "plain")
    assert before < 128
    page.wait_for_timeout(300)  # in which a playback would go on
    assert shown(page, "plain") == before
    lead = shown(page, "speculative") - before
    expect(page.locator(".headline")).to_have_text(f"Speculative is {lead} tokens ahead")
    expect(page.locator(".track.plain output")).to_contain_text(f"{before} of 128")
    assert length_of_bar(page, "plain") == pytest.approx(before / 128, abs=0.01)
    skip(page)
    assert shown(page, "plain") == 128
    said = downloaded(page).plain.text
    assert "".join(page.locator(".pane.plain .text [data-index]").all_text_contents()) == said
    assert length_of_bar(page, "plain") == 1
    page.click(".more")
    page.select_option(".speed", "1")  # replays
    page.wait_for_selector(".race[data-state=playing]")
    page.wait_for_selector(".race[data-state=done]")


def test_texts_are_no_markup_and_tokens_are_readable_repeated_by_lines_explained_and_copied(visit: Visit) -> None:
    evil = '<img src=x onerror=alert(1)><script>alert(2)</script>"&'
    page = visit(f"/?prompt={quote(evil)}&do_sample=true&seed=3&max_new_tokens=48")
    page.emulate_media(reduced_motion="reduce")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    start(page)
    page.wait_for_selector(".race[data-state=done]")  # at once, without motion
    expect(page.locator(".agreement")).to_contain_text("outputs differ from token")
    expect(page.locator(".race :is(.diverges, img, script)")).to_have_count(0)  # draws may differ
    assert page.locator(".pane .prompt").all_text_contents() == [evil] * 2
    page.click(".pane.plain .copy")
    expect(page.locator(".pane.plain .copy.done")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == downloaded(page).plain.text.strip()
    page.check(".discarded-shown")
    for dark in (False, True):
        page.evaluate("dark => document.body.classList.toggle('dark', dark)", dark)
        styles = {}
        for kind in ("accepted", "target", "rejected", "discarded"):
            token = page.locator(f".pane.speculative .text .token.{kind}").first
            styles[kind] = token.evaluate(LOOKS)
            expect(token).to_be_visible()
        backgrounds, underlined = zip(*styles.values(), strict=True)
        assert len(set(backgrounds)) == 4
        assert len(set(underlined)) >= 3
    page.uncheck(".discarded-shown")
    expect(page.locator(".pane.speculative .text .token.discarded").first).to_be_hidden()
    tip = page.locator(".tip")
    page.hover(".pane.speculative .text .token.rejected")
    expect(tip).to_contain_text("rejected proposal")
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    page.focus(".pane.plain .text")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("prefill")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("step 1,")
    page.click("#open-advanced button")
    page.hover("#engine [data-term=GenAI]")
    expect(tip).to_contain_text("GenAI: OpenVINO's library")
    page.click("#num_assistant_tokens [data-term=lookahead]")
    expect(tip).to_contain_text("lookahead γ: ")


def test_controls_change_the_run_and_only_valid_ones_show(visit: Visit) -> None:
    page = visit("/#engine=traced&policy=auto")
    expect(page.locator("#policy input:checked")).to_have_value("auto")
    expect(page.locator("#num_assistant_tokens")).to_be_hidden()
    page.click("#open-advanced button")
    page.check("#engine input[value=genai]")
    expect(page.locator("#policy input[value=auto]")).to_be_hidden()
    expect(page.locator("#policy input:checked")).to_have_value("constant")
    set_slider(page, "num_assistant_tokens", 7)
    set_slider(page, "max_new_tokens", 60)
    run(page)
    comparison = downloaded(page)
    assert comparison.settings.num_assistant_tokens == 7
    assert max(len(proposals(step)) for step in comparison.speculative.rounds) == 7
    assert len(comparison.plain.token_ids) == 60
    page.check("#policy input[value=confidence]")
    expect(page.locator("#assistant_confidence_threshold")).to_be_visible()
    expect(page.locator("#num_assistant_tokens")).to_be_hidden()
    page.click("text=Prompt lookup")
    expect(page.locator("#max_ngram_size")).to_be_visible()
    expect(page.locator("#num_assistant_tokens")).to_be_visible()
    expect(page.locator("#policy")).to_be_hidden()
    run(page)
    settings = downloaded(page).settings
    assert (settings.drafter, settings.policy) == ("lookup", "constant")
    repeated(page)
    page.wait_for_function("location.hash.includes('lookup')")
    page.reload()  # the hidden policy must not change the stored one
    expect(page.locator("#max_ngram_size")).to_be_visible()
    expect(page.locator("#message [role=alert]")).to_have_count(0)


def test_stop_keeps_the_partial_run_and_enter_and_a_reload_are_explained(visit: Visit) -> None:
    page = visit(LONG)
    page.click("#run")
    expect(page.locator("#run")).to_have_text("Running …", timeout=WAIT)
    page.wait_for_selector(".race[data-state=playing]")
    expect(page.locator(".reason")).to_contain_text("Live.")
    page.press("#prompt textarea", "Enter")
    expect(page.locator("#keys")).to_contain_text("A run is in progress")
    page.click("#stop")
    expect(page.locator("#run")).to_have_text("Run", timeout=15_000)
    page.wait_for_selector(".race[data-state=done]")
    expect(page.locator(".reason")).to_contain_text("Stopped after")
    comparison = downloaded(page)
    assert comparison.plain.finish_reason == "cancelled"
    assert 1 < len(comparison.plain.token_ids) < 2000
    expect(page.locator("#stop")).to_be_hidden()
    page.fill("#prompt textarea", "word " * 4000)
    start(page)
    expect(page.locator(".race")).to_contain_text("Reading the prompt")
    stop_before_speculative(page)
    assert page.evaluate(VISIBLE, [".pane.plain [data-index='0']"]) == [], "the answer's beginning is in view"
    page.click("#run")
    expect(page.locator("#run")).to_have_text("Running …", timeout=WAIT)
    page.reload()
    expect(page.locator("#keys")).to_contain_text("The run ended when the page was reloaded")
    ready(page)


def test_stop_ends_the_repeats(visit: Visit) -> None:
    page = visit("/#max_new_tokens=201&ignore_eos=true")
    run(page)
    expect(page.locator(".again button")).to_be_visible()
    page.locator(".again button").dispatch_event("click")
    expect(page.locator(".again")).to_be_hidden()


def test_a_lookahead_moved_during_a_run_takes_effect(visit: Visit) -> None:
    page = visit("/#engine=traced&max_new_tokens=2000")
    start(page)
    page.wait_for_selector(".race[data-state=playing] .pane.speculative .text .token.accepted")
    expect(page.locator("#when .round")).to_be_visible()
    set_slider(page, "num_assistant_tokens", 7)
    expect(page.locator(".pane.speculative .text .token.accepted").nth(100)).to_be_attached()
    page.click("#stop")
    page.wait_for_selector(".race[data-state=done]")
    comparison = downloaded(page)
    (update,) = comparison.settings_updates
    lengths = [len(proposals(step)) for step in comparison.speculative.rounds]
    assert set(lengths[: update.round - 1]) == {4}
    assert set(lengths[update.round - 1 : -1]) == {7}
    page.check("#drafter input[value=lookup]")
    expect(page.locator("#at-hand .live")).to_have_count(0)


def test_runs_are_saved_listed_and_compared_by_lookahead(visit: Visit) -> None:
    page = visit(BRIEF)
    kept, rows = page.locator(".past li"), page.locator("#own-runs tbody tr")
    run(page)
    with page.expect_download() as download:
        share(page, "html")
    assert Path(download.value.path()).read_bytes().startswith(b"<!doctype html>")
    assert download.value.suggested_filename == "specdemo-race.html"
    expect(kept).to_have_count(1)
    expect(page.locator("#own-runs")).to_be_hidden()
    set_slider(page, "num_assistant_tokens", 2)
    run(page)
    expect(rows).to_have_count(2)
    expect(rows.locator("td:first-child")).to_have_text(["lookahead 2", "lookahead 4"])
    expect(rows.first.locator("td:last-child")).to_contain_text("× (")  # with its interval
    repeated(page)
    page.fill("#prompt textarea", "<b>Tell</b>")
    run(page)
    expect(kept.first).to_contain_text("<b>Tell</b>")
    expect(rows).to_have_count(0)  # of another prompt
    repeated(page)
    page.reload()
    expect(kept).to_have_count(3)
    expect(page.locator(".pane.plain .prompt")).to_have_text("<b>Tell</b>")
    reopen(page, kept.last)
    expect(page.locator(".made-by")).to_contain_text("lookahead 4")
    expect(page.locator("#num_assistant_tokens input[type=number]")).to_have_value("4")
    expect(page.locator("#prompt textarea")).not_to_have_value("<b>Tell</b>")
    expect(kept).to_have_count(3)  # opening one keeps no other
    page.click(".past .forget")
    expect(page.locator(".past")).to_be_hidden()


def test_the_best_setting_is_found_set_and_shown(visit: Visit) -> None:
    page = visit("/#engine=traced&max_new_tokens=16&ignore_eos=true&num_assistant_tokens=1")
    expect(page.locator("#find")).to_be_hidden()
    page.click("#open-finding button")
    page.click("#find")
    expect(page.locator("#find")).to_have_attribute("data-answer", re.compile(r"\d+ s$"))
    expect(page.locator(".search-result h2")).to_have_text(re.compile("^(Set|Kept): "), timeout=120_000)
    expect(page.locator("#find")).to_be_enabled()


def test_the_anatomy_of_the_last_run_and_of_a_saved_one(visit: Visit, tmp_path: Path) -> None:
    page = visit("/#num_assistant_tokens=3&max_new_tokens=48")
    open_tab(page, "Anatomy")
    expect(page.locator(".anatomy .empty")).to_be_visible()
    open_tab(page, "Compare")
    run(page)
    comparison = downloaded(page)
    page.click(".more")
    page.click(".rounds")
    steps = page.locator(".anatomy .step")
    expect(steps).to_have_count(len(comparison.speculative.rounds))
    for outcome in ("accepted", "rejected", "discarded"):
        drafts = [d for step in comparison.speculative.rounds for d in proposals(step) if d.outcome == outcome]
        expect(page.locator(f".anatomy .chip.{outcome}")).to_have_count(len(drafts))
    steps.first.click()  # which waits for the tab to open, and focuses them
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    expect(page.locator(".anatomy .place")).to_have_text(f"round 4 of {len(comparison.speculative.rounds)}")
    page.keyboard.press("End")
    assert page.locator(".so-far").text_content() == comparison.prompt + comparison.speculative.text
    page.keyboard.press("Home")
    steps.nth(1).click()
    expect(steps.nth(1)).to_have_class("step current")
    page.get_by_role("button", name="Set to the last run").click()  # of the simulator, which has both curves then
    expect(page.locator("#simulator input[type=number]").first).not_to_have_value("0.7")
    expect(page.locator("#simulator .legendtext")).to_have_text(
        ["these values", "the last run's values", "measured in the last run"]
    )
    saved, wrong = tmp_path / "run.json", tmp_path / "wrong.json"
    settings = comparison.settings.model_copy(update={"drafter": "lookup", "max_new_tokens": 33})
    pair = comparison.pair.model_copy(update={"name": "Other"})
    changed = {"prompt": "Saved", "settings": settings, "pair": pair}
    saved.write_text(json.dumps(schema.to_json(comparison.model_copy(update=changed))))
    wrong.write_text("{}")
    page.set_input_files("#open input, input[type=file]", wrong)
    expect(page.locator("[role=alert]")).to_contain_text("not a comparison of schema 3")
    page.set_input_files("#open input, input[type=file]", saved)
    expect(page.locator(".so-far .prompt")).to_have_text("Saved")
    open_tab(page, "Compare")
    skip(page)
    assert downloaded(page).prompt == "Saved"
    expect(page.locator("#prompt textarea")).to_have_value("Saved")
    expect(page.locator("#drafter input:checked")).to_have_value("lookup")
    expect(page.locator("#max_new_tokens input[type=number]")).to_have_value("33")
    expect(page.locator("#message")).to_contain_text("This run is of Other")


def test_each_run_starts_a_new_chat_unless_the_chat_is_continued(visit: Visit) -> None:
    page = visit(CHAT)
    expect(page.locator("#continue-chat input")).to_be_disabled()
    page.fill("#prompt textarea", "Who is there?")
    run(page)
    repeated(page)
    page.fill("#prompt textarea", "And then?")
    run(page)
    assert downloaded(page).history == ()
    repeated(page)
    page.check("#continue-chat input")
    page.fill("#prompt textarea", "And now?")
    run(page)
    (turn,) = downloaded(page).history
    assert turn.prompt == "And then?"
    for side in ("plain", "speculative"):
        expect(page.locator(f".pane.{side} .said")).to_have_text(["And then?", "And now?"])
        expect(page.locator(f".pane.{side} .answer")).to_have_text(turn.answer)
