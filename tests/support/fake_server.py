"""Local servers that send a test's answers, whether or not these follow OpenAI's protocol."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from time import monotonic
from typing import Any

Wait = Callable[[float], object]  # ends early when the server does
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    """An object or text; or a stream of events: objects, texts after `data:`, or bytes as they are; or `raw`, which
    writes all of it.
    """

    body: Any = None
    status: int = 200
    stream: Iterable[Any] | None = None
    broken: bool = False  # the connection is cut instead of ended
    headers: Mapping[str, str] = field(default_factory=dict)
    waits: Callable[[], object] = lambda: None
    raw: Callable[[BaseHTTPRequestHandler, Wait], object] | None = None


Answers = Mapping[str, Answer]


@dataclass
class FakeServer:
    url: str
    bodies: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def fake(answers: Answers | Callable[[str, dict[str, Any]], Answer | None]) -> Iterator[FakeServer]:
    """Answers by path, or computed from path and body."""
    over = Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        do_HEAD = do_GET  # noqa: N815

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            server.bodies.setdefault(self.path, []).append(body)
            self._answer(body)

        def _answer(self, body: dict[str, Any]) -> None:
            server.keys.append(self.headers.get("Authorization"))
            found = answers(self.path, body) if callable(answers) else answers.get(self.path)
            answer = found or Answer({"error": "no such path"}, 404)
            self.close_connection = True
            with suppress(OSError):  # the client has left
                if answer.raw is not None:
                    answer.raw(self, over.wait)
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Connection", "close")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for event in [_text(answer.body).encode()] if answer.stream is None else answer.stream:
                    data = event if isinstance(event, bytes) else f"data: {_text(event)}\n\n".encode()
                    if data:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                answer.waits()
                if not answer.broken:
                    self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: Any) -> None:
            pass

    class Busy(ThreadingHTTPServer):
        request_queue_size = 256  # many connect at once

    with Busy(("127.0.0.1", 0), Handler) as http:
        server = FakeServer(f"http://127.0.0.1:{http.server_port}")
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            over.set()
            http.shutdown()
            thread.join()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def chat(text: Any = None, *, usage: int | None = None, reason: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text, **delta}, "finish_reason": reason}
    return {"choices": [choice], **({} if usage is None else {"usage": {"completion_tokens": usage}})}


def models(*names: str) -> Answer:
    return Answer({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7}}
EVENTS = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    chat("The"),
    chat(" cat sat on"),
    chat(" the"),
    chat(" red mat", reason="length"),
    USAGE,
)
TEXT = "The cat sat on the red mat"


def answers(*stream: Any, **more: Any) -> dict[str, Answer]:
    """Return the answers of a server with one model that streams these events, or the usual ones."""
    return {"/v1/models": models("tiny"), CHAT: Answer(stream=stream or (*EVENTS, "[DONE]"), **more)}


_PIECE = b"x" * 2**16
_EVENT = f"data: {json.dumps(chat('word '))}\n\n".encode()
_BOMB = gzip.compress(bytes(2**26))


def _head(kind: str = "text/event-stream", status: str = "200 OK", *headers: str) -> bytes:
    lines = f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *headers, "", ""
    return "\r\n".join(lines).encode()


def _sent(start: bytes, piece: bytes = b"", pause: float = 0.0) -> Callable[[BaseHTTPRequestHandler, Wait], None]:
    """Send the start, then a piece at a time, with pauses, for a minute."""

    def raw(asked: BaseHTTPRequestHandler, wait: Wait) -> None:
        asked.wfile.write(start)
        until = monotonic() + 60
        while (piece or pause) and monotonic() < until:
            asked.wfile.write(piece)
            wait(pause)

    return raw


MISBEHAVING = {
    "silence": _sent(b"", pause=60),
    "head and silence": _sent(_head(), pause=60),
    "no HTTP": _sent(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "endless head": _sent(b"HTTP/1.1 200 OK\r\n", b"X-Header: x\r\n" * 100),
    "endless line": _sent(_head() + b"data: ", _PIECE),
    "dripped null": _sent(_head(), b"data: null\n\n", 0.1),
    "endless empty events": _sent(_head(), b"data: {}\n\n" * 1000),
    "endless events": _sent(_head(), _EVENT * 100),
    "endless error": _sent(_head("text/plain", "500 Internal Server Error"), _PIECE),
    "gzip bomb": _sent(_head("text/event-stream", "200 OK", "Content-Encoding: gzip") + _BOMB),
    "endless list": _sent(_head("application/json") + b'{"data": ["', _PIECE),
    "dripped list": _sent(_head("application/json"), b" ", 0.1),
}
