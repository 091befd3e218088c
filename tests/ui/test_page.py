"""The page as a visitor meets it, on scripted engines in headless Chromium."""

from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import (
    BRIEF,
    WAIT,
    Visit,
    downloaded,
    frames,
    grown,
    repeated,
    run,
    set_slider,
    skip,
)
from tests.support.proposals import proposals

pytestmark = pytest.mark.browser
LONG = "/?max_new_tokens=2000"


CONTRAST = """element => {
  const style = getComputedStyle(element);
  const luminance = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [a, b] = [luminance(style.color), luminance(style.backgroundColor)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""


def test_colours_are_readable_and_repeated_by_lines(visit: Visit) -> None:
    page = visit(BRIEF)
    run(page)
    page.check(".discarded-shown")
    for dark in (False, True):
        page.evaluate("dark => document.body.classList.toggle('dark', dark)", dark)
        assert_readable(page)
    page.uncheck(".discarded-shown")
    expect(page.locator(".pane.speculative .text .token.discarded").first).to_be_hidden()
    assert_explained(page)


def assert_readable(page: Page) -> None:
    styles = {}
    for kind in ("accepted", "own", "rejected", "discarded"):
        token = page.locator(f".pane.speculative .text .token.{kind}").first
        styles[kind] = token.evaluate(
            "e => { const s = getComputedStyle(e); return [s.backgroundColor, s.textDecorationLine + s.boxShadow]; }"
        )
        expect(token).to_be_visible()
        if kind != "discarded":
            assert token.evaluate(CONTRAST) >= 4.5, kind
    backgrounds, lines = zip(*styles.values(), strict=True)
    assert len(set(backgrounds)) == 4
    assert len(set(lines)) >= 3
    assert "line-through" in lines[2]
    assert "line-through" in lines[3]


def assert_explained(page: Page) -> None:
    """Tokens explain themselves to mouse and keyboard."""
    tip = page.locator(".tip")
    page.hover(".pane.speculative .text .token.rejected")
    expect(tip).to_contain_text("rejected proposal")
    expect(tip).to_contain_text("4 proposed")
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    page.focus(".pane.plain .text")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("prefill")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("step 1,")


def test_text_streams_on_both_sides_in_step(visit: Visit) -> None:
    page = visit()
    page.select_option(".speed", "100")
    page.click("#prompt textarea")
    page.keyboard.press("Enter")
    page.wait_for_selector(".race[data-state=playing]")
    seen = []
    for _ in range(4):
        clocks = page.evaluate(
            "[...document.querySelectorAll('.pane [data-fact=ms]')].map(clock => Number(clock.dataset.value))"
        )
        counts = [page.locator(f".pane.{side} .text [data-index]").count() for side in ("plain", "speculative")]
        seen.append((*counts, *clocks))
        grown(page, counts[0] + 4)
    plain, speculative, *_ = zip(*seen, strict=True)
    assert plain[0] < plain[-1] < 128
    assert speculative[0] < speculative[-1]
    assert list(plain) == sorted(plain)
    for *_, one, other in seen:  # both at the same time of their own clocks, but for the round in progress
        assert abs(one - other) < 60
    expect(page.locator(".reason")).to_contain_text("100× slower than it ran")
    page.click(".toggle")
    before = page.locator(".pane.plain .text [data-index]").count()
    frames(page, 20)
    assert page.locator(".pane.plain .text [data-index]").count() == before
    assert_bars_show_tokens_of_the_limit(page)
    page.click(".toggle")
    assert_charts_keep_their_zoom(page)
    skip(page)
    assert page.locator(".pane.plain .text [data-index]").count() == 128
    assert_bars_show_seconds(page)
    points = page.evaluate("document.querySelector('.chart.clock').data.map(t => t.y.at(-1))")
    assert points == [128, 128]
    accepted = page.evaluate("document.querySelector('.chart.acceptance').data[0].y")
    assert accepted == [step.accepted for step in downloaded(page).speculative.rounds]
    page.select_option(".speed", "1")  # plays once more
    page.wait_for_selector(".race[data-state=playing]")
    page.wait_for_selector(".race[data-state=done]")
    assert page.locator(".pane.plain .text [data-index]").count() == 128


def assert_bars_show_tokens_of_the_limit(page: Page) -> None:
    expect(page.locator(".toggle")).to_have_text("Play")
    counts = {side: page.locator(f".pane.{side} .text [data-index]").count() for side in ("plain", "speculative")}
    expect(page.locator(".headline")).to_have_text(f"+{counts['speculative'] - counts['plain']} tokens")
    for side, count in counts.items():
        expect(page.locator(f".track.{side} output")).to_contain_text(f"{count} of 128")
        assert length_of_bar(page, side) == pytest.approx(count / 128, abs=0.01)


def assert_bars_show_seconds(page: Page) -> None:
    """At the finish, in the proportion that the headline names."""
    speedup = float((page.locator(".headline").text_content() or "").split("×")[0])
    assert length_of_bar(page, "plain") == 1
    assert 1 / length_of_bar(page, "speculative") == pytest.approx(speedup, abs=0.01)
    expect(page.locator(".track.speculative output")).to_contain_text("saved of")


def length_of_bar(page: Page, side: str) -> float:
    """As a share of the whole."""
    return float(page.locator(f".track.{side} i").evaluate("e => parseFloat(e.style.width)")) / 100


def assert_charts_keep_their_zoom(page: Page) -> None:
    """While they grow, and without being built anew."""
    page.evaluate("Plotly.relayout(document.querySelector('.chart.clock'), {'xaxis.range': [3, 9]})")
    before = page.evaluate("document.querySelector('.chart.clock').data[0].x.length")
    page.evaluate("document.querySelector('.chart.clock .main-svg').dataset.mine = 'yes'")
    page.wait_for_function(f"document.querySelector('.chart.clock').data[0].x.length > {before + 5}")
    assert page.evaluate("document.querySelector('.chart.clock').layout.xaxis.range") == [3, 9]
    assert page.evaluate("document.querySelector('.chart.clock .main-svg').dataset.mine") == "yes"


def test_controls_change_the_run_and_only_valid_ones_show(visit: Visit) -> None:
    page = visit("/#engine=traced&policy=heuristic")
    expect(page.locator("#policy input:checked")).to_have_value("heuristic")
    expect(page.locator("#num_assistant_tokens")).to_be_hidden()
    page.click("#more button")
    page.check("#engine input[value=genai]")
    expect(page.locator("#policy input[value=heuristic]")).to_be_hidden()
    expect(page.locator("#policy input:checked")).to_have_value("constant")
    set_slider(page, "num_assistant_tokens", 7)
    set_slider(page, "max_new_tokens", 60)
    run(page)
    comparison = downloaded(page)
    assert comparison.settings.num_assistant_tokens == 7
    assert max(len(proposals(step)) for step in comparison.speculative.rounds) == 7
    assert len(comparison.plain.token_ids) == 60
    page.click("text=Confidence threshold")
    expect(page.locator("#assistant_confidence_threshold")).to_be_visible()
    expect(page.locator("#num_assistant_tokens")).to_be_hidden()
    run(page)
    assert downloaded(page).settings.policy == "confidence"
    page.click("text=Prompt lookup")
    expect(page.locator("#max_ngram_size")).to_be_visible()
    expect(page.locator("#num_assistant_tokens")).to_be_visible()
    expect(page.locator("#policy")).to_be_hidden()
    run(page)
    settings = downloaded(page).settings
    assert (settings.drafter, settings.policy) == ("lookup", "constant")
    repeated(page)
    page.reload()  # the hidden policy must not spoil what was remembered
    expect(page.locator("#max_ngram_size")).to_be_visible()
    expect(page.locator("#message [role=alert]")).to_have_count(0)


def test_bad_input_is_told_and_the_finished_result_stays(visit: Visit) -> None:
    page = visit("/?num_assistant_tokens=99&max_new_tokens=48")
    expect(page.locator("#message [role=alert]")).to_contain_text("less than or equal to 16, got '99'")
    expect(page.locator("#num_assistant_tokens input[type=number]")).to_have_value("4")
    run(page)
    repeated(page)
    outcome, text = page.locator(".outcome").text_content(), page.locator(".pane.plain .text").text_content()
    page.fill("#prompt textarea", "  ")
    page.click("#run")
    expect(page.locator("#message [role=alert]")).to_contain_text("The prompt is empty", timeout=WAIT)
    expect(page.locator("#run")).to_have_text("Run", timeout=WAIT)
    assert page.locator(".outcome").text_content() == outcome
    assert page.locator(".pane.plain .text").text_content() == text
    page.fill("#prompt textarea", "Once")
    run(page)
    expect(page.locator("#message [role=alert]")).to_have_count(0)


def test_markup_is_shown_and_never_run_and_differing_outputs_are_marked(visit: Visit) -> None:
    evil = '<img src=x onerror=alert(1)><script>alert(2)</script>"&'
    page = visit(f"/?prompt={quote(evil)}&do_sample=true&seed=3&max_new_tokens=48")
    run(page)
    expect(page.locator(".agreement")).to_contain_text("outputs differ from token")
    expect(page.locator(".grounds")).to_contain_text("does not keep the target's distribution")
    for side in ("plain", "speculative"):
        expect(page.locator(f".pane.{side} .diverges")).to_have_count(1)
    for side in ("plain", "speculative"):
        assert page.locator(f".pane.{side} .prompt").text_content() == evil
    assert page.locator(".race img, .race script").count() == 0


def test_stop_keeps_what_there_is(visit: Visit) -> None:
    page = visit(LONG)
    page.click("#run")
    expect(page.locator("#run")).to_have_text("Running …", timeout=WAIT)
    expect(page.locator("#run")).to_be_disabled()
    page.wait_for_selector(".race[data-state=playing]")
    expect(page.locator(".reason")).to_contain_text("Live,")
    page.click("#stop")
    expect(page.locator("#run")).to_have_text("Run", timeout=15_000)
    page.wait_for_selector(".race[data-state=done]")
    expect(page.locator(".reason")).to_contain_text("Stopped early.")
    comparison = downloaded(page)
    assert comparison.plain.finish_reason == "cancelled"
    assert 1 < len(comparison.plain.token_ids) < 2000
    expect(page.locator("#stop")).to_be_hidden()
