"""Servers on this machine that misbehave, each in one way, in the midst of OpenAI's protocol."""

import gzip
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic

Send = Callable[[bytes], object]
Answer = Callable[[Send, Callable[[float], object]], object]
_SECONDS = 60.0  # for which an endless one goes on
_PIECE = b"x" * 2**16


def _head(kind: str = "application/json", status: str = "200 OK", *headers: str) -> bytes:
    return "\r\n".join(
        (f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *headers, "", "")
    ).encode()


def _event(text: str = "word ", **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **more}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def _endless(send: Send, piece: bytes, wait: Callable[[float], object], pause: float = 0.0) -> bool:
    until = monotonic() + _SECONDS
    while monotonic() < until:
        send(piece)
        if pause:
            wait(pause)
    return True


_STREAM = _head("text/event-stream")
_MODELS = _head() + json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}).encode()
_BOMB = gzip.compress(bytes(2**26))
STREAMS: dict[str, Answer] = {
    "well-behaved": lambda send, wait: send(_STREAM + _event() * 5 + b"data: [DONE]\n\n"),
    "only DONE": lambda send, wait: send(_STREAM + b"data: [DONE]\n\n"),
    "nothing": lambda send, wait: send(_STREAM),
    "silence": lambda send, wait: wait(_SECONDS),
    "head and silence": lambda send, wait: (send(_STREAM), wait(_SECONDS)),
    "half a head": lambda send, wait: (send(b"HTTP/1.1 200 OK\r\nContent-"), wait(_SECONDS)),
    "no HTTP": lambda send, wait: send(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "closes at once": lambda send, wait: None,
    "endless head": lambda send, wait: _endless(send, b"X-Header: x\r\n" * 100, wait),
    "endless line": lambda send, wait: (send(_STREAM + b"data: "), _endless(send, _PIECE, wait)),
    "endless comments": lambda send, wait: (send(_STREAM), _endless(send, b": still here\n" * 1000, wait)),
    "dripped comments": lambda send, wait: (send(_STREAM), _endless(send, b": still here\n", wait, 0.1)),
    "dripped bytes": lambda send, wait: (send(_STREAM + b"data: "), _endless(send, b" ", wait, 0.1)),
    "endless empty events": lambda send, wait: (send(_STREAM), _endless(send, b"data: {}\n\n" * 1000, wait)),
    "endless events": lambda send, wait: (send(_STREAM), _endless(send, _event() * 100, wait)),
    "endless text in an event": lambda send, wait: (send(_STREAM), _endless(send, _event("x" * 2**18), wait)),
    "an event of a million tokens": lambda send, wait: send(
        _STREAM + b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"completion_tokens":1000000}}\n\n'
    ),
    "negative tokens": lambda send, wait: send(
        _STREAM
        + b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"completion_tokens":-5}}\n\ndata: [DONE]\n\n'
    ),
    "deep nesting": lambda send, wait: send(_STREAM + b"data: " + b"[" * 100_000 + b"\n\n"),
    "a list": lambda send, wait: send(_STREAM + b"data: [1, 2]\n\n"),
    "no JSON": lambda send, wait: send(_STREAM + b"data: <html>\n\n"),
    "no text": lambda send, wait: send(_STREAM + b"data: \xff\xfe\n\n"),
    "other types": lambda send, wait: send(_STREAM + b'data: {"choices": {"a": 1}}\n\ndata: {"choices": [3]}\n\n'),
    "huge numbers": lambda send, wait: send(_STREAM + b'data: {"usage": {"completion_tokens": 1e999}}\n\n'),
    "broken off": lambda send, wait: send(_STREAM + _event() * 3),
    "an error in between": lambda send, wait: send(_STREAM + _event() + b'data: {"error": {"message": "no"}}\n\n'),
    "an endless error": lambda send, wait: (
        send(_head("text/plain", "500 Internal Server Error")),
        _endless(send, _PIECE, wait),
    ),
    "a gzip bomb": lambda send, wait: send(_head("text/event-stream", "200 OK", "Content-Encoding: gzip") + _BOMB),
    "a gzip bomb as an error": lambda send, wait: send(
        _head("text/plain", "500 Oh", "Content-Encoding: gzip") + _BOMB
    ),
    "a redirect": lambda send, wait: send(_head("text/plain", "302 Found", "Location: http://192.0.2.1/")),
    "no content": lambda send, wait: send(_head("text/plain", "204 No Content")),
}
"""Answers to a request for a stream."""
LISTS: dict[str, Answer] = {
    "an endless list": lambda send, wait: (send(_head() + b'{"data": ["'), _endless(send, _PIECE, wait)),
    "a dripped list": lambda send, wait: (send(_head()), _endless(send, b" ", wait, 0.1)),
    "a bomb of models": lambda send, wait: send(
        _head("application/json", "200 OK", "Content-Encoding: gzip") + _BOMB
    ),
    "a million models": lambda send, wait: send(
        _head() + json.dumps({"data": [{"id": "x" * 50}] * 200_000}).encode()
    ),
    "models of other types": lambda send, wait: send(_head() + b'{"data": {"id": [1]}}'),
}
"""Answers to a request for the list of models."""


@contextmanager
def misbehaving(mode: str) -> Iterator[str]:
    """A server that misbehaves like this; its address."""
    over = Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(5)
            asked = connection.recv(2**16)
            path = asked.split(b" ")[1] if b" " in asked else b""
            if mode in LISTS and path.endswith(b"/models"):
                LISTS[mode](connection.sendall, over.wait)
            elif path.endswith(b"/models"):
                connection.sendall(_MODELS)
            elif path.endswith(b"/completions") and mode in STREAMS:
                STREAMS[mode](connection.sendall, over.wait)
            else:
                connection.sendall(_head("text/plain", "404 Not Found"))

    def accept() -> None:
        with suppress(OSError):  # it was closed
            while True:
                connection, _ = listening.accept()
                Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        accepting = Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
