"""Who may ask the page for what."""

import os
import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from specdemo.ui import middleware as module
from specdemo.ui.files import delete_older, visitors_files
from specdemo.ui.middleware import BODY_BYTES, FILE_BYTES, gate, is_loopback

EVIL = "https://evil.example"


async def answer(request: Request) -> PlainTextResponse:
    await request.body()
    return PlainTextResponse("done", 422 if b"refuse" in await request.body() else 200)


def client(url: str, host: str | None = None, *allowed: str) -> TestClient:
    route = Route("/{path:path}", answer, methods=["GET", "POST"])
    return TestClient(Starlette(routes=[route], middleware=gate(host, allowed)), base_url=url)


@pytest.mark.parametrize("url", ["http://localhost:7860", "http://127.0.0.1:7860", "http://[::1]:7860"])
def test_a_page_of_this_machine_answers_under_its_own_names_alone(url: str) -> None:
    page = client(url)
    assert page.get("/config").text == "done"
    for host in ("evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.evil.example", ""):
        assert page.get("/config", headers={"Host": host}).status_code == 400, host


def test_a_page_of_a_network_answers_under_any_name_until_its_names_are_given() -> None:
    assert client("http://lab:7860", "0.0.0.0").get("/").text == "done"
    page = client("http://lab:7860", "0.0.0.0", "lab", "*.example.org")
    for host, status in (("lab", 200), ("demo.example.org", 200), ("localhost", 200), ("evil.example", 400)):
        assert page.get("/", headers={"Host": host}).status_code == status, host


def test_where_a_page_listens_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_SERVER_NAME", "0.0.0.0")
    assert client("http://lab").get("/").text == "done"


@pytest.mark.parametrize(
    ("address", "expected"),
    [("localhost", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False), ("lab", False)],
)
def test_which_addresses_only_this_machine_reaches(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://localhost"},
        {"Origin": "http://localhost:7860", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_no_other_sites_page_can_have_a_browser_post(headers: dict[str, str]) -> None:
    refused = client("http://localhost:7860").post("/gradio_api/queue/join", headers=headers)
    assert refused.status_code == 403
    assert "open the page itself" in refused.text


def test_no_other_sites_page_can_read() -> None:
    page = client("http://lab:7860", "0.0.0.0")
    assert page.get("/config", headers={"Origin": EVIL}).status_code == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert page.get("/", headers=link).text == "done"


@pytest.mark.parametrize(
    "headers",
    [
        {},  # no browser
        {"Origin": "http://localhost:7860"},
        {"Origin": "https://demo.example.org", "Sec-Fetch-Site": "same-origin"},  # behind a proxy that renames it
        {"Origin": "https://space.hf.example", "Host": "10.0.0.7"},  # as a Space may see itself
    ],
)
def test_the_page_itself_can_post(headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_HOST", "space.hf.example")
    assert client("http://localhost:7860", "0.0.0.0").post("/gradio_api/queue/join", headers=headers).text == "done"


def test_a_proxy_on_plain_http_is_named() -> None:
    headers = {"Origin": "http://demo.example.org"}
    assert client("http://localhost:7860").post("/", headers=headers).status_code == 403
    assert client("http://localhost:7860", None, "demo.example.org").post("/", headers=headers).text == "done"


def test_requests_have_a_size() -> None:
    page = client("http://localhost")
    assert page.post("/gradio_api/upload", content=bytes(FILE_BYTES)).text == "done"
    assert page.post("/gradio_api/queue/join", content=bytes(BODY_BYTES)).text == "done"
    for path, size in (("/gradio_api/upload", FILE_BYTES + 2**17), ("/gradio_api/queue/join", BODY_BYTES + 1)):
        refused = page.post(path, content=bytes(size))
        assert (refused.status_code, f"{size:,} bytes; send at most" in refused.text) == (413, True)
    endless = page.post("/gradio_api/upload", content=iter([b"without a length"]))
    assert (endless.status_code, "send Content-Length" in endless.text) == (411, True)


def test_uploads_have_a_sum_which_what_was_refused_does_not_count_towards(monkeypatch: pytest.MonkeyPatch) -> None:
    page, size = client("http://localhost"), 2**20
    monkeypatch.setattr(module, "_ALL_UPLOADS", 3 * size)
    for _ in range(5):
        assert page.post("/gradio_api/upload", content=b"refuse".ljust(size)).status_code == 422
    codes = [page.post("/gradio_api/upload", content=bytes(size)).status_code for _ in range(5)]
    assert codes == [200, 200, 200, 429, 429]
    monkeypatch.setattr(module, "AGE", -1)
    assert page.post("/gradio_api/upload", content=bytes(size)).status_code == 200


def test_nothing_is_uploaded_to_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    page = client("http://localhost")
    monkeypatch.setattr(module, "_FREE_BYTES", 2**63)
    refused = page.post("/gradio_api/upload", content=b"")
    assert (refused.status_code, "try again later" in refused.text) == (507, True)
    assert page.post("/gradio_api/queue/join").text == "done"


@pytest.mark.parametrize(
    "path",
    [
        "deep_link?session_hash=a",  # writes a file
        "file=https://example.com/",  # fetches an address
        "file=http%3A//example.com/",
        "proxy=https://a.hf.space/",
        "process_recording",  # starts a program
        "vibe-edit/",
    ],
)
def test_routes_that_the_page_does_not_need_are_closed(path: str) -> None:
    for method in ("GET", "POST"):
        assert client("http://localhost").request(method, f"/gradio_api/{path}").status_code == 404


def test_visitors_files_are_deleted_when_old_and_at_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    with visitors_files(age=0.2, every=0.02) as folder:
        assert os.environ["GRADIO_TEMP_DIR"] == str(folder)
        (folder / "hash").mkdir()
        (folder / "hash" / "mine.json").touch()
        (folder / "tmp123").touch()  # an upload that was broken off
        until = time.monotonic() + 20
        while any(folder.iterdir()):
            assert time.monotonic() < until
            time.sleep(0.02)
        (folder / "new").touch()
    assert list(tmp_path.iterdir()) == []
    assert os.environ["GRADIO_TEMP_DIR"] == str(tmp_path)


def test_what_is_young_stays(tmp_path: Path) -> None:
    (tmp_path / "hash").mkdir()
    (tmp_path / "hash" / "mine.json").touch()
    delete_older(tmp_path, 60)
    assert [path.name for path in tmp_path.rglob("*")] == ["hash", "mine.json"]
