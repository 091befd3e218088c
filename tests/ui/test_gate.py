import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import gradio as gr
import httpx
import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from specdemo.errors import UsageError
from specdemo.models.catalogue import bundled_pair
from specdemo.racing.worker import Worker
from specdemo.ui import gate, server
from specdemo.ui.gate import TEXT_CHARACTERS, Events, Gate, is_local_only
from specdemo.ui.page import build_page, look, routes
from specdemo.ui.server import BODY_BYTES, FILE_BYTES, application, listening, visitors_files
from tests.support.visitors import API, Visitor, apart

JOIN, UPLOAD = f"{API}/queue/join", f"{API}/upload"
PAGE = PlainTextResponse("done")
MESSAGES = f"{API}/queue/data?session_hash=mine"
FORM = {"files": ("a.json", b"{}")}
JSON = {"Content-Type": "application/json"}
CANCEL = {"session_hash": "mine", "fn_index": 1, "event_id": "none"}


def events(queue: Any, page: Any = PAGE) -> Starlette:
    return Starlette(routes=Events(page, queue).routes())


PAGES: dict[str, dict[str, Any]] = {
    "local": {"allowed": (), "local": True},
    "open": {"allowed": (), "local": False},
    "named": {"allowed": ("lab", "*.Example.org", "[2001:db8::1]"), "local": False},
}
ALL, PROXIED = "local open named", "open named"
Headers = dict[str, str]


def hosts(*names: str) -> list[Headers]:
    return [{"Host": name} for name in names]


def origins(*origins: str, site: str | None = None) -> list[Headers]:
    return [{"Origin": origin} | ({"Sec-Fetch-Site": site} if site else {}) for origin in origins]


def assert_answers(pages: str, method: str, headers: Headers) -> None:
    for name, options in PAGES.items():
        page = TestClient(Gate(PAGE, **options), base_url="http://localhost:7860")
        answer = page.request(method, JOIN, headers=[(key.encode(), text.encode()) for key, text in headers.items()])
        found = (answer.status_code, "--allowed-host" in answer.text)
        assert found == ((200, False) if name in pages.split() else (403, True)), (name, headers)


SENDERS: dict[str, tuple[str, str, list[Headers]]] = {  # who may post to which pages, and read which
    "a program": (ALL, ALL, [{}]),
    "this machine": (ALL, ALL, hosts("LocalHost", "127.0.0.1:65535", "127.8.9.1", "[::1]", "[::1]:80")),
    "given names": (PROXIED, PROXIED, hosts("LAB:80", "demo.example.org", "[2001:DB8::1]:80")),
    "a domain": ("open", "open", hosts("example.org")),
    "DNS rebinding": ("open", "open", hosts("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80")),
    "a user in Host": ("", "", hosts("evil@localhost", "localhost@", "@localhost")),
    "no address": ("", "", hosts("[", "[::1", "::1", "[::1]a", "[localhost]", "lab,lab", "localhost\xe9", "", " ")),
    "half a name": ("", "", hosts("%6cocalhost", "localhost%00", "local host", "localhost.", "lab.")),
    "a path in Host": ("", "", hosts("localhost/a", "localhost?a", "localhost#")),
    "no port": ("", "", hosts(*(f"localhost:{port}" for port in ("", "0", "a", "80:80", "65536", "-1", "080")))),
    "the page": (ALL, ALL, origins("http://localhost:7860") + origins("http://localhost:7860", site="same-origin")),
    "a link elsewhere": ("", ALL, [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]),
    "another site": ("", "", origins("https://evil.example", "null", "http://localhost:3000")),
    "another site's script": ("", "", origins("http://localhost:7860", "http://[::1", "//", site="cross-site")),
    "no origin": ("", "", origins("http://[::1", "http://a:b", "http://evil@localhost:7860", site="same-origin")),
    "a proxy": (PROXIED, PROXIED, [{name: "a"} for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via")]),
    # nginx adds no header, and renames Host
    "a hidden proxy": (PROXIED, PROXIED, origins("http://lab", "http://localhost.a", site="same-origin")),
    "a proxy without TLS": ("named", "named", origins("http://demo.example.org")),
}


@pytest.mark.parametrize(("posts", "reads", "senders"), SENDERS.values(), ids=SENDERS)
def test_who_can_post_and_read(posts: str, reads: str, senders: list[Headers]) -> None:
    for headers in senders:
        assert_answers(posts, "POST", headers)
        assert_answers(reads, "GET", headers)


def test_which_pages_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("localhost", "127.8.9.1", "::1", "[::1]"):
        assert is_local_only(address, ())
        assert not is_local_only(address, ("demo.example.org",))
    assert not any(is_local_only(address, ()) for address in ("0.0.0.0", "lab"))
    monkeypatch.setenv("SPACE_HOST", "space.hf.example")  # which sees another host than its visitors
    assert not is_local_only("localhost", ())
    assert_answers("open", "POST", {"Host": "10.0.0.7", "Origin": "https://space.hf.example"})


@pytest.mark.parametrize(("later", "leaves"), [(set(), False), ({"2"}, False), ({"2"}, True)], ids=str)
def test_a_session_is_read_once_and_then_keeps_only_later_events(
    later: set[str], leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = AsyncMock()
    monkeypatch.setattr(gate, "asyncio", SimpleNamespace(sleep=slept, get_running_loop=Mock()))
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
    for session, waits in (("other", False), ("mine", not leaves)):
        page.post(JOIN, json={"session_hash": session})
        assert slept.await_count == waits, "else Gradio's client never fetches its messages: Stop stayed hidden"


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
def http() -> Iterator[httpx.Client]:
    with running() as (_, http):
        yield http


def wait_for(happens: Callable[[], bool]) -> None:
    until, happened = time.monotonic() + 30, False
    while not happened:
        assert time.monotonic() < until
        with suppress(httpx.TransportError):
            happened = happens()
        time.sleep(0.05)


def test_a_full_queue_forgets_the_oldest_session_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "EVENTS", 3)
    with running() as (page, http):
        visitors = [Visitor(http) for _ in range(4)]
        for visitor in visitors:  # the prompt comes back as code
            visitor.join("code", visitor.values("code", prompt="\N{GRINNING FACE}" * 2**17)).raise_for_status()
        assert "Reload the page" in next(visitors[0].messages())["message"]
        assert all(visitor.last()["success"] for visitor in visitors[1:])
        # what was read is not kept, either
        wait_for(lambda: not (page._queue.pending_messages_per_session or page._queue.pending_event_ids_session))


LONG: str = "x" * (TEXT_CHARACTERS + 1)
LISTS: list[Any] = [[]] * 100_000
SENT: dict[str, tuple[str, int, list[Any]]] = {
    "a long prompt": ("cancel", 200, [{"session_hash": "a" * 64, "data": [LONG[200:]]}]),
    "a run to share, which is longer": ("cancel", 200, [{"event_data": {"record": LONG}}]),
    "names that fill the memory": ("cancel", 400, [{"session_hash": "a" * 65}, {"session_hash": "a/b"}]),
    "no names": ("cancel", 400, [{"session_hash": name} for name in cast(Any, ({"a": 1}, [], 0, False, None))]),
    "texts that fill the memory": ("cancel", 422, [{"data": [LONG]}, {"data": [{"turns": [LONG[:50_000]] * 6}]}]),
    "lists that fill the memory": ("cancel", 422, [{"data": [LISTS]}, {"prompt": LISTS}, {"event_data": LISTS}]),
    "lists that pose as a run": ("cancel", 400, [{"event_data": {"record": LISTS}}]),
    "nesting": ("cancel", 400, [b"[" * 50_000]),
    "no text": ("cancel", 400, [b"", b"{", b"[1]", b'{"a": "\xff"}', b'{"a": "\\ud800"}', b'{"a": NaN}']),
    "no function": ("queue/join", 400, [{"fn_index": 10**6, "data": [], "session_hash": "a"}]),
    "no values": ("queue/join", 422, [{"data": "x"}]),
    "neither": ("run/predict", 400, [{"data": []}]),
    "no prompt, as its message says": ("call/compare", 200, [{"data": []}]),
    "no list": ("call/compare", 422, [{"data": {}}]),
    "unnamed values": ("call/v2/compare", 400, [{"nothing": 1}]),
    "no number": ("reset", 422, [{"fn_index": []}]),
}


@pytest.mark.parametrize(("path", "status", "bodies"), SENT.values(), ids=SENT)
def test_what_an_event_may_hold(
    http: httpx.Client, path: str, status: int, bodies: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    for body in bodies:
        content = body if isinstance(body, bytes) else json.dumps(CANCEL | body if path == "cancel" else body)
        answered = http.post(f"{API}/{path}", content=content, headers=JSON)
        assert (answered.status_code, 0 < len(answered.text) < 400) == (status, True), answered.text[:400]
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("path", ["static/", "assets/", "svelte/", "specdemo/", "gradio_api/file=/"])
def test_paths_that_no_file_has_are_refused(http: httpx.Client, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a" * 300, "%00", "a%00b", "a/" * 1500, "%2e%2e/%2e%2e/etc/passwd", "%ff%fe", "\u00e9" * 200):
        assert http.get(f"/{path}{name}").status_code in (400, 403, 404), name
    assert "Traceback" not in capfd.readouterr().err


CLOSED = {
    "signs everyone out": "logout",
    "writes a file": "gradio_api/deep_link?session_hash=a",
    "fetches an address": "gradio_api/file=https://example.com/",
    "reads a file of the server's folder": "gradio_api/file=a",
    "fetches from the Hub": "gradio_api/proxy=https://a.hf.space/",
    "starts a program": "gradio_api/process_recording",
    "holds a connection": "gradio_api/heartbeat/abc",
    "draws a picture of that size": "pwa_icon/9999",
    "runs outside the queue": "gradio_api/run/compare",
    "is new": "gradio_api/whatever/the/next/release/adds",
}


@pytest.mark.parametrize("path", CLOSED.values(), ids=CLOSED)
def test_a_route_is_closed_that(http: httpx.Client, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        assert http.request(method, f"/{path}").status_code in (404, 405)


def test_bodies_are_limited_with_and_without_a_length(http: httpx.Client) -> None:
    text = json.dumps(CANCEL).encode()
    for content in (text.ljust(BODY_BYTES), iter([text[:9], text[9:]])):  # as some proxies send it
        assert http.post(f"{API}/cancel", content=content, headers=JSON).json() == {"success": True}
    head = b'--a\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
    for path, most in ((JOIN, BODY_BYTES), (UPLOAD, FILE_BYTES + 4096)):
        for content in (head + bytes(most), iter([head, *[bytes(most // 2)] * 3])):
            form = {"Content-Type": "multipart/form-data; boundary=a"}
            assert http.post(path, content=content, headers=form).status_code == 413, path


def test_sign_ins_are_limited_and_nobody_is_signed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, right = ({"username": "me", "password": password} for password in ("wrong", "secret"))
    monkeypatch.setattr(gate, "SIGN_IN_SECONDS", 600.0)
    with running(auth=("me", "secret")) as (_, http):
        assert "auth_required" in http.get("/").text
        for path in ("/config", f"{API}/info", f"{API}/file=/tmp/a"):
            assert http.get(path).status_code == 401, path
        assert http.post(JOIN, json=CANCEL).status_code == 401
        assert http.post(UPLOAD, files=FORM).status_code == 401
        assert http.post("/login", data=wrong).status_code == 400
        refused = http.post("/login", data=right)
        assert (refused.status_code, "try again" in refused.text) == (429, True), "the right one, too"
        monkeypatch.setattr(gate, "SIGN_IN_SECONDS", 0.0)
        assert http.post("/login", data=right).status_code == 200
        assert http.get("/config").status_code == 200
        assert http.post(UPLOAD, files=FORM).status_code == 200


def test_sign_ins_are_limited_by_address_and_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, app = 100.0, events(None)
    monkeypatch.setattr(gate, "monotonic", lambda: now)
    for _ in range(2):
        for address, status in (
            *(("192.0.2.1", 200), ("192.0.2.2", 200), ("192.0.2.1", 429)),
            *(("2001:db8:1:2::3", 200), ("2001:db8:1:2:3::4", 429), ("2001:db8:1:3::3", 200)),
        ):
            assert TestClient(app, client=(address, 1)).post("/login").status_code == status, address
        now += gate.SIGN_IN_SECONDS


HELD = {
    "idle": b"",
    "half a header": b"GET / HTTP/1.1\r\nHost: local",
    "half a body": f"POST {JOIN} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{".encode(),
    "used before": b"GET /robots.txt HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
    "unread": b"GET /config HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100,
}


@pytest.mark.parametrize("sent", HELD.values(), ids=HELD)
def test_held_connections_make_room_for_new_ones(
    http: httpx.Client, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 5)
    port = http.base_url.port or 80

    def few_are_open() -> bool:
        httpx.get(f"{http.base_url}/robots.txt", trust_env=False).raise_for_status()
        found = [each.status for each in psutil.Process().net_connections("tcp") if each.laddr.port == port]
        return found.count("ESTABLISHED") <= server.CONNECTIONS

    with ExitStack() as held:
        for _ in range(20):
            held.enter_context(socket.create_connection((http.base_url.host, port))).sendall(sent)
        wait_for(few_are_open)  # while all of them are being answered, a new one is refused


@pytest.fixture
def uploads(http: httpx.Client) -> Path:
    return Path(http.post(UPLOAD, files=FORM).raise_for_status().json()[0]).parents[1]


NAMES = {"../a b\u00e9.json": "a_b\u00e9.json", "..": "_", ".json": "_json"}
NAMES |= {"\u6587" * 300 + ".json": "\u6587" * 55 + ".json"}  # longer than the system allows


@pytest.mark.parametrize(("name", "kept"), NAMES.items(), ids=range(4))
def test_an_upload_is_kept_for_an_hour(
    http: httpx.Client, uploads: Path, name: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [saved] = http.post(UPLOAD, files={"files": (name, bytes(FILE_BYTES))}).raise_for_status().json()
    path = Path(saved)
    assert (path.name, path.read_bytes() == bytes(FILE_BYTES), path.parents[1]) == (kept, True, uploads)
    assert uploads.parent == Path(os.environ["GRADIO_TEMP_DIR"])
    monkeypatch.setattr(server, "FILE_SECONDS", -1.0)
    assert http.post(UPLOAD, files=FORM).status_code == 200
    assert not path.exists()


REFUSED: dict[str, dict[str, Any]] = {
    "two files": {"files": [("files", ("a.json", b"{}"))] * 2},
    "no form": {"json": {"a": 1}},
    "no file": {"data": {"files": "text"}},
    "two boundaries": {"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=a; boundary=b"}},
}


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
def test_a_refused_upload_leaves_nothing(http: httpx.Client, uploads: Path, sent: dict[str, Any]) -> None:
    before, refused = {*uploads.iterdir()}, http.post(UPLOAD, **sent)
    assert (refused.status_code, bool(refused.text), {*uploads.iterdir()}) == (400, True, before)


@pytest.mark.parametrize("where", ["asyncio.to_thread", "starlette.requests.MultiPartParser.parse"])
def test_an_upload_on_a_full_disk_leaves_nothing(
    http: httpx.Client, uploads: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, AsyncMock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    before, refused = {*uploads.iterdir()}, http.post(UPLOAD, files=FORM)
    assert (refused.status_code, "No space left" in refused.text, {*uploads.iterdir()}) == (507, True, before)


def test_uploads_on_their_way_count_and_those_cut_off_leave_nothing(
    http: httpx.Client, uploads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = len([*uploads.iterdir()])
    monkeypatch.setattr(server, "FILES", kept + 1)
    request = http.build_request("POST", UPLOAD, files=FORM)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((http.base_url.host, http.base_url.port or 80)) as begun:
        begun.sendall(f"POST {UPLOAD} HTTP/1.1\r\n{head}\r\n--".encode())
        wait_for(lambda: len([*uploads.iterdir()]) == server.FILES)
        full = http.post(UPLOAD, files=FORM)
        assert (full.status_code, "in an hour" in full.text) == (429, True)
    wait_for(lambda: len([*uploads.iterdir()]) == kept)


def test_a_used_port_is_an_error_and_the_default_is_the_next_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host, used, why in (("127.0.0.1", port, "Address already in use"), ("203.0.113.1", 0, "")):
            refused = pytest.raises(UsageError, match=rf"port {used} \({why}.*\); choose another --host or --port")
            with refused, listening(Starlette(), host, used):
                pass
        monkeypatch.setenv("GRADIO_SERVER_PORT", str(port))
        with listening(Starlette()) as url:
            assert port < int(url.rpartition(":")[2]) < port + 100
