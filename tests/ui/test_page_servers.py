"""The page for servers in headless Chromium, on llama.cpp servers with a tiny model."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from specdemo.records import Servers
from tests.support.browser import App, Visit, downloaded, open_tab, run, started

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def app(chromium: str, llama_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    plain, speculative = llama_servers.plain, llama_servers.speculative
    assert plain is not None
    assert speculative is not None
    folder = tmp_path_factory.mktemp("served")
    serve = ("-m", "tests.support.hurried", "serve", "--plain-url", plain.url)
    with started(folder, *serve, SPECDEMO_URL=speculative.url) as app:
        yield app


def test_servers_race_and_addresses_stay_secret(visit: Visit, llama_servers: Servers) -> None:
    page = visit("/#max_new_tokens=24&ignore_eos=true")
    expect(page.locator("#header")).to_contain_text("server: llama.cpp")
    for hidden in ("#engine", "#policy", "#num_assistant_tokens", "#sequential"):
        expect(page.locator(hidden)).to_be_hidden()
    run(page)
    comparison = downloaded(page)
    assert comparison.trace_source == "reported"
    assert len(comparison.plain.tokens) == len(comparison.speculative.tokens) == 24
    assert any(step.accepted for step in comparison.speculative.rounds)
    open_tab(page, "Models")
    expect(page.locator("#report")).to_contain_text("A server runs it")
    config = page.request.get(page.url.split("/#")[0] + "/config").text()
    for server in (llama_servers.plain, llama_servers.speculative):
        assert server is not None
        address = server.url.removeprefix("http://")
        assert address not in page.content() + comparison.model_dump_json() + config + page.url
