import errno
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock
from uuid import uuid4

import gradio as gr
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from specdemo.cli import main
from specdemo.errors import UsageError
from specdemo.models.catalogue import bundled_pair
from specdemo.racing.worker import Worker
from specdemo.ui import gate, server
from specdemo.ui.gate import TEXT_CHARACTERS, Events, Gate, only_here
from specdemo.ui.page import build_page, look, routes
from specdemo.ui.server import BODY_BYTES, FILE_BYTES, application, listening, visitors_files
from tests.support.visitors import API, apart

JOIN, UPLOAD = f"{API}/queue/join", f"{API}/upload"
MESSAGES = f"{API}/queue/data?session_hash=mine"
FORM = {"files": ("../a b\u00e9.json", b"{}")}
JSON = {"Content-Type": "application/json"}
CANCEL = {"session_hash": "mine", "fn_index": 1, "event_id": "none"}


async def everything(request: Request) -> Response:
    await request.body()
    return PlainTextResponse("done")


PAGE = Starlette(routes=[Route("/{path:path}", everything, methods=["GET", "POST"])])


PAGES: dict[str, dict[str, Any]] = {
    "local": {"allowed": (), "local": True},
    "open": {"allowed": (), "local": False},
    "named": {"allowed": ("lab", "*.Example.org", "[2001:db8::1]"), "local": False},
}


def events(queue: Any, page: Any = PAGE) -> Starlette:
    return Starlette(routes=Events(page, queue).routes())


# Names and sites


def assert_answers(pages: str, method: str, headers: dict[str, str], *, host: str = "localhost:7860") -> None:
    for name, options in PAGES.items():
        page = TestClient(Gate(PAGE, **options), base_url="http://localhost")
        sent = [(key.encode(), value.encode("latin-1")) for key, value in ({"Host": host} | headers).items()]
        answer = page.request(method, JOIN, headers=sent)
        found = (answer.status_code, "--allowed-host" in answer.text)
        assert found == ((200, False) if name in pages.split() else (403, True)), name


@pytest.mark.parametrize(
    ("pages", "host"),
    [
        *(("", host) for host in ("", " ", "[", "local host", "[::1", "::1", "[::1]a", "[localhost]", "lab,lab")),
        *(("", host) for host in ("evil@localhost", "localhost@", "@localhost", "%6cocalhost", "localhost%00")),
        *(("", host) for host in ("localhost/a", "localhost?a", "localhost#", "localhost.", "lab.", "localhost\xe9")),
        *(("", f"localhost:{port}") for port in ("", "0", "a", "80:80", "65536", "-1", "080")),
        *(("open", host) for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "a_b")),
        *(("open named", host) for host in ("LAB:80", "demo.example.org", "[2001:DB8::1]:80")),
        ("open", "example.org"),
        *(("local open named", host) for host in ("LocalHost", "127.0.0.1:65535", "127.8.9.1", "[::1]", "[::1]:80")),
    ],
)
def test_which_pages_answer_to_a_name(pages: str, host: str) -> None:
    assert_answers(pages, "GET", {}, host=host)


def test_which_pages_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("localhost", "127.8.9.1", "::1", "[::1]"):
        assert only_here(address, ())
        assert not only_here(address, ("demo.example.org",))
    assert not any(only_here(address, ()) for address in ("0.0.0.0", "lab"))
    monkeypatch.setenv("SPACE_HOST", "space.hf.example")
    assert not only_here("localhost", ())


CROSS, SAME = {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize(
    ("posts", "reads", "headers"),
    [
        ("local open named", "local open named", {}),  # no browser
        ("local open named", "local open named", {"Origin": "http://localhost:7860"}),
        ("local open named", "local open named", {"Origin": "http://localhost:7860", **SAME}),
        ("", "local open named", CROSS | {"Sec-Fetch-Mode": "navigate"}),  # a link
        ("", "local open named", {"Sec-Fetch-Site": "same-site"}),
        ("", "", {"Origin": "http://localhost:7860", **CROSS}),
        *(("", "", {"Origin": origin}) for origin in ("https://evil.example", "null", "http://localhost:3000")),
        *(("", "", {"Origin": origin, **CROSS}) for origin in ("http://[::1", "http://a:b", "//")),
        ("", "", {"Origin": "http://evil@localhost:7860", **SAME}),
        *(
            ("open named", "open named", {name: "192.0.2.1"})
            for name in ("X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "X-Real-IP", "Via")
        ),
        # behind nginx, which adds no header and renames `Host`
        ("open named", "open named", {"Origin": "https://demo.example.org", **SAME}),
        ("open named", "open named", {"Origin": "http://localhost.example.org", **SAME}),
        ("named", "named", {"Origin": "https://demo.example.org"}),
    ],
)
def test_which_senders_can_post_and_read(posts: str, reads: str, headers: dict[str, str]) -> None:
    assert_answers(posts, "POST", headers)
    assert_answers(reads, "GET", headers)


def test_a_space_can_post_although_it_sees_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_HOST", "space.hf.example")
    assert_answers("open", "POST", {"Origin": "https://space.hf.example"}, host="10.0.0.7")


# Sizes


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"session_hash": "a" * 64, "data": ["x" * (TEXT_CHARACTERS - 200)]}, 200),
        ({"event_data": {"record": "x" * (TEXT_CHARACTERS + 1)}}, 200),  # a run that is shared
        ({"session_hash": "a" * 65}, 400),
        ({"session_hash": "a/b"}, 400),
        *(({"session_hash": wrong}, 400) for wrong in cast(Any, ({"a": 1}, {}, [], 0, False, None))),
        ({"data": ["x" * (TEXT_CHARACTERS + 1)]}, 422),
        ({"data": [{"turns": [{"prompt": "x" * 50_000}] * 6}]}, 422),
        ({"data": [[1] * 100_000]}, 422),
        ({"prompt": [[]] * 100_000}, 422),  # a value of /call/v2
        ({"event_data": {"name": [[]] * 100_000}}, 422),
        ({"event_data": {"record": [[]] * 100_000}}, 400),
    ],
    ids=range(16),
)
def test_an_event_has_names_and_texts_within_limits(
    served: tuple[gr.Blocks, httpx.Client], event: Any, status: int
) -> None:
    answered = served[1].post(f"{API}/cancel", json=CANCEL | event)
    assert (answered.status_code, len(answered.text) < 200) == (status, True)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"[" * 50_000, b'{"a": "\xff"}', b'{"a": "\\ud800"}', b'{"a": NaN}']
)
def test_an_invalid_event_is_refused(served: tuple[gr.Blocks, httpx.Client], body: bytes) -> None:
    assert served[1].post(JOIN, content=body).status_code == 400


# Events


@pytest.mark.parametrize(
    ("later", "leaves"),
    [(set(), False), ({"2"}, False), ({"2"}, True)],
    ids=["all read", "another event meanwhile", "the client left"],
)
def test_a_session_is_read_once_and_then_keeps_only_later_events(later: set[str], leaves: bool) -> None:
    queue = SimpleNamespace(
        pending_event_ids_session={"mine": {"1"}},
        pending_messages_per_session={"mine": "messages"},
        clean_events=AsyncMock(),
    )

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        assert "Reload the page" in page.get(MESSAGES).text, "while it is being read"
        queue.pending_event_ids_session["mine"] = later
        if leaves:
            raise ClientDisconnect
        await PlainTextResponse("done")(scope, receive, send)

    page, kept = TestClient(events(queue, told), raise_server_exceptions=False), bool(later) and not leaves
    page.get(MESSAGES)
    assert queue.pending_event_ids_session == ({"mine": later} if kept else {})
    assert queue.pending_messages_per_session == ({"mine": "messages"} if kept else {})
    assert queue.clean_events.await_count == leaves, "which ends running ones"


@pytest.mark.parametrize(("session", "waits"), [("mine", True), ("other", False)])
def test_an_event_waits_until_its_browser_knows_that_the_stream_before_has_ended(
    monkeypatch: pytest.MonkeyPatch, session: str, waits: bool
) -> None:
    """Gradio's client would otherwise wait for messages that it does not fetch: Stop stayed hidden."""
    slept = AsyncMock()
    monkeypatch.setattr(gate, "asyncio", SimpleNamespace(sleep=slept, get_running_loop=Mock()))

    page = TestClient(
        events(SimpleNamespace(pending_event_ids_session={"mine": {"1"}}, pending_messages_per_session={}))
    )
    page.get(MESSAGES)
    page.post(JOIN, json={"session_hash": session})
    assert slept.await_count == waits


# The page behind it


async def built(**options: Any) -> tuple[gr.Blocks, Starlette]:  # Gradio would make a loop and never close it
    page = build_page(cast(Worker, SimpleNamespace()), bundled_pair())
    return page, application(page, routes(), **options, **look())


@contextmanager
def running(**options: Any) -> Iterator[tuple[gr.Blocks, httpx.Client]]:
    with visitors_files():
        page, app = apart(built(**options))
        with listening(app, port=0) as url, httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
            yield page, http


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[gr.Blocks, httpx.Client]]:
    with running() as both:
        yield both


def event(page: gr.Blocks, name: str) -> dict[str, Any]:
    fn = next(fn for fn in page.fns.values() if fn.name == name)
    data = [None if isinstance(block, gr.State) else getattr(block, "value", None) for block in fn.inputs]
    return {"fn_index": fn._id, "data": data, "session_hash": uuid4().hex}


def messages(http: httpx.Client, session: str) -> str:
    return http.get(f"{API}/queue/data", params={"session_hash": session}).text


def test_a_full_queue_forgets_the_oldest_session_that_nobody_reads(
    served: tuple[gr.Blocks, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    page, http = served
    monkeypatch.setattr(gate, "EVENTS", 3)
    sent = [event(page, "code") for _ in range(4)]
    for body in sent:
        body["data"][2] = "\N{GRINNING FACE}" * 2**17  # the prompt comes back as code
        http.post(JOIN, json=body).raise_for_status()
    assert "Reload the page" in messages(http, sent[0]["session_hash"])
    for body in sent[1:]:
        assert "process_completed" in messages(http, body["session_hash"])
    until, queue = time.monotonic() + 30, page._queue
    while queue.pending_messages_per_session or queue.pending_event_ids_session:  # what was read is not kept, either
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    "path",
    [
        "logout",  # would sign everyone out
        "gradio_api/deep_link?session_hash=a",  # would write a file
        "gradio_api/file=https://example.com/",  # would fetch an address
        "gradio_api/file=a",
        "gradio_api/proxy=https://a.hf.space/",
        "gradio_api/process_recording",  # would start a program
        "gradio_api/heartbeat/abc",
        "pwa_icon/9999",  # would draw a picture of that size
        "gradio_api/run/compare",
        "gradio_api/whatever/the/next/release/adds",
    ],
)
def test_only_listed_routes_are_open(served: tuple[gr.Blocks, httpx.Client], path: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        assert served[1].request(method, f"/{path}").status_code in (404, 405)


def test_bodies_are_limited_with_and_without_a_length(served: tuple[gr.Blocks, httpx.Client]) -> None:
    _, http = served
    text = json.dumps(CANCEL).encode()
    for content in (text.ljust(BODY_BYTES), iter([text[:9], text[9:]])):  # as some proxies send it
        assert http.post(f"{API}/cancel", content=content, headers=JSON).json() == {"success": True}
    head = b'--a\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
    for path, most in ((JOIN, BODY_BYTES), (UPLOAD, FILE_BYTES + 4096)):
        for content in (head + bytes(most), iter([head, *[bytes(most // 2)] * 3])):
            form = {"Content-Type": "multipart/form-data; boundary=a"}
            assert http.post(path, content=content, headers=form).status_code == 413, path


def test_tabs_contain_only_tabs(served: tuple[gr.Blocks, httpx.Client]) -> None:
    tabs = next(each for each in served[0].blocks.values() if isinstance(each, gr.Tabs))
    assert {type(each) for each in tabs.children} == {gr.Tab}, "else Gradio shows a tab twice"


def test_requests_that_crash_gradios_routes_are_refused_with_a_reason(
    served: tuple[gr.Blocks, httpx.Client], capfd: pytest.CaptureFixture[str]
) -> None:
    _, http = served
    for path, body in (
        ("queue/join", {"fn_index": 10**6, "data": [], "session_hash": "a"}),
        ("queue/join", {"fn_index": 1, "data": "x", "session_hash": "a"}),
        ("run/predict", {"data": []}),
        ("call/compare", {"data": []}),
        ("call/compare", {"data": {}}),
        ("call/v2/compare", {"nothing": 1}),
        ("cancel", {}),
        ("reset", {"event_id": "a", "fn_index": []}),
    ):
        answer = http.post(f"{API}/{path}", json=body)
        assert answer.status_code in (200, 400, 404, 422), (path, body, answer.text)
        assert answer.text
    for path in ("/static/", "/assets/", "/svelte/", "/specdemo/", f"{API}/file=/"):
        for name in ("a" * 300, "%00", "a%00b", "a/" * 1500, "%2e%2e/%2e%2e/etc/passwd", "%ff%fe", "\u00e9" * 200):
            assert http.get(path + name).status_code in (400, 403, 404), (path, name)
    assert "Traceback" not in capfd.readouterr().err


def test_sign_ins_are_limited_and_nobody_is_signed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, right = ({"username": "me", "password": password} for password in ("wrong", "secret"))
    monkeypatch.setattr(gate, "SIGN_IN_SECONDS", 600.0)
    with running(auth=("me", "secret")) as (page, http):
        assert "auth_required" in http.get("/").text
        for path in ("/config", f"{API}/info", f"{API}/file=/tmp/a"):
            assert http.get(path).status_code == 401, path
        assert http.post(JOIN, json=event(page, "code")).status_code == 401
        assert http.post(UPLOAD, files=FORM).status_code == 401
        assert http.post("/login", data=wrong).status_code == 400
        refused = http.post("/login", data=right)
        assert (refused.status_code, "try again" in refused.text) == (429, True), "the right one, too"
        monkeypatch.setattr(gate, "SIGN_IN_SECONDS", 0.0)
        assert http.post("/login", data=right).status_code == 200
        assert http.get("/config").status_code == 200
        assert http.post(UPLOAD, files=FORM).status_code == 200
        with httpx.Client(base_url=http.base_url, trust_env=False) as other:
            other.post("/login", data=right)
            assert other.get("/logout").status_code == 404
        assert http.get("/config").status_code == 200


def test_sign_ins_are_limited_by_address_and_second() -> None:
    now, app = 100.0, events(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "monotonic", lambda: now)
        visitors = [
            TestClient(app, client=(address, 1))
            for address in ("192.0.2.1", "192.0.2.2", "2001:db8:1:2::3", "2001:db8:1:2:3::4", "2001:db8:1:3::3")
        ]
        assert [page.post("/login").status_code for page in visitors] == [200, 200, 200, 429, 200]
        now += gate.SIGN_IN_SECONDS
        assert [page.post("/login").status_code for page in visitors] == [200, 200, 200, 429, 200]


HELD = {
    "idle": b"",
    "half a header": b"GET / HTTP/1.1\r\nHost: local",
    "half a body": f"POST {JOIN} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{".encode(),
    "used before": b"GET /robots.txt HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
    "unread": b"GET /config HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100,
}


@pytest.mark.parametrize("sent", HELD.values(), ids=HELD)
def test_held_connections_make_room_for_new_ones(
    served: tuple[gr.Blocks, httpx.Client], sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, http = served
    monkeypatch.setattr(server, "CONNECTIONS", 5)
    with ExitStack() as held:
        for _ in range(20):
            connection = socket.create_connection((http.base_url.host, http.base_url.port or 80))
            held.enter_context(connection).sendall(sent)
        until, status = time.monotonic() + 30, 0
        while status != 200:  # while all of them are being answered, a new one is refused
            assert time.monotonic() < until
            with suppress(httpx.TransportError):
                status = httpx.get(f"{http.base_url}/robots.txt", trust_env=False).status_code


def test_an_upload_is_one_file_for_an_hour(
    served: tuple[gr.Blocks, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, http = served
    [path] = http.post(UPLOAD, files=FORM).raise_for_status().json()
    assert Path(path).read_bytes() == b"{}"
    assert Path(path).name == "a_b\u00e9.json"
    assert Path(path).is_relative_to(os.environ["GRADIO_TEMP_DIR"])
    for name, kept in (("..", "_"), ("\u6587" * 300 + ".json", "\u6587" * 55 + ".json"), (".json", "_json")):
        [other] = http.post(UPLOAD, files={"files": (name, bytes(FILE_BYTES))}).raise_for_status().json()
        assert Path(other).name == kept
        shutil.rmtree(Path(other).parent)
    for refused in (
        http.post(UPLOAD, files=[("files", ("a.json", b"{}"))] * 2),
        http.post(UPLOAD, json={"a": 1}),
        http.post(UPLOAD, data={"files": "text"}),
        http.post(UPLOAD, content=b"x", headers={"Content-Type": "multipart/form-data; boundary=a; boundary=b"}),
    ):
        assert (refused.status_code, bool(refused.text)) == (400, True)
    assert len([*Path(path).parents[1].iterdir()]) == 1, "which is the good one"
    monkeypatch.setattr(server, "FILE_SECONDS", -1.0)
    assert http.post(UPLOAD, files=FORM).status_code == 200
    assert not Path(path).exists()


def test_uploads_on_their_way_count(served: tuple[gr.Blocks, httpx.Client], monkeypatch: pytest.MonkeyPatch) -> None:
    _, http = served
    uploads = Path(os.environ["GRADIO_TEMP_DIR"], "uploads")
    monkeypatch.setattr(server, "FILES", len([*uploads.iterdir()]) + 1 if uploads.exists() else 1)
    request, begun, more = http.build_request("POST", UPLOAD, files=FORM), Event(), Event()
    body = request.read()

    def slowly() -> Iterator[bytes]:
        yield body[:20]
        begun.set()
        more.wait(30)
        yield body[20:]

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(
            http.post, UPLOAD, content=slowly(), headers={"Content-Type": request.headers["Content-Type"]}
        )
        begun.wait(30)
        until = time.monotonic() + 30
        while not uploads.exists() or len([*uploads.iterdir()]) < server.FILES:
            assert time.monotonic() < until
        full = http.post(UPLOAD, files=FORM)
        assert (full.status_code, "in an hour" in full.text) == (429, True)
        more.set()
        assert first.result().status_code == 200


@pytest.mark.parametrize("where", ["asyncio.to_thread", "starlette.requests.MultiPartParser.parse"])
def test_an_upload_on_a_full_disk_leaves_nothing(
    served: tuple[gr.Blocks, httpx.Client], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    _, http = served
    http.post(UPLOAD, files=FORM)
    folder = Path(os.environ["GRADIO_TEMP_DIR"], "uploads")
    before = {*folder.iterdir()}
    monkeypatch.setattr(where, fail)
    refused = http.post(UPLOAD, files=FORM)
    assert (refused.status_code, "No space left" in refused.text) == (507, True)
    assert {*folder.iterdir()} == before


def test_a_used_port_is_an_error_and_the_default_is_the_next_free_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken_port = pytest.raises(UsageError, match=rf"port {port} \(Address already in use\); choose")
        with taken_port, listening(Starlette(), port=port):
            pass
        monkeypatch.setenv("GRADIO_SERVER_PORT", str(port))
        with listening(Starlette()) as url:
            assert port < int(url.rpartition(":")[2]) < port + 100
    with pytest.raises(UsageError, match="choose another --host"), listening(Starlette(), "203.0.113.1", 0):
        pass
    for named in ("99999", "abc"):
        monkeypatch.setenv("GRADIO_SERVER_PORT", named)
        assert main(["serve"]) == 2
        assert f"GRADIO_SERVER_PORT is '{named}'" in capsys.readouterr().err
