"""Several visitors of one page, and connections that are held."""

import re

import pytest
from playwright.sync_api import BrowserContext, Route, expect

from tests.support.browser import BRIEF, App, Visit, downloaded, finish, ready, rests, run, watch

pytestmark = pytest.mark.browser
LONG = "/?max_new_tokens=2000"


def test_a_second_visitor_waits_in_a_visible_queue_and_can_leave(visit: Visit) -> None:
    first, second = visit(LONG), visit(BRIEF)
    first.click("#run")
    first.wait_for_selector(".race[data-state=playing]")
    second.click("#run")
    expect(second.locator("#message")).to_contain_text("Another visitor's race is in progress")
    expect(second.locator(".pane.plain .phase")).to_contain_text("this run waits for it")
    second.click("#cancel")
    expect(second.locator("#run")).to_have_text("Run")
    expect(second.locator("#run")).to_be_enabled()
    second.click("#run")
    expect(second.locator("#message")).to_contain_text("queue: 1/1")
    first.click("#stop")
    finish(second)
    assert downloaded(first).plain.finish_reason == "cancelled"
    assert downloaded(second).plain.finish_reason == "length"  # the first visitor's Stop did not stop the second


def test_a_page_waits_for_the_server_and_holds_no_connection(browser: BrowserContext, app: App) -> None:
    page, held = browser.new_page(), list[Route]()
    watch(page)
    page.route("**/queue/join*", lambda route: held.append(route))
    with page.expect_request("**/queue/join*"):
        page.goto(app.url + BRIEF)
    expect(page.locator("#run")).to_be_disabled()
    held.pop().continue_()
    page.unroute("**/queue/join*")
    ready(page)
    run(page)
    expect(page.locator(".grounds")).to_contain_text(re.compile(r"\d repeat"))
    rests(page, seconds=5)  # a browser opens six connections to a host, so a seventh tab would wait
    page.close()
