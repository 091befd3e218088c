import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visit, open_tab, set_slider


@pytest.mark.browser
def test_a_measurement_in_the_browser(visit: Visit) -> None:
    page = visit("/#engine=traced&max_new_tokens=16&ignore_eos=true")
    open_tab(page, "Measure")
    page.fill("#measure-prompts textarea", "Once upon a time")
    set_slider(page, "measure-tokens", 16)
    set_slider(page, "measure-minutes", 1)
    page.click("#measure-start")
    expect(page.locator("#measure-board tbody tr").first).to_be_visible(timeout=60_000)
    expect(page.locator("#measure-reports")).to_be_visible(timeout=60_000)
    expect(page.locator("#measure-board .card").first).to_contain_text("identical")
    page.click("#measure-use")
    expect(page.locator("#run")).to_be_visible()

    open_tab(page, "Measure")
    page.get_by_label("Test several requests at once").check()
    expect(page.locator("#measure-variants")).to_contain_text("concurrency 8")
    set_slider(page, "measure-tokens", 400)
    page.click("#measure-start")
    expect(page.locator("#measure-message progress")).to_be_visible(timeout=60_000)
    page.click("#measure-stop")
    expect(page.locator("#measure-message")).to_contain_text("Stopped", timeout=60_000)
    expect(page.locator("#measure-start")).to_be_enabled()


@pytest.mark.browser
def test_prompts_from_a_file_are_shown_and_measured(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    lines = [{"prompt": f"Tell tale {number}", "category": f"kind {number % 2}"} for number in range(4)]
    path.write_text("\n".join([*map(json.dumps, lines), "{"]))
    page = visit("/#engine=traced&max_new_tokens=16&ignore_eos=true")
    open_tab(page, "Measure")
    with page.expect_file_chooser() as chooser:
        page.click("#measure-suite")
    chooser.value.set_files(path)
    about = page.locator("#measure-suite-name")
    for words in (
        "4 prompts (2 of kind 0 and 2 of kind 1)",
        "Left out: line 5: not JSON",
        "Tell tale 0",
        "Tell tale 2",
    ):
        expect(about).to_contain_text(words)
    expect(about).not_to_contain_text("Tell tale 3")
    set_slider(page, "measure-tokens", 16)
    set_slider(page, "measure-minutes", 1)
    page.click("#measure-start")
    expect(page.locator("#measure-reports")).to_be_visible()
    expect(page.locator("#measure-board")).to_contain_text("kind 1")
