"""The parts of Gradio's page on which `assets/page/gradio.js` depends; failures name what a new release changed."""

import pytest
from playwright.sync_api import expect

from tests.support.browser import BRIEF, Visit, open_tab

pytestmark = pytest.mark.browser
PROMPT = "#prompt textarea"
# selectors in `assets/page/gradio.css`
STYLED = [
    ".gradio-container main",
    ".gradio-container .tabs",
    ".gradio-container .html-container",
    ".gradio-container .block.hide-container",
    ".tabs > .tab-wrapper .tab-container:not(.visually-hidden)",
    ".tabs .tabitem",
    "#compare.tabitem",
    "#rail > .form:has(#prompt)",
    "#rail .form",
    "#rail .block",
    "#at-hand .info-text",
    ".controls .form .block",
    ".secondary-wrap input",
]


def test_what_scripts_and_style_sheets_name_is_in_gradios_page(visit: Visit) -> None:
    page = visit(BRIEF)
    assert page.evaluate("names => names.filter(name => !document.querySelector(name))", STYLED) == []
    page.fill(PROMPT, "One")
    page.press(PROMPT, "Shift+Enter")
    page.keyboard.type("two")
    expect(page.locator(PROMPT)).to_have_value("One\ntwo")  # Shift+Enter begins a line
    page.wait_for_function("location.hash.includes('One%0Atwo')")  # Gradio has noticed
    page.press(PROMPT, "Enter")
    expect(page.locator(".pane.plain .prompt")).to_have_text("One\ntwo")  # Enter runs
    page.click(".examples .opens")
    example = page.locator(".examples .menu button").nth(1)
    text = example.get_attribute("data-prompt") or ""
    example.click()
    expect(page.locator(PROMPT)).to_have_value(text)  # our script can set it
    expect(page.locator(".examples .menu")).to_be_hidden()
    page.wait_for_function("text => new URLSearchParams(location.hash.slice(1)).get('prompt') === text", arg=text)
    open_tab(page, "Models")
    page.set_viewport_size({"width": 390, "height": 800})
    expect(page.locator("#pair .block").first).to_be_visible()
    target = page.locator("#target input")
    expect(target).to_be_visible()
    assert target.evaluate("input => parseFloat(getComputedStyle(input).paddingRight)") >= 24  # as wide as its arrow
    assert target.evaluate("input => getComputedStyle(input).textOverflow") == "ellipsis"
