"""Visitors who take all they can get: memory, threads, disk, and routes that nobody needs."""

import gzip
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from socket import create_connection
from typing import Any
from uuid import uuid4

import httpx

from specdemo.engines.scripted import ScriptedEngine
from specdemo.exports import schema
from specdemo.race import race
from specdemo.records import MOST_TURNS, Comparison
from specdemo.settings import GenerationSettings
from tests.benchmarks.siege.tally import Tally
from tests.support.mutants import header, mutants

SECONDS = 120
API = "/gradio_api"
_EMOJI = "\N{GRINNING FACE}" * 2**18 + "x" * 2**17  # 1.2 MB as JSON is written, 1.5 MB in Python
CLOSED = (
    *(f"{API}/{path}" for path in ("openapi.json", "component_server", "heartbeat/a", "deep_link", "queue/status")),
    *(f"{API}/{path}" for path in ("custom_component/a/client/component/b", "proxy=http://192.0.2.1/", "dev/reload")),
    *(
        f"{API}/{path}"
        for path in ("file=http://192.0.2.1/", "process_recording", "vibe-code", "run-history/buckets")
    ),
    *(f"{API}/{path}" for path in ("run/compare", "api/predict", "stream/a/b/c/playlist.m3u8", "monitoring")),
    *("/openapi.json", "/docs", "/monitoring", "/monitoring/summary", "/specdemo/../../etc/passwd"),
    *(f"{API}/file=/etc/passwd", "/static/%2e%2e/%2e%2e/routes.py", f"{API}/queue/data?session_hash=nobody"),
    *(f"{API}/upload_progress?upload_id=a", "/pwa_icon/9999"),
    *(f"{path}{'a' * 300}" for path in ("/static/", "/assets/", "/svelte/", f"{API}/file=/")),
)


def flood(url: str, times: int) -> Tally:
    """Each of these so many times, from several clients at once."""
    with httpx.Client(base_url=url, timeout=SECONDS) as http:
        config = http.get("/config").json()
    events = {event["api_name"]: event for event in config["dependencies"] if event["backend_fn"]}
    values = {part["id"]: part["props"].get("value") for part in config["components"]}
    attacks: list[Callable[[httpx.Client, int], Tally]] = [
        lambda http, number: _unread(http, events["code"], values),
        lambda http, number: _long_names(http, number),
        lambda http, number: _opening(http, events["open"], number),
        lambda http, number: _forms(http, number),
        lambda http, number: _bombs(http, events["share"], number),
        lambda http, number: _closed(http, number),
        lambda http, number: _dropped(http, number, headers),
    ]
    tally, headers = Tally(), list(mutants(times, times))
    with ThreadPoolExecutor(8) as pool, httpx.Client(base_url=url, timeout=SECONDS) as http:
        for attack in attacks:
            for one in pool.map(attack, [http] * times, range(times)):
                tally.add(one)
    return tally


def _unread(http: httpx.Client, event: dict[str, Any], values: dict[int, Any]) -> Tally:
    """An event whose long answer nobody fetches, in a new session."""
    data = [values[part] for part in event["inputs"]]
    data[2] = _EMOJI[: 2**17]
    return _outcome(http.post(f"{API}/queue/join", json=_event(event, data)))


def _long_names(http: httpx.Client, number: int) -> Tally:
    """Names of sessions and events of any length and type, and texts and values beyond their limits."""
    bodies: tuple[dict[str, Any], ...] = (
        {"fn_index": 1, "data": [], "session_hash": "a" * 2**19},
        {"fn_index": 1, "data": [_EMOJI], "session_hash": uuid4().hex},
        {"fn_index": 1, "data": [], "session_hash": ["a"]},
        {"fn_index": 1, "data": [[]] * 100_000, "session_hash": uuid4().hex},
        {"fn_index": 1, "data": [], "session_hash": uuid4().hex, "event_data": [[]] * 250_000},
    )
    return _outcome(http.post(f"{API}/queue/join", json=bodies[number % len(bodies)]))


def _opening(http: httpx.Client, event: dict[str, Any], number: int) -> Tally:
    """A comparison with very many turns, or one as large as it may be, opened by somebody who leaves or stays."""
    saved = _saved()
    turns = (20_000, MOST_TURNS)[number // 2 % 2]
    saved["history"] = [{"prompt": "a", "answer": "*b* " * 50}] * turns
    sent = http.post(f"{API}/upload", files={"files": ("race.json", json.dumps(saved).encode())})
    if sent.status_code != httpx.codes.OK:
        return _outcome(sent)
    file = {"path": sent.json()[0], "meta": {"_type": "gradio.FileData"}}
    return _called(http, event, [file], leave=number % 2 == 0)


def _forms(http: httpx.Client, number: int) -> Tally:
    """Forms that are none, or hold very many files, or are sent where none belongs."""
    if number % 3 == 0:
        return _outcome(http.post(f"{API}/upload", files=[("files", ("a.json", b"{}"))] * 1000))
    if number % 3 == 1:
        return _outcome(http.post(f"{API}/upload", content=bytes(2**20)))
    return _outcome(http.post(f"{API}/run/upload", content=bytes(10 * 2**20)))


def _bombs(http: httpx.Client, event: dict[str, Any], number: int) -> Tally:
    """A run to share that is small as it is sent, and large or slow to draw; or nothing of the kind."""
    text = json.dumps(_saved() | {"prompt": "\n" * (4 * 2**20)}).encode()
    packed = (text, bytes(2**26), b"{}")[number % 3]
    record = b64encode(gzip.compress(packed)).decode()
    kind = ("gif", "png", "html")[number // 3 % 3]
    return _called(http, event, [], leave=number % 2 == 0, event_data={"kind": kind, "record": record})


def _closed(http: httpx.Client, number: int) -> Tally:
    """A route that is closed, or that nobody knows."""
    path = CLOSED[number % len(CLOSED)]
    answer = http.request(("GET", "POST", "HEAD")[number % 3], path)
    if answer.is_success and "session_not_found" not in answer.text:
        return Tally(tried=1, unexplained=1)
    return Tally(tried=1, refused=1)


def _dropped(http: httpx.Client, number: int, headers: list[bytes]) -> Tally:
    """A model file dropped on the page: damaged, larger than the disk, broken off, or not sent by the page itself."""
    path, content = f"/model/{number}.gguf", header() if number % 10 == 3 else headers[number]
    if number % 5 in (0, 1):  # neither claim is true
        claimed = (2**20, 2**50)[number % 5]
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {claimed}\r\n\r\n"
        with create_connection((http.base_url.host, http.base_url.port), SECONDS) as connection:
            connection.sendall(head.encode() + content)
            if number % 5 == 0:
                return Tally(tried=1, refused=1)
            explained = b'{"refused":"' in b"".join(iter(partial(connection.recv, 2**16), b""))
        return Tally(tried=1, refused=explained, unexplained=not explained)
    if number % 5 == 2:
        foreign = http.put(path, content=content, headers={"Origin": "https://evil.example"})
        return Tally(tried=1, unexplained=1) if foreign.is_success else _outcome(foreign)
    dropped = http.put(path, content=content)
    if not dropped.is_success:
        return Tally(tried=1, unexplained=1)
    found = dropped.json()
    return Tally(tried=1, answered="path" in found, refused=bool(found.get("refused")))


def _called(
    http: httpx.Client, event: dict[str, Any], data: list[Any], *, leave: bool, event_data: Any = None
) -> Tally:
    """An event, of which the visitor hears until its end, or leaves."""
    body = _event(event, data) | {"event_data": event_data}
    sent = http.post(f"{API}/queue/join", json=body)
    if sent.status_code != httpx.codes.OK:
        return _outcome(sent)
    with suppress(httpx.ReadTimeout):
        for message in _messages(http, body["session_hash"]):
            if leave and message.get("msg") in ("process_starts", "estimation"):
                return Tally(tried=1, answered=1)
            if message.get("msg") == "process_completed":
                error = message["output"].get("error")
                return Tally(tried=1, answered=message["success"], refused=bool(error))
    return Tally(tried=1, unexplained=1)


def _messages(http: httpx.Client, session: str) -> Iterator[dict[str, Any]]:
    with http.stream("GET", f"{API}/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def _event(event: dict[str, Any], data: list[Any]) -> dict[str, Any]:
    return {"fn_index": event["id"], "data": data, "session_hash": uuid4().hex}


def _saved() -> dict[str, Any]:
    """A comparison as Share saves it."""
    *_, comparison = race(ScriptedEngine(wrong=(4, 7)), "Say", GenerationSettings(num_assistant_tokens=3))
    assert isinstance(comparison, Comparison)
    return schema.to_json(comparison)


def _outcome(response: httpx.Response) -> Tally:
    """A refusal counts as explained if it has words."""
    if response.is_success:
        return Tally(tried=1, answered=1)
    return Tally(tried=1, refused=bool(response.text), unexplained=not response.text)
