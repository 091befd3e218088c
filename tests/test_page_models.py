"""The Models tab and chats as a visitor meets them: real models, a Hub on this machine, headless Chromium."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from specdemo.models.catalogue import catalogue, find
from specdemo.records import Turn
from tests.browser import ROOT, App, downloaded, finish, open_tab, run, start, started
from tests.hub import Hub
from tests.test_chat import chat_pair

pytestmark = [pytest.mark.openvino, pytest.mark.browser]
FIXTURES = ROOT / "tests" / "fixtures"
WEIGHTS = "openvino_model.bin"
ENTRY = find("qwen3-8b")
LLAMA = "/#target=llama/target&draft=llama/draft&max_new_tokens=32&ignore_eos=true"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    """A Hub with tiny models under the names of the entry's."""
    names = [str(source.repository) for source in ENTRY.sources]
    with Hub({name: FIXTURES / "qwen3" / role for name, role in zip(names, ("target", "draft"), strict=True)}) as hub:
        yield hub


@pytest.fixture(scope="module")
def app(chromium: str, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """The app with models of its user's own."""
    folder = tmp_path_factory.mktemp("elsewhere")
    add_models(folder / "models")
    with serving(folder, hub, "--models-dir", folder / "models") as app:
        yield app


def serving(folder: Path, hub: Hub, *options: str | Path, **environment: str):
    places = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder), "HF_HUB_CACHE": str(folder / "hub")}
    return started(folder, "-m", "specdemo", "serve", *options, **places, HF_HUB_OFFLINE="0", **environment)


def add_models(folder: Path) -> None:
    """Two families; a target that OpenVINO refuses though it looks whole; a chat whose answers are full of markup."""
    for name in ("chat", "refused"):
        (folder / name).mkdir(parents=True)
    for family in ("qwen3", "llama"):
        shutil.copytree(FIXTURES / family, folder / family)
    refused = shutil.copytree(FIXTURES / "llama" / "target", folder / "refused" / "target") / "openvino_model.xml"
    refused.write_text(refused.read_text().replace('type="MatMul"', 'type="NoSuchOperation"'))
    pair = chat_pair(folder / "chat")
    for model in (pair.target, pair.draft):
        detokenizer = model.path / "openvino_detokenizer.bin"
        words = detokenizer.read_bytes()
        detokenizer.unlink()
        detokenizer.write_bytes(words.replace(b" and", b"<hr>"))


def models_tab(page: Page) -> Page:
    open_tab(page, "Models")
    expect(page.locator(".catalogue .entry")).to_have_count(len(catalogue()))
    return page


def is_no_wider_than(page: Page, width: int) -> bool:
    return page.evaluate("document.documentElement.scrollWidth") == width


def card(page: Page, name: str) -> Locator:
    return page.locator(f".catalogue [data-name='{name}']")


def choose(page: Page, **names: str) -> None:
    for control, name in names.items():
        page.click(f"#{control} input")
        page.get_by_role("option", name=name, exact=True).click()
        expect(page.get_by_role("listbox")).to_have_count(0)


def test_the_catalogue_says_what_is_here_and_what_to_do_for_the_rest(visit) -> None:
    page = models_tab(visit())
    expect(page.locator(".entry h3")).to_have_text([entry.title for entry in catalogue()])
    expect(card(page, "story-pair").locator(".badge.yes")).to_have_text("on this machine")
    expect(card(page, "story-pair").locator("button")).to_have_text("Use this pair")
    half = card(page, "dolly-v2-12b")
    expect(half.locator("button")).to_have_text("Download the draft, 1.6 GB")
    expect(half.locator("code")).to_have_text(
        "python -m specdemo models convert databricks/dolly-v2-12b --weight-format int8 --models-dir DIR"
    )
    for entry in catalogue():
        if not entry.supported:
            expect(card(page, entry.name).locator(".badge.no")).to_have_text("not supported")
            expect(card(page, entry.name)).to_contain_text(str(entry.reason))
            expect(card(page, entry.name).locator("button, code")).to_have_count(0)
    page.click("#runtime button")
    expect(page.locator("#cache_size")).to_be_visible()
    assert is_no_wider_than(page, 1440)


def test_a_download_is_stopped_gone_on_with_and_used(visit, app: App, hub: Hub) -> None:
    page = models_tab(visit())
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
    expect(page.locator("#download")).to_contain_text("Stopped. What was fetched is kept")
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
    assert app.other_hosts() == []


def test_a_pair_from_the_lists_is_used_on_every_tab_and_remembered(visit, app: App) -> None:
    page = models_tab(visit("/#max_new_tokens=32&ignore_eos=true"))
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
    link = page.url.removeprefix(app.url)
    for again in (page.goto(app.url + "/") and page, visit(link)):  # from the browser's store; from the link
        expect(again.locator("#header")).to_have_text(shown)
        open_tab(again, "Models")
        expect(again.locator("#target input")).to_have_value("llama/target")
        expect(again.locator("#draft input")).to_have_value("llama/draft")


def test_a_pair_that_cannot_be_loaded_leaves_the_one_before_in_use(visit) -> None:
    page = visit(LLAMA)
    run(page)
    verdict, before = page.locator(".outcome").text_content(), downloaded(page)
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
    assert page.locator(".outcome").text_content() == verdict
    assert downloaded(page) == before
    run(page)
    assert downloaded(page).pair == before.pair


def test_a_link_to_what_is_not_here_says_so_and_starts_with_the_default(browser: Browser, visit) -> None:
    context = browser.new_context()
    for link, message in (
        ("target=../../etc", "There is no model '../../etc' on this machine"),
        ("device=TPU", "This machine has no device 'TPU'; choose one of"),
    ):
        page = visit(f"/#{link}", context=context)
        expect(page.locator("#message [role=alert]")).to_contain_text(f"The link's pair cannot be used. {message}")
        expect(page.locator("#header")).to_contain_text("story-pair ·")
    context.close()


@pytest.fixture(scope="module")
def closed(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """The app as a Space starts it, without downloads."""
    with serving(tmp_path_factory.mktemp("closed"), hub, SPACE_ID="somebody/specdemo") as app:
        yield app


def test_where_downloads_are_off_there_is_a_command_and_no_way_around(visit, closed: App, hub: Hub) -> None:
    page = models_tab(visit(app=closed))
    expect(page.locator("button[data-action=download]")).to_have_count(0)
    expect(card(page, ENTRY.name).locator("code")).to_have_text(f"python -m specdemo models download {ENTRY.name}")
    served = hub.served.total()
    forged = "<button data-action='download'>Download</button>"
    card(page, ENTRY.name).evaluate("(card, html) => card.insertAdjacentHTML('beforeend', html)", forged)
    card(page, ENTRY.name).locator("button").click()
    expect(page.locator("#download")).to_contain_text("Downloads from this page are switched off")
    assert hub.served.total() == served
    assert closed.other_hosts() == []


def test_a_chat_goes_on_from_turn_to_turn(visit) -> None:
    page = visit("/#max_new_tokens=64&ignore_eos=true", width=390)
    for_chats = page.locator(":is(#apply_chat_template, #enable_thinking) input")
    page.click("#more button")
    expect(page.locator("#ignore_eos input")).to_be_visible()
    expect(for_chats).to_have_count(0)
    models_tab(page)
    choose(page, target="chat/target", draft="chat/draft")
    expect(page.locator("#report table")).to_be_visible()
    page.click("#runtime button")
    expect(page.locator("#cache_size")).to_be_visible()
    assert is_no_wider_than(page, 390)
    page.click("#use")
    expect(page.locator("#header")).to_contain_text("chat/target + chat/draft")
    open_tab(page, "Compare")
    expect(for_chats).to_have_count(2)
    page.fill("#prompt textarea", "<b>Who</b> is there?")
    run(page)
    first = Turn(prompt="<b>Who</b> is there?", answer=downloaded(page).plain.text.strip())
    assert "<hr>" in first.answer
    page.click("#continue")
    expect(page.locator("#conversation .said")).to_have_text([first.prompt])
    assert page.locator("#conversation .answer").all_text_contents() == [first.answer]
    page.fill("#prompt textarea", "And then?")
    run(page)
    assert downloaded(page).history == (first,)
    assert page.locator("#conversation :is(b, hr), .race :is(.text b, hr)").count() == 0
    assert is_no_wider_than(page, 390)
    page.click("#anew")
    expect(page.locator("#conversation li")).to_have_count(0)
    run(page)
    assert downloaded(page).history == ()
    page.reload()
    page.click("#more button")
    expect(for_chats).to_have_count(2)


def test_two_visitors_run_their_own_pairs(visit) -> None:
    pages = {"story-pair": visit(), "llama/target + llama/draft": visit(LLAMA)}
    for page in pages.values():
        start(page)
    for name, page in pages.items():
        finish(page)
        assert downloaded(page).pair.name == name
