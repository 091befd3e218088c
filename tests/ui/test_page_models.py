from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from specdemo.models.catalogue import find
from tests.support import gguf_files
from tests.support.browser import (
    BRIEF,
    App,
    Visit,
    card,
    choose,
    downloaded,
    models_tab,
    open_tab,
    repeated,
    run,
    set_slider,
)

pytestmark = pytest.mark.browser
ENTRY = find("qwen3-8b")


def test_pair_and_settings_survive_tabs_reloads_and_links(visit: Visit, app: App) -> None:
    page = visit(BRIEF)
    page.fill("#prompt textarea", "A & B = <C>?")
    set_slider(page, "num_assistant_tokens", 9)
    page.click("text=Prompt lookup")
    page.wait_for_function("location.hash.includes('lookup') && location.hash.includes('prompt')")
    models_tab(page)
    choose(page, target="llama/target", draft="llama/draft")
    expect(page.locator("#report")).to_contain_text("llama")
    page.click("#use")
    header = page.locator("#header")
    expect(header).to_contain_text("llama/target + llama/draft")
    shown = str(header.text_content())
    for tab in ("Anatomy", "Compare"):
        open_tab(page, tab)
        expect(header).to_have_text(shown)
        expect(header).to_be_visible()
    run(page)
    assert downloaded(page).pair.name == "llama/target + llama/draft"
    repeated(page)
    link = page.url.removeprefix(app.url)
    page.goto(app.url + "/")
    assert_restored(page, shown)
    other = visit(link)
    assert_restored(other, shown)
    open_tab(other, "Compare")
    other.fill("#prompt textarea", "Theirs")
    other.wait_for_function("location.hash.includes('Theirs')")
    page.reload()
    expect(page.locator("#prompt textarea")).to_have_value("A & B = <C>?")  # each tab of the browser keeps its own


def assert_restored(page: Page, header: str) -> None:
    expect(page.locator("#header")).to_have_text(header)
    expect(page.locator("#prompt textarea")).to_have_value("A & B = <C>?")
    expect(page.locator("#num_assistant_tokens input[type=number]")).to_have_value("9")
    expect(page.locator("#max_ngram_size")).to_be_visible()
    models_tab(page)
    expect(page.locator("#target input")).to_have_value("llama/target")
    expect(page.locator("#draft input")).to_have_value("llama/draft · recommended")


def test_a_typed_target_is_added_or_refused_with_a_command(visit: Visit, models_dir: Path, tmp_path: Path) -> None:
    page = visit("/#target=../../etc")
    alert = page.locator("#message [role=alert]")
    expect(alert).to_contain_text("The link's pair cannot be used. Unknown model '../../etc'; choose one")
    expect(page.locator("#header")).to_contain_text("story-pair ·")
    models_tab(page)
    expect(card(page, "flan-t5-xl")).to_be_hidden()  # as it cannot run here
    page.click("#catalogue details summary")
    expect(card(page, "flan-t5-xl")).to_be_visible()
    expect(page.locator("button[data-action=download]")).to_have_count(0)
    command = f"python -m specdemo models download {ENTRY.name}"
    expect(card(page, ENTRY.name).locator("code")).to_have_text(command)
    forged = "<button data-action='download'>Download</button>"
    card(page, ENTRY.name).evaluate("(card, html) => card.insertAdjacentHTML('beforeend', html)", forged)
    card(page, ENTRY.name).locator("button").click()
    expect(page.locator("#download")).to_contain_text("Downloads are off on this page")

    expect(page.locator("#use")).to_be_enabled()
    page.locator("#draft input").click()
    offered = page.locator("#draft [role=option]").all_text_contents()
    assert "story-pair/target" not in [name.strip() for name in offered]
    assert any("story-pair/draft" in name for name in offered[:2])
    page.keyboard.press("Escape")
    page.fill("#target input", "somebody/model")
    page.keyboard.press("Enter")
    command = "on this page's machine, run: specdemo models download somebody/model"
    expect(page.locator("#report")).to_contain_text(command)
    expect(page.locator("#offer button")).to_have_count(0)
    expect(page.locator("#use")).to_be_disabled()

    file = gguf_files.write(tmp_path / "typed.gguf", "llama", "Q8_0")
    try:
        page.fill("#target input", str(file))
        page.keyboard.press("Enter")
        expect(page.locator("#pair-message")).to_contain_text("typed.gguf is now among your models")
        expect(page.locator("#target input")).to_have_value("typed.gguf")
        page.fill("#target input", str(tmp_path / "nothing.gguf"))
        page.keyboard.press("Enter")
        expect(page.locator("#pair-message")).to_contain_text("There is no file or folder")
    finally:
        (models_dir / "typed.gguf").unlink(missing_ok=True)
