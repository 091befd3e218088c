"""The HTML file that replays a run: every kind of run plays to its end, and every button does something."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from specdemo.engines.scripted import ScriptedEngine
from specdemo.presentation.share import replay
from specdemo.race import race
from specdemo.records import Comparison, Move, Run, Turn
from specdemo.settings import GenerationSettings

pytestmark = pytest.mark.browser

COPY = "window.copied = []; navigator.clipboard.writeText = async text => { copied.push(text); }"


def compared() -> Comparison:
    engine = ScriptedEngine(words=30 * tuple(ScriptedEngine.words), wrong=range(5, 200, 7))
    *_, comparison = race(engine, "Say", GenerationSettings(max_new_tokens=60))
    assert isinstance(comparison, Comparison)
    return comparison


def moved(comparison: Comparison) -> Comparison:
    return comparison.model_copy(update={"moves": (Move(round=3, num_assistant_tokens=7),)})


def chat(comparison: Comparison) -> Comparison:
    target = comparison.pair.target.model_copy(update={"chat_template": True})
    history = (Turn(prompt="Before", answer="```\ncode\n```"),)
    return comparison.model_copy(
        update={"pair": comparison.pair.model_copy(update={"target": target}), "history": history}
    )


def stopped(comparison: Comparison) -> Comparison:
    runs = {side: comparison.side(side) for side in ("plain", "speculative")}
    ended = {side: run.model_copy(update={"finish_reason": "cancelled"}) for side, run in runs.items()}
    return comparison.model_copy(update=ended)


def failed(comparison: Comparison) -> Comparison:
    failures = {"speculative": "The server hung up; start it again."}
    return comparison.model_copy(update={"speculative": Run.without("failed"), "failures": failures})


def opened(browser: BrowserContext, folder: Path, comparison: Comparison, complaints: list[str]) -> Page:
    file = folder / "run.html"
    file.write_bytes(replay(comparison))
    page = browser.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url != file.as_uri() else None)
    page.add_init_script(COPY)
    page.goto(file.as_uri())
    page.wait_for_selector(".race:is([data-state=playing], [data-state=done])")
    return page


@pytest.mark.parametrize("kind", [compared, moved, chat, stopped, failed])
def test_every_button_of_a_replay_does_something(
    kind: Callable[..., Comparison], browser: BrowserContext, tmp_path: Path
) -> None:
    comparison = compared() if kind is compared else kind(compared())
    complaints = list[str]()
    page = opened(browser, tmp_path, comparison, complaints)
    page.evaluate("document.querySelector('.skip').click()")
    page.wait_for_selector(".race[data-state=done]")
    expect(page.locator(".pane.plain .text")).to_contain_text("jumps")
    buttons = page.locator("button")
    for number in range(buttons.count()):
        buttons.nth(number).evaluate("button => button.click()")
    page.evaluate("document.querySelector('.skip').click()")
    page.wait_for_selector(".race[data-state=done]")
    if kind is not failed:
        page.click(".rounds")
        expect(page.locator(".slow-motion .saying")).to_contain_text("guesses 4 tokens")
    for button in page.locator(".copy").all():
        button.evaluate("button => button.click()")
    assert comparison.plain.text.strip() in page.evaluate("copied")
    if kind is chat:
        assert "code\n" in page.evaluate("copied")
    page.close()
    assert complaints == []


def test_a_moved_lookahead_is_marked_and_the_replay_goes_on(browser: BrowserContext, tmp_path: Path) -> None:
    complaints: list[str] = []
    page = opened(browser, tmp_path, moved(compared()), complaints)
    page.select_option(".speed", "20")
    page.wait_for_selector(".race[data-state=done]")
    assert page.locator(".pane.speculative .text [data-index]").count() == 60
    page.close()
    assert complaints == []
