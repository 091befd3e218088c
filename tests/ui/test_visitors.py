"""Visitors of a running page cannot disturb it or each other; without a browser."""

import json
from collections.abc import Iterator
from time import monotonic

import httpx
import pytest
from gradio_client import Client

from specdemo.exports import schema
from tests.support.browser import App, started
from tests.support.visitors import API, RunningPage, Visitor

SESSIONS = 5
EVIL = {"Origin": "https://evil.example"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    folder = tmp_path_factory.mktemp("page")
    with started(folder, "-m", "tests.support.visitors", folder, str(SESSIONS)) as app:
        yield app


@pytest.fixture(scope="module")
def page(running: App) -> Iterator[RunningPage]:
    with httpx.Client(base_url=running.url, timeout=120) as http:
        yield RunningPage(http)


def asked(page: RunningPage, tokens: int) -> str:
    """Request a comparison from the endpoint, as any HTTP client can; returns the path of its result."""
    chosen = {"prompt": "Say", "max_new_tokens": tokens, "ignore_eos": True}
    parameters = page.get(f"{API}/info").json()["named_endpoints"]["/compare"]["parameters"]
    names = [(parameter["parameter_name"], parameter.get("parameter_default")) for parameter in parameters]
    reply = page.post("/call/compare", json={"data": [chosen.get(name, default) for name, default in names]})
    return f"{API}/call/compare/{reply.json()['event_id']}"


def test_the_endpoint_returns_one_comparison(page: RunningPage) -> None:
    client = Client(str(page.http.base_url), verbose=False)
    comparison = schema.from_json(client.predict(prompt="Say", max_new_tokens=16, api_name="/compare"))
    assert len(comparison.plain.token_ids) == 16
    with pytest.raises(Exception, match="The prompt is empty"):
        client.predict(prompt=" ", api_name="/compare")
    with page.http.stream("GET", asked(page, 8)) as stream:
        lines = list(stream.iter_lines())
    data = lines[lines.index("event: complete") + 1].removeprefix("data: ")
    assert len(schema.from_json(json.loads(data)[0]).plain.token_ids) == 8


def test_a_client_that_drops_frees_the_engine(page: RunningPage) -> None:
    with page.http.stream("GET", asked(page, 2000)) as stream:
        assert next(stream.iter_lines()).startswith("event: generating")
    began = monotonic()
    with page.http.stream("GET", asked(page, 4)) as stream:
        assert "event: complete" in list(stream.iter_lines())
    assert monotonic() - began < 20  # the whole comparison takes 45 s


def test_a_visitor_that_drops_frees_the_engine(page: RunningPage) -> None:
    leaves, stays = Visitor(page), Visitor(page)
    for visitor in (leaves, stays):
        visitor.opens()
    began = monotonic()
    with pytest.raises(TimeoutError):
        leaves.runs(patience=0.5, max_new_tokens=2000, ignore_eos=True)
    assert stays.runs(max_new_tokens=4)["success"]
    assert monotonic() - began < 20


def test_nothing_runs_beside_the_queue(page: RunningPage) -> None:
    assert page.post("/run/compare", json={"data": ["Say"]}).status_code == 404


def test_no_tab_keeps_a_connection(page: RunningPage) -> None:
    assert page.config["connect_heartbeat"] is False


def test_the_page_is_behind_its_gate(page: RunningPage) -> None:
    assert page.get("/config", headers={"Host": "evil.example"}).status_code == 400
    assert page.get("/config", headers=EVIL).status_code == 403
    assert page.post("/upload", files={"files": b"{}"}, headers=EVIL).status_code == 403
    assert page.post("/upload", files={"files": bytes(11 * 2**20)}).status_code == 413
    assert page.get(f"{API}/runs").status_code == 404


def test_visitors_are_kept_up_to_a_number_and_told_when_they_were_forgotten(page: RunningPage) -> None:
    first = Visitor(page)
    assert first.opens()["success"]
    assert first.runs(max_new_tokens=4)["success"]
    for _ in range(2 * SESSIONS):
        assert Visitor(page).opens()["success"]
    forgotten = first.runs(max_new_tokens=4)
    assert not forgotten["success"]
    assert "This session has expired. Reload the page." in forgotten["output"]["error"]
    assert first.opens()["success"]
    assert first.runs(max_new_tokens=4)["success"]
