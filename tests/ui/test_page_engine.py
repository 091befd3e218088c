"""The page with real models and a local Hub: `serve`, in headless Chromium."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from specdemo.models.catalogue import find
from specdemo.records import SIDES, Outcome
from tests.support.browser import App, Visit, card, choose, downloaded, models_tab, open_tab, run, started
from tests.support.folders import FIXTURES
from tests.support.hub import hub_of
from tests.support.proposals import proposals

pytestmark = [pytest.mark.openvino, pytest.mark.browser]


ENTRY = find("qwen3-8b")
NAMES = [str(source.repository) for source in ENTRY.sources]


@pytest.fixture(scope="module")
def app(chromium: str, models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """As on a Space, with a user's own models, and a Hub with tiny models under the entry's names."""
    there = {name: FIXTURES / "qwen3" / role for name, role in zip(NAMES, ("target", "draft"), strict=True)}
    with hub_of(there) as hub:
        places: dict[str, Any] = {"SPECDEMO_MODELS": str(models_dir), "HF_ENDPOINT": hub.url}
        with started(tmp_path_factory.mktemp("elsewhere"), "-m", "tests.support.hurried", "serve", **places) as app:
            yield app


def kinds(page: Page, kind: str) -> list[str]:
    return page.locator(f".pane.speculative .text .token.{kind}").all_text_contents()


def test_a_typed_prompt_is_raced_then_a_pair_is_downloaded_and_a_failing_one_does_not_replace_it(
    visit: Visit,
) -> None:
    page = visit("/?max_new_tokens=64")
    page.fill("#prompt textarea", "In a deep forest there lived")
    run(page)
    comparison = downloaded(page)
    assert comparison.prompt == "In a deep forest there lived"
    for side in SIDES:
        prompt = page.locator(f".pane.{side} .prompt").text_content()
        committed = page.locator(f".pane.{side} .text [data-index]").all_text_contents()
        assert (prompt, "".join(committed)) == (comparison.prompt, comparison.side(side).text)
    drafts = [draft for step in comparison.speculative.rounds for draft in proposals(step)]
    for outcome in Outcome:
        expected = [draft.text.replace("\n", "↵") for draft in drafts if draft.outcome is outcome]
        shown = [text.replace("\n", "↵") for text in kinds(page, outcome)]
        assert shown == expected
        assert expected
    assert len(kinds(page, "target")) == 1 + len(comparison.speculative.rounds)
    assert page.locator(".pane.speculative .round").count() == 1 + len(comparison.speculative.rounds)
    assert page.locator(".agreement").text_content() == "✓ identical output, 64 tokens compared"
    expect(page.locator(".figures dt").nth(7)).to_be_attached()  # step costs come last
    page.hover(".pane.speculative .text .token.rejected")
    expect(page.locator(".tip")).to_contain_text("draft's probability 0.")
    expect(page.locator(".tip")).to_contain_text("(replayed)")
    name = " + ".join(NAMES)
    models_tab(page)
    button = card(page, ENTRY.name).locator("button:not(.answer)")
    button.click()
    expect(page.locator("#download")).to_have_text(f"{ENTRY.title} is on this machine.")
    expect(button).to_have_text("Use this pair")
    button.click()
    expect(page.locator("#header")).to_contain_text(name)
    open_tab(page, "Models")
    choose(page, target="refused/target")
    page.click("#use")
    alert = page.locator("#pair-message [role=alert]")
    expect(alert).to_contain_text("OpenVINO cannot load 'refused/target' on CPU; export it again")
    expect(alert).to_contain_text(f"{name} is still in use.")
    expect(page.locator("#header")).to_contain_text(name)
    open_tab(page, "Compare")
    run(page)
    assert downloaded(page).pair.name == name
