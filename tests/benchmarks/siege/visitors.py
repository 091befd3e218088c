"""Visitors of the running app, over HTTP: many at once, some that send nonsense, some that go away."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx

from specdemo.settings import GenerationSettings
from tests.benchmarks.siege.tally import Tally

SECONDS = 120
GOOD_EVERY = 100
NONSENSE: tuple[Any, ...] = (
    None,
    [],
    {},
    "",
    "x" * 5000,
    "<b>",
    "\ud800",
    "a\0b",
    -1,
    0.5,
    10**30,
    1e308,
    ["a"],
    [["a"]],
    {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}},
    {"value": "x", "__type__": "update"},
)
"""What no widget sends. JSON is written by Python, so a lone surrogate arrives as one."""
LONG = 2000  # tokens; the scripted engine takes seconds for them


def crowd(url: str, clients: int) -> Tally:
    """So many at once, each with a prompt and a length of its own."""
    with ThreadPoolExecutor(max(clients, 1)) as pool:
        return _sum(pool.map(lambda number: _compare(url, f"Client {number}", 8 + number), range(clients)))


def deserters(url: str, clients: int) -> Tally:
    """So many that go away as soon as their long run is accepted; then one that stays must be answered."""

    def leave(number: int) -> None:
        with httpx.Client(base_url=url, timeout=SECONDS) as http:
            event = _begin(http, f"Leaver {number}", LONG)
            with http.stream("GET", f"/gradio_api/call/compare/{event}") as stream:
                next(stream.iter_raw(1), None)

    with ThreadPoolExecutor(max(clients, 1)) as pool:
        list(pool.map(leave, range(clients)))
    tally = _compare(url, "The one who stays", 9)
    tally.tried += clients
    tally.answered += clients
    return tally


def fuzz(url: str, requests: int, seed: int) -> Tally:
    """Requests with nonsense in them to every event of the page, and to the endpoints of Gradio itself.

    Every hundredth is a good run.
    """
    draw, tally = random.Random(seed), Tally()
    with httpx.Client(base_url=url, timeout=SECONDS) as http:
        config = http.get("/config").json()
        beginning = {part["id"]: part["props"].get("value") for part in config["components"]}
        events = [event for event in config["dependencies"] if event["backend_fn"]]
        for number in range(1, requests + 1):
            if number % GOOD_EVERY == 0:
                tally.add(_compare(url, f"Good run {number}", 8 + number % 50))
            elif draw.random() < 0.2:
                tally.add(_malformed(http, draw, len(config["dependencies"])))
            else:
                event = draw.choice(events)
                values = [beginning[part] for part in event["inputs"]]
                for index in draw.sample(range(len(values)), min(len(values), draw.choice((1, 1, 2, 5)))):
                    values[index] = draw.choice(NONSENSE)
                tally.add(_join(http, event["id"], values, draw.choice((*NONSENSE, {"name": "x"}))))
    return tally


def _compare(url: str, prompt: str, tokens: int) -> Tally:
    """A run over the public endpoint; the answer must be to this prompt, and of this length."""
    with httpx.Client(base_url=url, timeout=SECONDS) as http:
        event = _begin(http, prompt, tokens)
        with http.stream("GET", f"/gradio_api/call/compare/{event}") as stream:
            ended, data = _last(stream)
    if ended != "complete":
        return Tally(tried=1, unexplained=1)
    [answer] = json.loads(data)
    right = answer["prompt"] == prompt and len(answer["plain"]["token_ids"]) == tokens
    return Tally(tried=1, answered=1, mixed_up=not right)


def _begin(http: httpx.Client, prompt: str, tokens: int) -> str:
    settings = GenerationSettings(max_new_tokens=tokens, ignore_eos=True).model_dump()
    sent = http.post("/gradio_api/call/compare", json={"data": [prompt, *settings.values()]})
    return str(sent.raise_for_status().json()["event_id"])


def _last(stream: httpx.Response) -> tuple[str, str]:
    """The kind and the data of the last message of a stream that is no heartbeat."""
    kind = last = data = ""
    for line in stream.iter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: ") and kind != "heartbeat":
            last, data = kind, line.removeprefix("data: ")
    return last, data


def _join(http: httpx.Client, event: int, values: list[Any], event_data: Any) -> Tally:
    """An event of the page, as a browser that was tampered with sends it."""
    session = uuid4().hex
    body = {"fn_index": event, "data": values, "session_hash": session, "event_data": event_data, "trigger_id": None}
    sent = http.post("/gradio_api/queue/join", content=json.dumps(body), headers=_JSON)
    if sent.status_code != httpx.codes.OK:
        return _outcome(sent)
    with http.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            message = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if message.get("msg") == "process_completed":
                error = message["output"].get("error")
                if message["success"]:
                    return Tally(tried=1, answered=1)
                return Tally(tried=1, refused=bool(error), unexplained=not error)
    return Tally(tried=1, unexplained=1)


_JSON = {"content-type": "application/json"}


def _malformed(http: httpx.Client, draw: random.Random, events: int) -> Tally:
    """What is not even an event."""
    body: Any = {
        "fn_index": draw.choice((*NONSENSE, draw.randrange(events), events)),
        "data": draw.choice((*NONSENSE, [], ["Say"])),
        "session_hash": draw.choice((*NONSENSE, uuid4().hex)),
        "event_data": draw.choice(NONSENSE),
        "trigger_id": draw.choice((*NONSENSE, draw.randrange(100))),
    }
    body.pop(draw.choice((*body, None)), None)
    text = json.dumps(draw.choice((body, draw.choice(NONSENSE))))
    text = draw.choice((text, text, text[: draw.randrange(len(text))], "[" * 50_000))
    path = draw.choice(
        ("queue/join", "run/predict", "run/compare", "call/compare", "call/nothing", "reset", "cancel")
    )
    return _outcome(http.post(f"/gradio_api/{path}", content=text, headers=_JSON))


def _outcome(response: httpx.Response) -> Tally:
    """A refusal counts as explained if it has words, and is not the server's own failure."""
    if response.is_success:
        return Tally(tried=1, answered=1)
    return Tally(tried=1, refused=bool(response.text), unexplained=not response.text)


def _sum(parts: Iterator[Tally]) -> Tally:
    total = Tally()
    for part in parts:
        total.add(part)
    return total
