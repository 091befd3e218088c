"""Access checks in front of the page."""

import gc
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from specdemo.ui import limits
from specdemo.ui.limits import A_MINUTE, OPEN, SIGN_INS, Addresses
from specdemo.ui.middleware import BODY_BYTES, TEXT_CHARACTERS, checks, is_loopback
from specdemo.ui.uploads import FILE_BYTES, UPLOADS, UploadLimits, delete_older, visitors_files

JOIN = "/gradio_api/queue/join"
UPLOAD = "/gradio_api/upload"
EVIL = "https://evil.example"


async def answer(request: Request) -> PlainTextResponse:
    await request.body()
    return PlainTextResponse("done", 422 if b"refuse" in await request.body() else 200)


class Waiting(dict[str, Any]):
    bytes = 0


def client(
    url: str,
    host: str | None = None,
    *allowed: str,
    address: str = "testclient",
    uploads: UploadLimits = UPLOADS,
) -> TestClient:
    """Checks in front of an application that answers everything and has nothing under way."""
    every = Route("/{path:path}", answer, methods=["GET", "POST", "PUT"])
    app = Starlette(routes=[every], middleware=checks(host, allowed, uploads))
    queue = SimpleNamespace(
        pending_messages_per_session={"known": []},
        event_ids_to_events=Waiting(),
        pending_event_ids_session=defaultdict(set, busy=set(range(12))),
    )
    vars(app).update(auth=None, tokens={}, cookie_id="1", get_blocks=lambda: SimpleNamespace(_queue=queue))
    return TestClient(app, base_url=url, client=(address, 50000))


def events_of(page: TestClient) -> Any:
    """Return what is under way, by id."""
    return cast(Any, page.app).get_blocks()._queue.event_ids_to_events


def upload(page: TestClient, *files: bytes) -> Any:
    """Send files in a form."""
    return page.post(UPLOAD, files=[("files", ("a.json", file)) for file in files])


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
    assert client("http://localhost:7860", "0.0.0.0").post(JOIN, headers=headers, json={}).text == "done"


def test_a_proxy_on_plain_http_is_named() -> None:
    headers = {"Origin": "http://demo.example.org"}
    assert client("http://localhost:7860").post(JOIN, headers=headers, json={}).status_code == 403
    page = client("http://localhost:7860", None, "demo.example.org")
    assert page.post(JOIN, headers=headers, json={}).text == "done"


def test_requests_have_a_size() -> None:
    page = client("http://localhost")
    assert upload(page, bytes(FILE_BYTES)).text == "done"
    assert page.post(JOIN, content=b"{}".ljust(BODY_BYTES)).text == "done"
    for refused in (upload(page, bytes(FILE_BYTES + 2**17)), page.post(JOIN, content=bytes(BODY_BYTES + 1))):
        assert refused.status_code == 413
        assert "bytes; send at most" in refused.text
    endless = page.post(JOIN, content=iter([b"without a length"]))
    assert (endless.status_code, "send Content-Length" in endless.text) == (411, True)


def test_no_other_route_takes_what_uploads_may() -> None:
    page, large = client("http://localhost"), bytes(2 * BODY_BYTES)
    for path in ("run/upload", "upload/", "call/upload", "component_server/upload"):
        assert page.post(f"/gradio_api/{path}", content=large).status_code in (404, 413)
    assert page.post("/gradio_api/upload", content=large).status_code == 415, "only forms"
    assert page.post("/gradio_api/upload", json={"a": 1}).status_code == 415


def test_a_model_is_sent_to_a_page_of_this_machine_alone() -> None:
    large = bytes(BODY_BYTES + 1)
    here, elsewhere = client("http://localhost"), client("http://demo.example", None, "demo.example")
    assert here.put("/model/my model.Q4_1.gguf", content=large).text == "done"
    assert elsewhere.put("/model/a.gguf", content=b"a").status_code == 404
    assert client("http://192.0.2.1", "192.0.2.1").put("/model/a.gguf", content=b"a").status_code == 404
    assert here.put("/model/a.gguf", content=b"a", headers={"Origin": EVIL}).status_code == 403
    hidden_or_elsewhere = (".gguf", ".a.gguf", "a%2Fb.gguf", "..%2Fa.gguf", "a%5Cb.gguf")
    for name in (*hidden_or_elsewhere, "a.bin", "a%00.gguf", "b" * 300 + ".gguf"):
        assert here.put(f"/model/{name}", content=b"a").status_code == 404, name


def test_a_form_holds_one_file() -> None:
    page = client("http://localhost")
    assert upload(page, b"a" * 5000).text == "done"
    refused = upload(page, *[b"a"] * 1000)
    assert (refused.status_code, "one file" in refused.text) == (400, True)


@pytest.mark.parametrize(
    "names", ["boundary=a; boundary=b", 'x="; boundary=a"; boundary=b', "boundary*=a; boundary=b", "BOUNDARY=b"]
)
def test_parts_of_a_form_are_those_that_gradio_finds(names: str) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.json"\r\n\r\n{}\r\n'
    headers = {"Content-Type": f"multipart/form-data; {names}"}
    page = client("http://localhost")
    assert page.post(UPLOAD, content=part + b"--b--", headers=headers).text == "done"
    assert page.post(UPLOAD, content=part * 1000 + b"--b--", headers=headers).status_code == 400


def test_an_upload_has_no_name_to_follow_it_by() -> None:
    """Gradio would keep it, and the name of the file, until somebody asks, which the page does not."""
    asked = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["query_string"])
        await PlainTextResponse("done")(scope, receive, send)

    page = Starlette(routes=[Mount("/", app)], middleware=checks(None, ()))
    vars(page).update(auth=None)
    files = {"files": ("a.json", b"{}")}
    assert TestClient(page, base_url="http://localhost").post(f"{UPLOAD}?upload_id=abc", files=files).text == "done"
    assert asked == [b""]


def test_files_of_visitors_have_a_sum_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    page = client("http://localhost", uploads=UploadLimits(bytes=3 * 2**20, fresh_seconds=0))
    for number in range(2):
        (tmp_path / str(number)).write_bytes(bytes(2**20))
    assert upload(page, bytes(2**19)).text == "done"
    (tmp_path / "more").write_bytes(bytes(2**20))
    refused = upload(page, bytes(2**19))
    assert (refused.status_code, "try again in an hour" in refused.text) == (429, True)
    (tmp_path / "more").unlink()
    assert upload(page, bytes(2**19)).text == "done"
    assert upload(client("http://localhost", uploads=UploadLimits(files=2)), b"a").status_code == 429


def test_nothing_is_uploaded_to_a_full_disk() -> None:
    page = client("http://localhost", uploads=UploadLimits(free_bytes=2**63))
    refused = upload(page, b"a")
    assert (refused.status_code, "try again later" in refused.text) == (507, True)
    assert page.post(JOIN, json={}).text == "done"


@pytest.mark.parametrize(
    "path",
    [
        "gradio_api/deep_link?session_hash=a",  # writes a file
        "gradio_api/file=https://example.com/",  # fetches an address
        "gradio_api/file=http%3A//example.com/",
        "gradio_api/proxy=https://a.hf.space/",
        "gradio_api/process_recording",  # starts a program
        "gradio_api/vibe-edit/",
        "gradio_api/custom_component/a/client/component/b",
        "gradio_api/component_server",
        "gradio_api/heartbeat/abc",
        "gradio_api/upload_progress?upload_id=abc",  # keeps the name for ever
        "pwa_icon/9999",  # draws a picture of that size
        "gradio_api/openapi.json",
        "gradio_api/run/compare",
        "openapi.json",
        "monitoring",
        "gradio_api/whatever/the/next/release/adds",
    ],
)
def test_only_routes_that_are_named_are_open(path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert client("http://localhost").request(method, f"/{path}").status_code == 404


def test_before_signing_in_only_what_that_needs_is_open() -> None:
    page = client("http://localhost")
    app = cast(Starlette, page.app)
    vars(app).update(auth={"me": "secret"}, tokens={"token": "me"})
    for path in ("/", "/assets/index.js", "/theme.css", "/gradio_api/login_check", "/readyz"):
        assert page.get(path).text == "done", path
    for path in ("/config", "/gradio_api/info", "/gradio_api/app_id", "/gradio_api/file=/tmp/a", "/logout"):
        assert page.get(path).status_code == 401, path
    for path in ("cancel", "reset", "queue/join", "run/predict", "call/compare", "upload"):
        refused = page.post(f"/gradio_api/{path}", json={})
        assert (refused.status_code, "detail" in refused.json()) == (401, True), path
    page.cookies["access-token-unsecure-1"] = "forged"
    assert page.get("/config").status_code == 401
    page.cookies["access-token-unsecure-1"] = "token"
    assert page.get("/config").text == "done"


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"session_hash": "a" * 64, "data": ["x" * (TEXT_CHARACTERS - 200)]}, 200),
        ({"event_data": {"record": "x" * (TEXT_CHARACTERS + 1)}}, 200),  # a run that is shared
        ({"session_hash": "a" * 65}, 400),
        ({"session_hash": "a/b"}, 400),
        ({"session_hash": {"a": 1}}, 400),
        ({"event_id": "a" * 65}, 400),
        ({"data": ["x" * (TEXT_CHARACTERS + 1)]}, 413),
        ({"data": [{"turns": [{"prompt": "x" * 100_000}] * 6}]}, 413),
        ({"data": [[1] * 30_000]}, 413),
        ({"event_data": [[]] * 30_000}, 413),
        ([1], 400),
        ({"session_hash": "busy"}, 429),
    ],
    ids=range(12),
)
def test_an_event_has_names_texts_and_values_within_limits(event: Any, status: int) -> None:
    answered = client("http://localhost").post(JOIN, json=event)
    assert (answered.status_code, len(answered.text) < 200) == (status, True)


def test_a_large_event_is_refused_without_a_search_for_garbage() -> None:
    """Of which each would look at all objects of the server, and everyone would wait."""
    searches = []

    def searched(phase: str, info: dict[str, int]) -> None:
        searches.append(info["generation"])

    body, page = json.dumps({"event_data": [[]] * 200_000}, separators=(",", ":")), client("http://localhost")
    gc.callbacks.append(searched)
    try:
        assert page.post(JOIN, content=body).status_code == 413
    finally:
        gc.callbacks.remove(searched)
    assert len(searches) < 50
    assert gc.isenabled()


def test_a_body_that_is_no_json_is_refused() -> None:
    for body in (b"", b"{", b"[" * 50_000, b'{"a": "\xff"}', b'{"a": "\\ud800"}'):
        assert client("http://localhost").post(JOIN, content=body).status_code == 400


def test_a_session_that_the_queue_does_not_know_is_told_so() -> None:
    page = client("http://localhost")
    told = page.get("/gradio_api/queue/data?session_hash=gone")
    assert "Reload the page" in told.text
    assert told.headers["content-type"].startswith("text/event-stream")
    assert page.get("/gradio_api/queue/data?session_hash=known").text == "done"
    assert "Reload the page" in page.get("/gradio_api/call/compare/gone").text


def test_an_address_may_do_so_much_in_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "monotonic", lambda: 1e9)  # a slow machine would take longer than that
    elsewhere, here = (client("http://lab", "0.0.0.0", address=address) for address in ("10.0.0.7", "127.0.0.1"))
    assert {here.post(JOIN, json={}).status_code for _ in range(A_MINUTE + 20)} == {200}, "perhaps a proxy's"
    answers = [elsewhere.post(JOIN, json={}) for _ in range(A_MINUTE + 1)]
    assert {answer.status_code for answer in answers[:A_MINUTE]} == {200}
    assert "wait a minute" in answers[-1].text
    assert elsewhere.get("/").text == "done", "reading goes on"
    assert client("http://lab", "0.0.0.0", address="10.0.0.8").post(JOIN, json={}).text == "done"


def test_an_address_has_so_much_waiting_at_once() -> None:
    def waiting(host: str) -> SimpleNamespace:
        return SimpleNamespace(request=SimpleNamespace(client=SimpleNamespace(host=host)))

    for address, neighbour, other in (
        ("10.0.0.7", "10.0.0.7", "10.0.0.8"),
        ("2001:db8::1", "2001:db8::2", "2001:db9::1"),
    ):
        page = client("http://lab", "0.0.0.0", address=address)
        events = events_of(page)
        events.update({str(number): waiting(neighbour) for number in range(OPEN - 1)}, other=waiting(other))
        assert page.post(JOIN, json={}).text == "done"
        events["last"] = waiting(address)
        refused = page.post(JOIN, json={})
        assert (refused.status_code, "from your address" in refused.text) == (429, True)
        assert page.post("/gradio_api/cancel", json={}).text == "done"
    here = client("http://lab", "0.0.0.0", address="127.0.0.1")
    events_of(here).update({str(number): waiting("127.0.0.1") for number in range(OPEN)})
    assert here.post(JOIN, json={}).text == "done"


def test_sign_ins_are_limited_sooner() -> None:
    page = client("http://lab", "0.0.0.0", address="2001:db8::1")
    assert [page.post("/login").status_code for _ in range(SIGN_INS + 1)] == [200] * SIGN_INS + [429]


def test_an_address_has_so_much_open_at_once() -> None:
    addresses = Addresses()
    with ExitStack() as busy:
        for _ in range(OPEN):
            assert not addresses.too_much("10.0.0.7", changes=False, sign_in=False)
            busy.enter_context(addresses.busy("10.0.0.7"))
        assert addresses.too_much("10.0.0.7", changes=False, sign_in=False)
        assert not addresses.too_much("::ffff:127.0.0.1", changes=False, sign_in=False)
    assert not addresses.too_much("10.0.0.7", changes=False, sign_in=False)


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


def test_the_folder_of_a_server_that_was_killed_is_deleted_at_the_next_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    code = "from specdemo.ui.uploads import visitors_files\n"
    code += "with visitors_files() as folder: (folder / 'a').touch(); print(folder, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True) as server:
        assert server.stdout is not None
        folder = Path(server.stdout.readline().strip())
        with visitors_files():
            assert (folder / "a").exists(), "it runs"
        server.kill()
    other = tmp_path / "specdemo-somebody-elses-folder"
    other.mkdir()
    with visitors_files():
        assert not folder.exists()
    assert other.exists()
