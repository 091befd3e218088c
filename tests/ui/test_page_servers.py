"""The page for servers in headless Chromium, on servers that send a token at a time."""

from collections.abc import Iterator
from time import sleep
from typing import Any

import pytest
from playwright.sync_api import expect

from specdemo.records import DraftCounts
from tests.support.browser import (
    App,
    Visit,
    downloaded,
    grown,
    open_tab,
    run,
    set_slider,
    start,
    started,
    stop_before_speculative,
)
from tests.support.fake_server import CHAT, Answer, chat, fake, models

pytestmark = pytest.mark.browser
PAUSE = 0.01  # seconds between tokens: thousands can be stopped
COUNTS = {"draft_n": 8, "draft_n_accepted": 4}  # in llama.cpp's form


def answers(path: str, body: dict[str, Any]) -> Answer | None:
    return Answer(stream=words(body["max_tokens"])) if path == CHAT else models("tiny")


def words(number: int) -> Iterator[Any]:
    for index in range(number):
        sleep(PAUSE)
        yield chat(f" word{index}")
    yield from ({"choices": [], "usage": {"completion_tokens": number}, "timings": COUNTS}, "[DONE]")


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    with fake(answers) as plain, fake(answers) as speculative:
        yield [plain.url, speculative.url]


@pytest.fixture(scope="module")
def app(chromium: str, addresses: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    plain, speculative = addresses
    serve = ("-m", "tests.support.hurried", "serve", "--plain-url", plain)
    with started(tmp_path_factory.mktemp("served"), *serve, SPECDEMO_URL=speculative) as app:
        yield app


def test_servers_race_addresses_stay_secret_and_a_race_stops_in_its_plain_half(
    visit: Visit, addresses: list[str]
) -> None:
    page = visit("/#max_new_tokens=24&ignore_eos=true")
    expect(page.locator("#header")).to_contain_text("server: ")
    for hidden in ("#engine", "#policy", "#num_assistant_tokens", "#sequential"):
        expect(page.locator(hidden)).to_be_hidden()
    run(page)
    comparison = downloaded(page)
    assert len(comparison.plain.tokens) == len(comparison.speculative.tokens) == 24
    assert comparison.speculative.draft_counts == DraftCounts(rounds=19, proposed=8, accepted=4), "as it reports"
    open_tab(page, "Models")
    expect(page.locator("#report")).to_contain_text("A server runs it")
    config = page.request.get(page.url.split("/#")[0] + "/config").text()
    for url in addresses:
        address = url.removeprefix("http://")
        assert address not in page.content() + comparison.model_dump_json() + config + page.url
    open_tab(page, "Compare")
    page.click("#open-advanced button")
    set_slider(page, "max_new_tokens", 2000)
    start(page)
    page.wait_for_selector(".race[data-state=playing]")
    grown(page, 3)
    stop_before_speculative(page)
