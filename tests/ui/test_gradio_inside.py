"""Undocumented parts of Gradio: a test for each name says which part of the page depends on it.

A test that fails after an upgrade of Gradio names the change; see `specdemo/ui/gradio_inside.py`.
"""

import asyncio
import inspect
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import gradio as gr
import httpx
import pytest
from gradio import route_utils
from gradio.blocks import Blocks
from gradio.queueing import Queue
from gradio.routes import App
from gradio.state_holder import SessionState, StateHolder
from starlette.applications import Starlette
from starlette.testclient import TestClient

from specdemo.models.pairs import bundled_pair
from specdemo.ui import gradio_inside, limits
from specdemo.ui.gradio_inside import signed_in
from specdemo.ui.limits import Mailboxes, size_of
from specdemo.ui.page import build_page, launch_options
from specdemo.worker import Worker

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Gradio leaves a socket
JOIN = "/gradio_api/queue/join"


@contextmanager
def running(auth: tuple[str, str] | None = None) -> Iterator[tuple[App, httpx.Client]]:
    """The page in this process, with nothing behind its engine; and a visitor."""

    async def start() -> tuple[gr.Blocks, App, str]:  # Gradio makes an event loop, and leaves it, unless there is one
        page = build_page(cast(Worker, SimpleNamespace()), bundled_pair())
        app, url, _ = page.launch(**launch_options(), auth=auth, prevent_thread_lock=True, quiet=True)
        return page, app, url

    with ThreadPoolExecutor(1) as pool:
        page, app, url = pool.submit(lambda: asyncio.run(start())).result()
    try:
        with httpx.Client(base_url=url, timeout=30) as http:
            yield app, http
    finally:
        page.close()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[App, httpx.Client]]:
    with running() as both:
        yield both


@pytest.fixture
def app(served: tuple[App, httpx.Client]) -> App:
    return served[0]


@pytest.fixture
def page(served: tuple[App, httpx.Client]) -> httpx.Client:
    return served[1]


def event(app: App, name: str) -> dict[str, Any]:
    """The values that a browser sends for a callback before any widget was changed."""
    fn = next(fn for fn in app.get_blocks().fns.values() if fn.name == name)
    data = [None if isinstance(block, gr.State) else getattr(block, "value", None) for block in fn.inputs]
    return {"fn_index": fn._id, "data": data, "session_hash": uuid4().hex}


def until_nothing_waits(app: App) -> None:
    """Wait until every event is done, and forgotten."""
    until = monotonic() + 30
    while app.get_blocks()._queue.event_ids_to_events:
        assert monotonic() < until
        sleep(0.05)


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (Blocks, "process_api", {"block_fn", "inputs", "state", "session_hash"}),
        (Blocks, "preprocess_data", {"self", "block_fn", "inputs", "state", "explicit_call"}),
        (Blocks, "get_config_file", {"self"}),
        (Queue, "clean_events", {"session_hash"}),
        (Queue, "send_message", {"event", "event_message"}),
        (StateHolder, "__getitem__", {"session_id"}),
        (StateHolder, "update", {"session_id"}),
        (StateHolder, "set_blocks", {"blocks"}),
        (SessionState, "__init__", {"blocks"}),
        (SessionState, "__setitem__", {"key", "value"}),
        (SessionState, "_update_config", {"key"}),
        (SessionState, "_update_value_in_config", {"key", "value"}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_overridden_or_called_takes_the_same(owner: type, name: str, parameters: set[str]) -> None:
    assert parameters <= set(inspect.signature(getattr(owner, name)).parameters)


def test_a_state_has_all_that_gradios_own_has(page: httpx.Client, app: App) -> None:
    ours, theirs = app.state_holder["somebody"], SessionState(app.get_blocks())
    assert vars(theirs).keys() <= vars(ours).keys()
    assert vars(StateHolder()).keys() <= vars(app.state_holder).keys()  # type: ignore[no-untyped-call]
    assert app.get_blocks().state_holder is app.state_holder


def test_the_queue_keeps_messages_where_it_is_expected(page: httpx.Client, app: App) -> None:
    queue = app.get_blocks()._queue
    assert isinstance(queue.pending_messages_per_session, Mailboxes)
    body = event(app, "leave_queue")
    assert page.post(JOIN, json=body).status_code == 200
    messages = page.get("/gradio_api/queue/data", params={"session_hash": body["session_hash"]}).text
    assert "process_completed" in messages
    assert '"success":true' in messages
    assert queue.pending_messages_per_session.bytes == 0


def test_the_queue_makes_no_table_of_its_events(page: httpx.Client, app: App) -> None:
    queue = app.get_blocks()._queue
    names = {"ANALYTICS_MAX_EVENTS", "ANAYLTICS_CACHE_FREQUENCY"}

    async def attributes() -> set[str]:  # in a loop, since Gradio would otherwise make some and leave them open
        return {*vars(Queue(False, 1, 0, None, gr.Blocks()))}

    with ThreadPoolExecutor(1) as pool:  # a browser's test may have left a loop running in this thread
        assert names <= pool.submit(asyncio.run, attributes()).result()
    assert cast(Any, queue).compute_analytics_summary([{"function": "a"}]) == {"functions": {}}


def test_unread_messages_keep_to_their_budget(page: httpx.Client, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNREAD_BYTES", 4 * 2**20)
    queue, body, emoji = app.get_blocks()._queue, event(app, "code"), "\N{GRINNING FACE}" * 2**17
    boxes = cast(Mailboxes, queue.pending_messages_per_session)
    body["data"][2] = emoji  # the prompt, which comes back as code
    for number in range(12):
        page.post(JOIN, json=body | {"session_hash": f"visitor-{number}"}).raise_for_status()
    until = monotonic() + 30
    while "visitor-0" in boxes or len(queue) or len(boxes) > 8:
        assert monotonic() < until, list(boxes)
        sleep(0.05)
    assert 0 < boxes.bytes <= 4 * 2**20
    assert queue.pending_event_ids_session.keys() <= boxes.keys()
    told = page.get("/gradio_api/queue/data", params={"session_hash": "visitor-0"})
    assert "This session has expired. Reload the page." in told.text


def test_events_under_way_keep_to_their_budget(page: httpx.Client, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    going, body, queue = Event(), event(app, "leave_queue") | {"event_data": "x" * 10_000}, app.get_blocks()._queue
    fn = app.get_blocks().fns[body["fn_index"]]

    def wait(*_: object) -> list[Any]:
        going.wait(30)
        return [gr.skip()] * len(fn.outputs)

    monkeypatch.setattr(fn, "fn", wait)
    monkeypatch.setattr(limits, "EVENTS_BYTES", 25_000)
    until_nothing_waits(app)
    answers = [page.post(JOIN, json=body | {"session_hash": f"waiting-{number}"}) for number in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 503]
    assert "try again in a minute" in answers[-1].text
    going.set()
    until_nothing_waits(app)
    assert cast(Any, queue.event_ids_to_events).bytes == 0
    assert page.post(JOIN, json=body).status_code == 200


def test_state_keeps_to_its_budget(page: httpx.Client, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STATE_BYTES", 2**20)
    state = next(block for block in app.get_blocks().blocks.values() if isinstance(block, gr.State))
    for number in range(10):
        app.state_holder[f"visitor {number}"][state._id] = "x" * 300_000
    assert list(app.state_holder.session_data)[-3:] == ["visitor 7", "visitor 8", "visitor 9"]
    assert "visitor 6" not in app.state_holder
    app.state_holder["visitor 9"][state._id] = "x"
    assert "visitor 7" in app.state_holder


def test_no_session_keeps_a_copy_of_the_page(page: httpx.Client, app: App) -> None:
    body = event(app, "leave_queue")
    page.post(JOIN, json=body)
    page.get("/gradio_api/queue/data", params={"session_hash": body["session_hash"]})
    state = app.state_holder[body["session_hash"]]
    assert size_of([state.config_values, state.state_data]) < 5000


def test_who_has_signed_in_is_read_as_gradio_writes_it() -> None:
    with running(("me", "secret")) as (_, page):
        assert "auth_required" in page.get("/").text
        for path in ("/config", "/gradio_api/info", "/gradio_api/queue/data?session_hash=a"):
            assert page.get(path).status_code == 401
        for path in ("cancel", "reset"):
            body = {"session_hash": "a", "fn_index": 1, "event_id": "b"}
            assert page.post(f"/gradio_api/{path}", json=body).status_code == 401
        assert page.get("/openapi.json").status_code == page.get("/gradio_api/openapi.json").status_code == 404
        assert page.post("/login", data={"username": "me", "password": "wrong"}).status_code == 400
        assert page.post("/login", data={"username": "me", "password": "secret"}).status_code == 200
        assert page.get("/config").status_code == 200
    scope = {
        "app": SimpleNamespace(auth={"me": "secret"}, cookie_id="x", tokens={}),
        "headers": [(b"cookie", b"=;=")],
    }
    assert not signed_in(scope)


def test_parts_of_a_form_are_found_by_the_same_function() -> None:
    assert vars(route_utils)["parse_options_header"] is vars(gradio_inside)["parse_options_header"]


def test_a_file_of_any_name_is_refused_in_words(page: httpx.Client) -> None:
    for path in ("/static/", "/assets/", "/svelte/", "/specdemo/", "/gradio_api/file=/"):
        for name in ("a" * 300, "%00", "a%00b", "a/" * 1500, "%2e%2e/%2e%2e/etc/passwd", "%ff%fe", "\u00e9" * 200):
            refused = page.get(path + name)
            assert refused.status_code in (403, 404), (path, name)  # 500 would leave a traceback


def test_an_event_carries_what_a_script_sent(page: httpx.Client) -> None:
    assert gr.EventData(None, {"kind": "png"})._data == {"kind": "png"}


def test_the_page_keeps_no_heartbeat(page: httpx.Client) -> None:
    assert page.get("/config").json()["connect_heartbeat"] is False


def test_messages_that_nobody_reads_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        dropped: list[str] = []
        boxes = Mailboxes(dropped.append)
        for name in ("left", "read"):
            boxes[name] = asyncio.Queue()
            boxes[name].put_nowait("one")
        assert await boxes["read"].get() == "one"
        reader = asyncio.ensure_future(boxes["read"].get())
        await asyncio.sleep(0.05)
        boxes.expire()
        assert dropped == []
        monkeypatch.setattr(limits, "UNREAD_SECONDS", 0.01)
        boxes.expire()
        assert (dropped, list(boxes), boxes.bytes) == (["left"], ["read"], 0)
        boxes["left"].put_nowait("nobody will read this")
        assert "left" not in boxes
        boxes["read"].put_nowait("two")
        assert await reader == "two"
        del boxes["left"], boxes["read"]
        assert boxes.bytes == 0

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(check())).result()


@pytest.mark.parametrize("value", ["x" * 10_000, ["x" * 10_000], {"a": {"b": ("x" * 10_000,)}}, bytes(10_000)])
def test_sizes_are_those_of_all_that_a_value_holds(value: Any) -> None:
    assert 10_000 < size_of(value) < 11_000
    assert size_of(json.dumps("\N{GRINNING FACE}" * 1000, ensure_ascii=False)) > 4000


def test_readyz_tells_whether_the_engine_gets_anywhere() -> None:
    engine = iter((True, False))
    [route] = [
        route
        for route in launch_options(ready=lambda: next(engine))["app_kwargs"]["routes"]
        if getattr(route, "path", "") == "/readyz"
    ]
    page = TestClient(Starlette(routes=[route]))
    assert page.get("/readyz").text == "ready\n"
    assert page.get("/readyz").status_code == 503
