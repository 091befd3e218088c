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
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
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


OUTCOMES = ("answered", "refused", "unexplained", "mixed_up")


def outcome(answered: bool, words: object = "") -> str:
    """Return which outcome an attempt had; one that was refused without a reason is unexplained."""
    return "answered" if answered else "refused" if words else "unexplained"


def answer_of(response: httpx.Response) -> str:
    return outcome(response.is_success, response.text)


# Visitors


@contextmanager
def visiting(url: str) -> Iterator[Visitor]:
    with httpx.Client(base_url=url, timeout=SECONDS, trust_env=False) as http:
        yield Visitor(http)


def send(visitor: Visitor, event: str, data: list[Any], event_data: Any) -> str:
    """Send an event in a new session, and read its messages to the end."""
    other = copy(visitor)
    other.session = uuid4().hex
    sent = other.join(event, data, event_data)
    if not sent.is_success:
        return answer_of(sent)
    last = other.last()
    return outcome(last.get("success", False), last.get("output", {}).get("error"))


def compare(visitor: Visitor, prompt: str, tokens: int, *, leave: bool = False) -> str:
    """The answer must be to this prompt, and of this length."""
    answer = visitor.compare(prompt, tokens, leave=leave)
    if leave or answer is None or "plain" not in answer:
        return outcome(leave)
    own = (answer["prompt"], len(answer["plain"]["token_ids"])) == (prompt, tokens)
    return "answered" if own else "mixed_up"


def crowd(url: str, clients: int, *, leave: bool = False) -> Iterator[str]:
    """Compare for many clients at once, each with its own prompt and length; or let all leave long runs."""

    def ask(number: int) -> str:
        with visiting(url) as visitor:
            return compare(visitor, f"Client {number}", 2000 if leave else 8 + number, leave=leave)

    with ThreadPoolExecutor(max(clients, 1)) as pool:
        yield from pool.map(ask, range(clients))
    with visiting(url) as visitor:
        yield compare(visitor, "The one who stays", 9)


def fuzz(visitor: Visitor, requests: int, seed: int) -> Iterator[str]:
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
def watched(app: App, most: dict[str, float]) -> Iterator[None]:
    """Meanwhile, keep the longest wait for the front page, in seconds, and the most memory of server and engine."""
    over, server = Event(), psutil.Process(app.process.pid)

    def keep(name: str, value: float) -> None:
        most[name] = max(most.get(name, 0.0), value)

    def ask() -> None:
        while not over.wait(0.2):
            began = monotonic()
            with suppress(httpx.TransportError):
                answered = httpx.get(app.url, timeout=SECONDS, trust_env=False).is_success
                keep("silence", monotonic() - began if answered else SECONDS)

    def look() -> None:
        while not over.wait(0.2):
            with suppress(psutil.Error, StopIteration):
                keep("server_bytes", server.memory_info().rss)
                keep("engine_bytes", app.engine().memory_info().rss)

    threads = [Thread(target=work, daemon=True) for work in (ask, look)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def besieged(counts: dict[str, int], seed: int, folder: Path) -> dict[str, float]:
    """Return the number of attempts by outcome, of tracebacks, and what `watched` keeps."""
    found, most, log = Counter[str](dict.fromkeys(OUTCOMES, 0)), dict[str, float](), folder / "log"
    (folder / "models").mkdir()
    arguments = ("-m", "tests.support.scripted_app", folder / "models")
    with started(folder, *arguments, log=log, SPACE_ID="somebody/specdemo") as app, watched(app, most):
        found.update(crowd(app.url, counts["clients"]))
        with visiting(app.url) as visitor:
            found.update(fuzz(visitor, counts["requests"], seed))
        found.update(crowd(app.url, counts["dropped"], leave=True))
    said = log.read_text(encoding="utf-8", errors="replace")
    if tracebacks := said.count("Traceback (most recent call last)"):
        print(said, file=sys.stderr)
    return {"tried": found.total(), **found, "tracebacks": tracebacks, **most}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    counts = vars(parser.parse_args(arguments))
    seed, began = counts.pop("seed"), monotonic()
    with TemporaryDirectory() as folder:
        found = besieged(counts, seed, Path(folder))
    print(json.dumps(found | {"seconds": round(monotonic() - began)}))
    wrong = found["unexplained"] + found["mixed_up"] + found["tracebacks"]
    small = max(found["server_bytes"], found["engine_bytes"]) < MOST_BYTES
    return 0 if wrong == 0 and small and found["silence"] < MOST_SILENCE else 1


if __name__ == "__main__":
    sys.exit(main())
