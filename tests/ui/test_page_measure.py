import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Visit, open_tab, set_slider


def measure(page: Page, tokens: int) -> None:
    set_slider(page, "measure-tokens", tokens)
    set_slider(page, "measure-minutes", 1)
    page.click("#measure-start")


@pytest.mark.browser
def test_typed_prompts_and_those_of_a_file_are_measured_and_a_stop_ends_it(visit: Visit, tmp_path: Path) -> None:
    page = visit("/#engine=traced&max_new_tokens=16&ignore_eos=true")
    open_tab(page, "Measure")
    page.fill("#measure-prompts textarea", "Once upon a time")
    measure(page, 16)
    expect(page.locator("#measure-board tbody tr").first).to_be_visible()
    expect(page.locator("#measure-reports")).to_be_visible()
    expect(page.locator("#measure-board .card").first).to_contain_text("identical")
    page.click("#measure-use")
    expect(page.locator("#run")).to_be_visible()

    open_tab(page, "Measure")
    path = tmp_path / "some.jsonl"
    lines = [{"prompt": f"Tell tale {number}", "category": f"kind {number % 2}"} for number in range(4)]
    path.write_text("\n".join([*map(json.dumps, lines), "{"]))
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
    measure(page, 16)
    expect(page.locator("#measure-board")).to_contain_text("kind 1")

    page.get_by_label("Test several requests at once").check()
    expect(page.locator("#measure-variants")).to_contain_text("concurrency 8")
    measure(page, 400)
    expect(page.locator("#measure-message progress")).to_be_visible()
    page.click("#measure-stop")
    expect(page.locator("#measure-message")).to_contain_text("Stopped")
    expect(page.locator("#measure-start")).to_be_enabled()
