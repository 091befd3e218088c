"""Stop during the prefill, and in the plain half of a race of servers: a run that has started has a result."""

from collections.abc import Iterator
from time import sleep
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.support.browser import App, downloaded, run, start, started
from tests.support.fake_server import CHAT, USAGE, Answer, chat, fake, models

pytestmark = pytest.mark.browser
LONG = "word " * 4000


def dripping() -> Iterator[Any]:
    for number in range(1000):
        sleep(0.05)
        yield chat(f" word{number}")
    yield from (USAGE, "[DONE]")


def answers(path: str, body: dict[str, Any]) -> Answer | None:
    if path == CHAT:
        return Answer(stream=dripping())
    return models("tiny") if path == "/v1/models" else None


@pytest.fixture(scope="module")
def served(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    serve = ("-m", "tests.support.hurried", "serve", "--plain-url")
    with (
        fake(answers) as server,
        started(tmp_path_factory.mktemp("slow"), *serve, server.url, SPECDEMO_URL=server.url) as app,
    ):
        yield app


def opened(browser: BrowserContext, app: App, prompt: str) -> Page:
    page = browser.new_page()
    page.goto(f"{app.url}/#max_new_tokens=2000&ignore_eos=true")
    expect(page.locator("#run")).to_be_enabled()
    page.fill("#prompt textarea", prompt)
    return page


def assert_stopped_before_the_speculative_side_began(page: Page) -> None:
    page.click("#stop")
    page.wait_for_selector(".race[data-state=done]")
    expect(page.locator(".reason")).to_contain_text("Stopped after")
    expect(page.locator(".reason")).to_contain_text("Stopped before the speculative side began.")
    expect(page.locator("#run")).to_have_text("Run")
    expect(page.locator("#run")).to_be_enabled()
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator(".race .share")).to_be_visible()
    comparison = downloaded(page)
    assert (comparison.plain.finish_reason, comparison.speculative.tokens) == ("cancelled", ())
    shown = page.locator(".pane.plain .text [data-index]").all_text_contents()
    assert "".join(shown) == comparison.plain.text != ""
    expect(page.locator(".past li").first).to_be_visible()
    page.close()


def test_stop_during_the_prefill(browser: BrowserContext, app: App) -> None:
    page = opened(browser, app, LONG)
    start(page)
    expect(page.locator(".race")).to_contain_text("Reading the prompt")
    assert_stopped_before_the_speculative_side_began(page)


def test_stop_in_the_plain_half_of_a_race_of_servers(browser: BrowserContext, served: App) -> None:
    page = opened(browser, served, "Say")
    start(page)
    expect(page.locator(".pane.plain .text [data-index]").nth(3)).to_be_attached()
    assert_stopped_before_the_speculative_side_began(page)


def test_stop_ends_the_repeats(browser: BrowserContext, app: App) -> None:
    page = browser.new_page()
    page.goto(f"{app.url}/#max_new_tokens=300&ignore_eos=true")
    expect(page.locator("#run")).to_be_enabled()
    run(page)
    expect(page.locator(".again button")).to_be_visible()
    page.locator(".again button").dispatch_event("click")
    expect(page.locator(".again")).to_be_hidden()
    page.close()
