"""The page with real models: `serve`, in headless Chromium. `tests/long` has more."""

from collections.abc import Iterator

import pytest
from gradio_client import Client
from playwright.sync_api import Page, expect

from specdemo.exports import schema
from specdemo.records import SIDES, Outcome
from tests.support.browser import App, Visit, downloaded, repeated, run, started
from tests.support.proposals import proposals

pytestmark = [pytest.mark.openvino, pytest.mark.browser]


@pytest.fixture(scope="module")
def app(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """`serve`, as on a Space."""
    with started(tmp_path_factory.mktemp("elsewhere"), "-m", "tests.support.hurried", "serve") as app:
        yield app


def test_a_typed_prompt_is_raced_and_the_page_shows_the_run(visit: Visit) -> None:
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
        expected = [draft.text.replace("\n", "↵") for draft in drafts if draft.verdict is outcome]
        shown = [text.replace("\n", "↵") for text in kinds(page, outcome)]
        assert shown == expected
        assert expected
    assert len(kinds(page, "own")) == 1 + len(comparison.speculative.rounds)
    assert page.locator(".pane.speculative .round").count() == 1 + len(comparison.speculative.rounds)
    assert page.locator(".agreement").text_content() == "✓ identical output, 64 tokens compared"
    expect(page.locator(".figures dt").nth(7)).to_be_attached()  # step costs come last
    page.hover(".pane.speculative .text .token.rejected")
    expect(page.locator(".tip")).to_contain_text("draft's probability 0.")
    expect(page.locator(".tip")).to_contain_text("(replayed)")
    repeated(page)  # whose news would be taken for the next run's
    page.click("#open-advanced button")
    page.check("#engine input[value=traced]")
    page.check("#policy input[value=heuristic]")
    run(page)
    assert_traced(page)


def assert_traced(page: Page) -> None:
    """The traced engine records probabilities, too."""
    comparison = downloaded(page)
    assert comparison.settings.policy == "heuristic"
    assert comparison.trace_source == "measured"
    assert {len(proposals(step)) for step in comparison.speculative.rounds} > {4, 5}
    page.hover(".pane.speculative .text .token.rejected")
    expect(page.locator(".tip")).to_contain_text("target's probability 0.")


def kinds(page: Page, kind: str) -> list[str]:
    return page.locator(f".pane.speculative .text .token.{kind}").all_text_contents()


def test_the_endpoint_returns_the_same_comparison(app: App) -> None:
    client = Client(app.url, verbose=False)
    data = client.predict(prompt="In a deep forest there lived", max_new_tokens=48, api_name="/compare")
    comparison = schema.from_json(data)
    assert len(comparison.plain.token_ids) == 48
    assert data["summary"]["identical"] is True
    for prompt, message in ((" ", "The prompt is empty"), ("word " * 2100, "exceed the model's context of 2048")):
        with pytest.raises(Exception, match=message):
            client.predict(prompt=prompt, api_name="/compare")
    assert list(client.view_api(return_format="dict")["named_endpoints"]) == ["/compare"]
