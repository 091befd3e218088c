"""Visitors without a browser, which can send anything in the page's protocol."""

import asyncio
import json
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar
from uuid import uuid4

import httpx

from specdemo.settings import GenerationSettings

API = "/gradio_api"


T = TypeVar("T")


def apart(work: Coroutine[Any, Any, T]) -> T:
    """Run it in another thread, since a browser's event loop may be running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


class Visitor:
    def __init__(self, http: httpx.Client) -> None:
        self.http, self.session = http, uuid4().hex
        self.config = http.get("/config").json()
        self.parts = {part["id"]: part["props"] for part in self.config["components"]}
        self.events = {event["api_name"]: event for event in self.config["dependencies"] if event["backend_fn"]}

    def values(self, event: str, **known: Any) -> list[Any]:
        """Return the initial values of an event's widgets, changed as given."""
        parts = [self.parts[number] for number in self.events[event]["inputs"]]
        return [known.get(part.get("elem_id"), part.get("value")) for part in parts]

    def join(self, event: str, data: list[Any], event_data: Any = None) -> httpx.Response:
        body = {"fn_index": self.events[event]["id"], "data": data, "session_hash": self.session}
        text = json.dumps(body | {"event_data": event_data}, ensure_ascii=False)  # httpx cannot encode everything
        content = text.encode(errors="surrogatepass")
        return self.http.post(f"{API}/queue/join", content=content, headers={"Content-Type": "application/json"})

    def messages(self) -> Generator[dict[str, Any]]:
        asked = {"session_hash": self.session}
        with self.http.stream("GET", f"{API}/queue/data", params=asked) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def last(self, leave: str = "process_completed") -> dict[str, Any]:
        """Return an event's last message, or the first one of a kind, at which this visitor leaves."""
        with closing(self.messages()) as messages:
            return next((one for one in messages if one["msg"] in ("process_completed", leave)), {})

    def opens(self) -> dict[str, Any]:
        self.http.get("/").raise_for_status()
        self.join("restored", [""]).raise_for_status()
        return self.last()

    def runs(self, leave: str = "process_completed", **settings: Any) -> dict[str, Any]:
        self.join("run", self.values("run", prompt="Say", **settings)).raise_for_status()
        return self.last(leave)

    def compare(self, prompt: str, tokens: int, *, leave: bool = False) -> dict[str, Any] | None:
        """Return the comparison or the error; None if this visitor leaves."""
        settings = GenerationSettings(max_new_tokens=tokens, ignore_eos=True).model_dump()
        sent = self.http.post(f"{API}/call/compare", json={"data": [prompt, *settings.values()]})
        kind, answer = "", None
        with self.http.stream("GET", f"{API}/call/compare/{sent.raise_for_status().json()['event_id']}") as stream:
            for line in stream.iter_lines():
                if leave:
                    return None
                name, _, value = line.partition(": ")
                kind = value if name == "event" else kind
                answer = json.loads(value) if name == "data" and kind in ("complete", "error") else answer
        found: dict[str, Any] | None = answer[0] if isinstance(answer, list) else answer
        return found
