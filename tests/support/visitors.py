"""The page on a slow scripted engine in a process of its own, and visitors that are no browsers.

python -m tests.support.visitors MODELS_DIR SESSIONS
"""

import json
import sys
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import httpx

from specdemo.engines.scripted import ScriptedEngine
from specdemo.models.pairs import bundled_pair
from specdemo.records import ModelPair, Side
from specdemo.strategies import EngineName

API = "/gradio_api"
STEP = 2**-6


def load(name: EngineName, pair: ModelPair, side: Side | None = None) -> ScriptedEngine:
    """An engine whose longest comparison takes most of a minute."""
    words = 300 * tuple(ScriptedEngine.words)
    engine = ScriptedEngine(words, step=STEP, draft=STEP / 4, prefill=STEP, real_time=True)
    engine.pair = pair
    return engine


@dataclass
class RunningPage:
    """A page that runs at the client's address."""

    http: httpx.Client

    @cached_property
    def config(self) -> dict[str, Any]:
        """What Gradio tells a browser of the page."""
        found: dict[str, Any] = self.get("/config").json()
        return found

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.http.post(API + path, **options)

    def callback(self, name: str) -> dict[str, Any]:
        """What Gradio tells of a callback."""
        return next(part for part in self.config["dependencies"] if part["api_name"] == name)


@dataclass
class Visitor:
    """Whoever speaks the page's protocol."""

    page: RunningPage
    name: str = field(default_factory=lambda: uuid4().hex)

    def call(self, callback: dict[str, Any], data: list[Any], patience: float = 120) -> dict[str, Any]:
        """Have a queued callback run to its end, or leave once it has begun and so many seconds are over.

        Returns the last message about it.

        Raises:
            TimeoutError: this visitor has left.
        """
        body = {"fn_index": callback["id"], "data": data, "session_hash": self.name}
        self.page.post("/queue/join", json=body).raise_for_status()
        until, last, begun = monotonic() + patience, {}, False
        with closing(self.messages()) as messages:
            for message in messages:
                begun = begun or message["msg"] == "process_generating"
                if begun and monotonic() > until:
                    raise TimeoutError
                if message["msg"] == "process_completed":
                    last = message
        return last

    def messages(self) -> Generator[dict[str, Any]]:
        """What the queue tells this visitor."""
        asked = {"session_hash": self.name}
        with self.page.http.stream("GET", f"{API}/queue/data", params=asked) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def opens(self) -> dict[str, Any]:
        """Load the page, as a browser does."""
        self.page.get("/").raise_for_status()
        return self.call(self.page.callback("restored"), [""])

    def runs(self, prompt: str = "Say", patience: float = 120, **settings: Any) -> dict[str, Any]:
        """Click Run, with these settings and else the page's own."""
        callback, known = self.page.callback("run"), {"prompt": prompt, **settings}
        parts = {part["id"]: part for part in self.page.config["components"]}
        data = []
        for number in callback["inputs"]:
            shown = parts[number]["props"]
            data.append(known.get(shown.get("elem_id"), shown.get("value")))
        return self.call(callback, data, patience)


if __name__ == "__main__":
    from specdemo.ui.page import serve  # not for the engine's process, which imports this file again

    serve(bundled_pair(), models_dir=Path(sys.argv[1]), downloads=False, load=load, sessions=int(sys.argv[2]))
