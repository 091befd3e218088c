"""Attack the app as hostile visitors and accidents would, and count what happens.

    python -m tests.benchmarks.siege [--clients 50] [--requests 2000] [--dropped 50] [--seed 0]

Prints one line of JSON. Exits with 1 after an attempt that was neither answered nor refused with a reason, a
traceback, somebody else's answer, a server or an engine of 1.5 GB, or a front page that took 2 seconds. Engines are
scripted; the soak measures growth on real ones.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic
from typing import Any
from uuid import uuid4

import httpx
import psutil

from tests.support.browser import App, started
from tests.support.visitors import API, Visitor

COUNTS = {"clients": 50, "requests": 2000, "dropped": 50}
MOST_BYTES, MOST_SILENCE = 1.5e9, 2.0
SECONDS = 120  # after which an answer counts as missing
NONSENSE: tuple[Any, ...] = (None, [], {}, "", "x" * 5000, "<b>", "\ud800", "a\0b", -1, 0.5, 10**30, ["a"], [["a"]])
NONSENSE += ({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, {"value": "x", "__type__": "update"})
JSON = {"Content-Type": "application/json"}


@dataclass
class Tally:
    """Counts of attempts. `unexplained` ones got no reason for a refusal, `mixed_up` ones somebody else's answer.
    `silence` is the longest wait for the front page, in seconds.
    """

    tried: int = 0
    answered: int = 0
    refused: int = 0
    unexplained: int = 0
    tracebacks: int = 0
    mixed_up: int = 0
    server_bytes: int = 0
    engine_bytes: int = 0
    silence: float = 0.0

    def add(self, other: "Tally") -> None:
        """Add counts; of other figures, keep the larger one."""
        for field in fields(self):
            both, counted = (getattr(self, field.name), getattr(other, field.name)), field.name in _COUNTED
            setattr(self, field.name, sum(both) if counted else max(both))

    @property
    def held(self) -> bool:
        """Whether every attempt is accounted for; `silence` is left out, since a busy machine alone can cause it."""
        wrong = self.unexplained + self.tracebacks + self.mixed_up
        small = max(self.server_bytes, self.engine_bytes) < MOST_BYTES
        return wrong == 0 and self.answered + self.refused == self.tried and small


_COUNTED = ("tried", "answered", "refused", "unexplained", "tracebacks", "mixed_up")


def outcome(answered: bool, words: object = "") -> Tally:
    """A refusal counts as explained if it has a reason."""
    return Tally(1, answered, not answered and bool(words), not answered and not words)


def answer_of(response: httpx.Response) -> Tally:
    return outcome(response.is_success, response.text)


# Visitors


@contextmanager
def visiting(url: str) -> Iterator[Visitor]:
    with httpx.Client(base_url=url, timeout=SECONDS, trust_env=False) as http:
        yield Visitor(http)


def send(visitor: Visitor, event: str, data: list[Any], event_data: Any) -> Tally:
    """Send an event in a new session, and read its messages to the end."""
    other = copy(visitor)
    other.session = uuid4().hex
    sent = other.join(event, data, event_data)
    if not sent.is_success:
        return answer_of(sent)
    last = other.last()
    return outcome(last.get("success", False), last.get("output", {}).get("error"))


def compare(visitor: Visitor, prompt: str, tokens: int, *, leave: bool = False) -> Tally:
    """The answer must be to this prompt, and of this length."""
    answer = visitor.compare(prompt, tokens, leave=leave)
    if leave or answer is None or "plain" not in answer:
        return outcome(leave)
    return Tally(1, 1, mixed_up=(answer["prompt"], len(answer["plain"]["token_ids"])) != (prompt, tokens))


def crowd(url: str, clients: int, *, leave: bool = False) -> Iterator[Tally]:
    """Compare for many clients at once, each with its own prompt and length; or let all leave long runs."""

    def ask(number: int) -> Tally:
        with visiting(url) as visitor:
            return compare(visitor, f"Client {number}", 2000 if leave else 8 + number, leave=leave)

    with ThreadPoolExecutor(max(clients, 1)) as pool:
        yield from pool.map(ask, range(clients))
    with visiting(url) as visitor:
        yield compare(visitor, "The one who stays", 9)


def fuzz(visitor: Visitor, requests: int, seed: int) -> Iterator[Tally]:
    """Send nonsense to the page's events and Gradio's endpoints; every hundredth request is a valid run."""
    draw = random.Random(seed)
    for number in range(1, requests + 1):
        if number % 100 == 0:
            yield compare(visitor, f"Good run {number}", 8 + number % 50)
        elif draw.random() < 0.2:
            body: Any = {name: draw.choice((*NONSENSE, 3, "a")) for name in ("fn_index", "data", "session_hash")}
            body |= {"event_data": draw.choice(NONSENSE), "trigger_id": draw.choice(NONSENSE)}
            text = json.dumps(draw.choice((body, *NONSENSE)))
            text = draw.choice((text, text, text[: draw.randrange(len(text))], "[" * 50_000))
            path = draw.choice(("queue/join", "run/predict", "call/compare", "call/v2/compare", "reset", "cancel"))
            yield answer_of(visitor.http.post(f"{API}/{path}", content=text, headers=JSON))
        else:
            values = visitor.values(event := draw.choice(list(visitor.events)))
            for index in draw.sample(range(len(values)), min(len(values), draw.choice((1, 1, 2, 5)))):
                values[index] = draw.choice(NONSENSE)
            yield send(visitor, event, values, draw.choice((None, *NONSENSE, {"name": "x"}, {"kind": "gif"})))


@contextmanager
def watched(app: App, tally: Tally) -> Iterator[None]:
    """Meanwhile, poll the front page and the memory of server and engine."""
    over, server = Event(), psutil.Process(app.process.pid)

    def ask() -> None:
        while not over.wait(0.2):
            began = monotonic()
            with suppress(httpx.TransportError):
                answered = httpx.get(app.url, timeout=SECONDS, trust_env=False).is_success
                tally.silence = max(tally.silence, monotonic() - began if answered else SECONDS)

    def look() -> None:
        while not over.wait(0.2):
            with suppress(psutil.Error, StopIteration):
                tally.server_bytes = max(tally.server_bytes, server.memory_info().rss)
                tally.engine_bytes = max(tally.engine_bytes, app.engine().memory_info().rss)

    threads = [Thread(target=work, daemon=True) for work in (ask, look)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def besieged(counts: dict[str, int], seed: int, folder: Path) -> Tally:
    total, log = Tally(), folder / "log"
    (folder / "models").mkdir()

    def add(part: Iterator[Tally], name: str) -> None:
        began, before = monotonic(), total.tried
        for found in part:
            total.add(found)
        print(f"{name}: {total.tried - before} tried in {monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    arguments = ("-m", "tests.support.scripted_app", folder / "models")
    with started(folder, *arguments, log=log, SPACE_ID="somebody/specdemo") as app, watched(app, total):
        add(crowd(app.url, counts["clients"]), "crowd")
        with visiting(app.url) as visitor:
            add(fuzz(visitor, counts["requests"], seed), "fuzz")
        add(crowd(app.url, counts["dropped"], leave=True), "deserters")
    said = log.read_text(encoding="utf-8", errors="replace")
    total.tracebacks += said.count("Traceback (most recent call last)")
    if total.tracebacks:
        print(said, file=sys.stderr)
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    counts = vars(parser.parse_args(arguments))
    seed, began = counts.pop("seed"), monotonic()
    with TemporaryDirectory() as folder:
        tally = besieged(counts, seed, Path(folder))
    print(json.dumps(asdict(tally) | {"seconds": round(monotonic() - began)}))
    return 0 if tally.held and tally.silence < MOST_SILENCE else 1


if __name__ == "__main__":
    sys.exit(main())
