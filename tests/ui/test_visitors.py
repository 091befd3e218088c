from collections.abc import Iterator
from itertools import pairwise
from time import monotonic

import httpx
import psutil
import pytest
from gradio_client import Client

from specdemo.exports import schema
from tests.support.browser import App, started
from tests.support.visitors import Visitor

SESSIONS, VISITS = 5, 8
PROXY = "socks5://192.0.2.1:1080"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Set proxies in the environment, which the app must not use for its own page."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "models").mkdir()
    arguments = ("-m", "tests.support.scripted_app", folder / "models", str(SESSIONS))
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"), PROXY)
    with started(folder, *arguments, log=folder / "log", **proxies) as app:
        yield app


@pytest.fixture
def http(app: App) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=app.url, timeout=120) as http:
        yield http


def test_the_endpoint_returns_one_comparison(http: httpx.Client) -> None:
    client = Client(str(http.base_url), verbose=False)
    comparison = schema.from_json(client.predict(prompt="Say", max_new_tokens=16, api_name="/compare"))
    assert len(comparison.plain.token_ids) == 16
    with pytest.raises(Exception, match="The prompt is empty"):
        client.predict(prompt=" ", api_name="/compare")
    called = Visitor(http).compare("Say", 8)
    assert called is not None
    assert len(schema.from_json(called).plain.token_ids) == 8


def test_a_dropped_connection_frees_the_engine(http: httpx.Client) -> None:
    leaves, stays = Visitor(http), Visitor(http)
    for visitor in (leaves, stays):
        visitor.opens()
    began = monotonic()
    assert leaves.compare("Say", 2000, leave=True) is None
    assert leaves.runs("process_generating", max_new_tokens=2000, ignore_eos=True)["success"]
    assert stays.runs(max_new_tokens=4)["success"]
    assert monotonic() - began < 15  # both comparisons take 40 s


def test_only_the_latest_visitors_keep_their_session(http: httpx.Client, app: App) -> None:
    first, resident = Visitor(http), []
    assert first.opens()["success"]
    assert first.runs(max_new_tokens=4)["success"]
    for _ in range(3):
        for _ in range(VISITS):
            assert Visitor(http).opens()["success"]
        resident.append(psutil.Process(app.process.pid).memory_info().rss)
    growth = [after - before for before, after in pairwise(resident)]
    assert min(growth) < VISITS * 0.1e6  # a visitor whose state is kept takes 0.4 MB, and would so each time
    forgotten = first.runs(max_new_tokens=4)
    assert not forgotten["success"]
    assert "This session has expired. Reload the page." in forgotten["output"]["error"]
    assert first.opens()["success"]
    assert first.runs(max_new_tokens=4)["success"]


def test_the_end_of_the_page_during_a_run_is_no_error(http: httpx.Client, app: App) -> None:
    visitor = Visitor(http)
    visitor.opens()
    visitor.join("find", visitor.values("find", prompt="Say", engine="traced", max_new_tokens=400)).raise_for_status()
    messages = visitor.messages()  # which it still reads when the page ends
    assert any(message["msg"] == "process_generating" for message in messages)
    app.process.terminate()  # so this test is the last one
    app.process.wait(20)
    messages.close()
    log = (app.outbound.parent / "log").read_text()
    assert log == f"The page is at {app.url}; press Ctrl+C to end it.\n", "of all tests"
