"""Accessibility: axe-core's rules for WCAG AA, keyboards, and enlarged text."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.support.browser import BRIEF, TABS, Visit, open_tab, run

pytestmark = pytest.mark.browser

RULES = {  # a dark page differs only in colours
    "light": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
    "dark": ["color-contrast"],
}

STILL = "*, ::before, ::after { animation: none !important; transition: none !important }"


def faults(page: Page, rules: list[str]) -> list[str]:
    options = {"runOnly": rules, "resultTypes": ["violations"]}
    found = page.evaluate("options => axe.run(options)", options)["violations"]
    return [f"{one['id']} ({one['impact']}), {len(one['nodes'])} times: {one['nodes'][0]['html']}" for one in found]


def test_everybody_can_use_every_tab(visit: Visit) -> None:
    page = visit(BRIEF)
    page.add_style_tag(content=STILL)
    page.evaluate(Axe().axe_script)
    assert_groups_are_one_tab_stop(page)
    run(page)
    for name in TABS:
        open_tab(page, name)
        for scheme, rules in RULES.items():
            page.evaluate("dark => document.body.classList.toggle('dark', dark)", scheme == "dark")
            assert faults(page, rules) == [], f"{name}, {scheme}"


def assert_groups_are_one_tab_stop(page: Page) -> None:
    groups = page.locator("fieldset:has(input[type=radio]:visible)")
    for index in range(groups.count()):
        group = groups.nth(index)
        group.locator("input:checked").focus()
        page.keyboard.press("Tab")
        assert not group.evaluate("group => group.contains(document.activeElement)")
    drafter = page.locator("#drafter")
    drafter.locator("input:checked").focus()
    page.keyboard.press("ArrowRight")
    assert drafter.locator("input:checked").get_attribute("value") == "lookup"
    page.locator("#max_ngram_size").wait_for(state="visible")
