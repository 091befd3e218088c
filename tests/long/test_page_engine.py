"""The page with real models: chats, downloads from a Hub on this machine, an engine that dies, pairs that fail."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from specdemo.models.catalogue import catalogue, find
from tests.support.browser import (
    WAIT,
    App,
    Visit,
    card,
    choose,
    downloaded,
    is_no_wider_than,
    models_tab,
    open_tab,
    repeated,
    run,
    set_slider,
    start,
    started,
)
from tests.support.folders import FIXTURES
from tests.support.hub import Hub

pytestmark = [pytest.mark.openvino, pytest.mark.browser]
WEIGHTS = "openvino_model.bin"
ENTRY = find("qwen3-8b")
LLAMA = "/#target=llama/target&draft=llama/draft&max_new_tokens=32&ignore_eos=true"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    """A Hub with tiny models under the names of the entry's."""
    names = [str(source.repository) for source in ENTRY.sources]
    there = {name: FIXTURES / "qwen3" / role for name, role in zip(names, ("target", "draft"), strict=True)}
    with Hub(there | {"somebody/model": FIXTURES / "qwen3" / "target"}) as hub:
        yield hub


@pytest.fixture(scope="module")
def app(chromium: str, models_dir: Path, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """`serve`, as on a Space, with models of a user's own and downloads."""
    places: dict[str, Any] = {"SPECDEMO_MODELS": str(models_dir), "HF_ENDPOINT": hub.url}
    with started(tmp_path_factory.mktemp("elsewhere"), "-m", "tests.support.hurried", "serve", **places) as app:
        yield app


def test_a_killed_engine_is_told_and_the_next_run_works(visit: Visit, app: App) -> None:
    page = visit("/?ignore_eos=true&engine=traced&max_new_tokens=32")
    run(page)
    set_slider(page, "max_new_tokens", 1900)
    start(page)
    # before it begins, nobody would miss the engine; and its 1,900 tokens take longer than this
    expect(page.locator(".reason")).to_contain_text("Live,")
    app.engine().kill()
    expect(page.locator("#message [role=alert]")).to_contain_text("process died", timeout=WAIT)
    page.wait_for_selector(".race[data-state=failed]")
    expect(page.locator(".figures-card")).to_be_hidden()
    expect(page.locator(".race .share")).to_be_hidden()
    set_slider(page, "max_new_tokens", 32)
    run(page)
    assert len(downloaded(page).plain.token_ids) == 32


def test_the_catalogue_says_what_is_here_and_fetches_the_rest(visit: Visit, hub: Hub) -> None:
    page = models_tab(visit())
    expect(page.locator(".entry h3")).to_have_text([entry.title for entry in catalogue()])
    expect(card(page, "story-pair").locator(".badge.yes")).to_have_text("on this machine")
    expect(card(page, "story-pair").locator("button")).to_have_text("Use this pair")
    half = card(page, "dolly-v2-12b")
    expect(half.locator("button")).to_have_text("Download the draft, 1.6 GB")
    expect(half.locator("code")).to_have_text(
        "optimum-cli export openvino --model databricks/dolly-v2-12b --weight-format int8"
    )
    for entry in catalogue():
        if not entry.supported:
            expect(card(page, entry.name).locator(".badge.no")).to_have_text("not supported")
            expect(card(page, entry.name)).to_contain_text(str(entry.reason))
            expect(card(page, entry.name).locator("button, code")).to_have_count(0)
    page.click("#runtime button")
    expect(page.locator("#cache_size")).to_be_visible()
    assert is_no_wider_than(page, 1440)
    assert_fetched_and_used(page, hub)


def assert_fetched_and_used(page: Page, hub: Hub) -> None:
    """A download is stopped, resumed, and used."""
    fetch = card(page, ENTRY.name).locator("button")
    expect(fetch).to_have_text("Download 5.5 GB")
    sizes = {file.name: file.stat().st_size for file in (FIXTURES / "qwen3" / "target").iterdir()}
    first = 2**18  # bytes of the weights that arrive and are written before the Hub falls silent
    hub.stall_after[WEIGHTS] = first + 2**16
    fetch.click()
    bar = page.locator("#download progress")
    expect(bar).to_have_attribute("max", str(sum(sizes.values())))
    expect(bar).to_have_js_property("value", sum(sizes.values()) - sizes[WEIGHTS] + first)
    expect(page.locator("#download")).to_contain_text(re.compile(r"Qwen3-8B-int4-ov: \d+ kB of \d+ kB"))
    page.click("#cancel-download")
    expect(page.locator("#download")).to_contain_text("Stopped. Downloaded files are kept")
    expect(page.locator("#cancel-download")).to_be_hidden()
    expect(fetch).to_have_text("Download 5.5 GB")
    hub.stall_after.clear()
    fetch.click()
    expect(page.locator("#download")).to_have_text(f"{ENTRY.title} is on this machine.")
    assert hub.ranges == [f"{WEIGHTS} from {first}"]
    expect(fetch).to_have_text("Use this pair")
    fetch.click()
    name = " + ".join(str(source.repository) for source in ENTRY.sources)
    expect(page.locator("#header")).to_contain_text(name)
    open_tab(page, "Compare")
    run(page)
    assert downloaded(page).pair.name == name


def test_a_model_of_the_hub_is_looked_for_fetched_and_listed(visit: Visit) -> None:
    page, fetch = models_tab(visit()), ("Look for it on the Hub", re.compile(r"Download somebody/model, \d+ kB"))
    page.fill("#target input", "somebody/model")
    page.keyboard.press("Enter")
    expect(page.locator("#use")).to_be_disabled()
    for text in fetch:
        expect(page.locator("#offer button")).to_have_text(text)
        page.click("#offer button")
    expect(page.locator("#download")).to_have_text("somebody/model is on this machine.")
    expect(page.locator("#use")).to_be_enabled()
    expect(page.locator("#offer button")).to_have_count(0)
    choose(page, target="somebody/model")


def test_a_pair_that_cannot_be_loaded_leaves_the_one_before_in_use(visit: Visit) -> None:
    page = visit(LLAMA)
    run(page)
    repeated(page)
    outcome, before = page.locator(".outcome").text_content(), downloaded(page)
    open_tab(page, "Models")
    for target, reason in (("refused/target", "OpenVINO"), ("story-pair/target", "have different tokenizers")):
        choose(page, target=target)
        page.click("#use")
        alert = page.locator("#pair-message [role=alert]")
        expect(alert).to_contain_text(reason)
        expect(alert).to_contain_text("llama/target + llama/draft is still in use.")
        expect(page.locator("#header")).to_contain_text("llama/target + llama/draft")
        expect(page.locator("#use")).to_be_enabled()
    open_tab(page, "Compare")
    assert page.locator(".outcome").text_content() == outcome
    assert downloaded(page) == before
    run(page)
    assert downloaded(page).pair == before.pair
