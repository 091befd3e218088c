"""HTTP requests to one server and its streamed answers, with its failures as messages.

Everything runs on one event loop in its own thread, so events carry their true arrival times however busy their
reader is. No server is trusted to stop sending: every answer has a byte limit and every event a deadline. An error in
any form that servers use ends the answer in its words.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import cache
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
from httpx_sse import EventSource

from specdemo.errors import ServerError, UsageError
from specdemo.records import Server, Side

T = TypeVar("T")
_log = logging.getLogger(__name__)
_CONNECT_SECONDS = 5.0  # a reachable host accepts in well under one; more only delays the message
_OBJECT_BYTES = 8 * 2**20  # for an answer read whole; a list of a thousand models takes 0.5 MB
_STREAM_BYTES = 32 * 2**20  # for a stream; llama.cpp takes 1.5 kB per event, and a run has at most 2,048 tokens
_STREAM_EVENTS = 50_000  # in a stream; the smallest ones would still fill the memory
_KEPT_BYTES = 2**16  # of an answer's beginning, to quote from if it is no stream of events
_OPTIONAL = ("stream_options", "return_token_ids")  # ask for counts and ids; some servers refuse them
_QUOTED = 300  # characters quoted of a server's own words
_ADDRESSES = r"\w+://[^\s\"'<>,;]+|\b\d+(?:\.\d+){3}(?::\d+)?\b"
_PASTED = r"(?P<root>.*?)(?P<version>/v\d\w*(/.*?)?)?(/(chat/)?completions?|/models|/responses|/props|/health)?/*"
_HERE = "localhost", "127.0.0.1", "::1", "0.0.0.0"
_REFUSALS = 301, 302, 303, 307, 308, 401, 403, 429, 503  # by these a server says more than that a path is unknown
_SENTENCES = {
    401: "requires a valid API key; set {variable}",
    403: "does not let this API key use the model; set {variable} to one that may",
    404: "knows no such model or address; check both, and --model",
    429: "has too many requests; run again later, or raise its limit",
    502: "is behind a gateway that cannot reach it; check that it is running",
    503: "is not ready, perhaps still loading; run again later",
    504: "is behind a gateway that gave up waiting; see its log",
}


class SilentError(ServerError): ...


class Event(NamedTuple):
    """A part of an answer, with its arrival time by `perf_counter`."""

    at: float
    data: dict[str, Any]


OnEvent = Callable[[Event | ServerError | None], object]


class Client:
    """`key_variable` is the environment variable with the API key, if the server needs one."""

    def __init__(self, server: Server, side: Side, key_variable: str) -> None:
        self.side, self._key_variable = side, key_variable
        self._url, self._silence = server.url, server.silence_seconds
        self._omitted = set[str]()  # fields that the server refuses
        self.key = os.environ.get(key_variable, "").strip()  # Windows line endings leave a \r
        if not (self.key.isascii() and self.key.isprintable()):
            raise UsageError(f"The API key contains an invalid character; set {key_variable} again.")
        try:
            url = httpx.URL(server.url)
            fits = url.scheme in ("http", "https") and url.host and not url.userinfo
        except httpx.InvalidURL:
            fits = False
        if not fits:
            raise UsageError(f"Invalid URL of the {side} server; write it like http://127.0.0.1:8080.")
        path = re.fullmatch(_PASTED, url.path)
        self.version = (path and path["version"]) or ""  # of the protocol, such as /v1, if it is given
        base = url.copy_with(path=(path and path["root"]) or "/", query=None, fragment=None)
        self._http = httpx.AsyncClient(
            base_url=base,
            transport=_transport(base),
            timeout=httpx.Timeout(self._silence, connect=min(_CONNECT_SECONDS, self._silence)),
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {}),
        )

    def find(self, path: str, *, refusals: Collection[int] = _REFUSALS) -> dict[str, Any] | None:
        """Return the object at a path; None if there is none. Refusals with one of these statuses are raised."""
        status, text = _wait(self._whole("GET", path))
        if status in refusals:
            raise self._unusable(status, text)
        return _object(status, text)

    def text(self, path: str) -> str:
        """Return the text at a path, empty if there is none."""
        status, text = _wait(self._whole("GET", path))
        return text if status == 200 else ""

    def fetch(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the object at a path, or in answer to a body; anything else is a `ServerError`."""
        status, text = _wait(self._whole("GET" if body is None else "POST", path, body))
        found = _object(status, text)
        if found is None:
            raise self._unusable(status, text)
        return found

    def stream(self, path: str, body: dict[str, Any]) -> Generator[Event]:
        """Send on the first `next`, which yields an empty event; then yield each. Closing cancels the request."""
        events: SimpleQueue[Event | ServerError | None] = SimpleQueue()
        sent, cancel = self.send(path, body, events.put)
        try:
            yield Event(sent, {})
            while (event := events.get()) is not None:
                if isinstance(event, ServerError):
                    raise event
                yield event
        finally:
            cancel()

    def send(self, path: str, body: dict[str, Any], on_event: OnEvent) -> tuple[float, Callable[[], object]]:
        """Send the request at once; return its time by `perf_counter`, and a function that cancels it. `on_event`
        gets each event in another thread, then None or an error.
        """
        return perf_counter(), _start(self._report(path, body, on_event)).cancel

    def close(self) -> None:
        _wait(self._http.aclose())

    def error(self, text: str) -> ServerError:
        return ServerError(f"The {self.side} server {text}")

    @contextmanager
    def understanding(self) -> Iterator[None]:
        """Raise a ServerError in place of what fails in the block because the server sent something unexpected."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise self.error("answered in an unknown format; name its kind with --server.") from error

    def words(self, said: object) -> str:
        """Return what a server said, on one line and without addresses, which visitors must not see."""
        while isinstance(said, dict) or (isinstance(said, list) and said and isinstance(said[0], dict)):
            said = said[0] if isinstance(said, list) else said
            keys = ("error", "errors", "message", "error_msg", "detail", "msg")
            said = next((said[key] for key in keys if said.get(key)), json.dumps(said))
        text = said if isinstance(said, str) else json.dumps(said)
        if page := re.match(r"\s*<(?:.*?<title>(.*?)</title>)?", text[:_KEPT_BYTES], re.DOTALL | re.IGNORECASE):
            text = f"a web page, {page[1]!r}" if page[1] else "a web page"
        text = " ".join("".join(letter if letter.isprintable() else " " for letter in text[:2000]).split())
        text = re.sub(f"{_ADDRESSES}|{re.escape(urlsplit(self._url).netloc or self._url)}", "…", text)
        return text if len(text) <= _QUOTED else text[:_QUOTED] + " …"

    async def _report(self, path: str, body: dict[str, Any], on_event: OnEvent) -> None:
        try:
            async for event in self._events(path, body):
                on_event(event)
            on_event(None)
        except ServerError as error:
            on_event(error)
        except Exception as error:  # a reader waits for an end, whatever it is
            _log.exception("An answer could not be read")
            on_event(self.error(f"sent something that cannot be read ({type(error).__name__}); see specdemo's log."))

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncIterator[Event]:
        """Yield the events up to the proper end: `[DONE]`, llama.cpp's `stop`, or a finish reason with usage.

        A server that sends only the finish reason may also close the connection or fall silent.
        """
        now, count, finished = asyncio.get_running_loop().time, 0, False
        body = {name: body[name] for name in body if name not in self._omitted}
        try:
            async with self._answer("POST", path, _STREAM_BYTES, body) as (response, received, deadline):
                if not response.is_success:
                    await response.aread()
                    if refused := [name for name in _OPTIONAL if name in body and name in received.text()]:
                        self._omitted.update(refused)  # it is an older server
                        async for event in self._events(path, body):
                            yield event
                        return
                    raise self._unusable(response.status_code, received.text())
                response.headers["content-type"] = "text/event-stream"  # some servers call it plain text
                async with aclosing(EventSource(response).aiter_sse()) as frames:
                    async for frame in frames:
                        at, text, count = perf_counter(), frame.data.strip(), count + 1
                        if text == "[DONE]":
                            return
                        if count > _STREAM_EVENTS:
                            raise self._too_long()
                        data = self._checked(text, failed=frame.event == "error")
                        if data is None:
                            continue
                        deadline.reschedule(now() + self._silence)
                        yield Event(at, data)
                        finished = finished or _is_finished(data)
                        if data.get("stop") is True or (finished and data.get("usage")):
                            return
                if not finished:
                    raise self._unusable(response.status_code, received.text(), streamed=True)
        except ServerError:
            if not finished:
                raise

    def _checked(self, text: str, *, failed: bool) -> dict[str, Any] | None:
        data = _parsed(text)
        reason = (data or text) if failed else _error_in(data)
        if reason is not None:
            raise self.error(f"failed in the middle of its answer: {self.words(reason)}")
        if data is None and text.startswith("{"):
            raise self.error(f"sent an event that is no JSON ({self.words(text)}); see its log, and run again.")
        return data if isinstance(data, dict) else None

    def _unusable(self, status: int, text: str, *, streamed: bool = False) -> ServerError:
        found = _parsed(text)
        said = self.words(found or text)
        if not 200 <= status < 300:
            sentence = "redirects to another address; give that one" if status < 400 else "answered with an error"
            sentence = _SENTENCES.get(status, sentence).format(variable=self._key_variable)
            return self.error(f"{sentence} ({status}{': ' if said else ''}{said}).")
        if streamed and (not text.strip() or re.search(r"^(data|event|id|retry|error)?:", text, re.MULTILINE)):
            reason = _last_words(text)
            what = f"failed in the middle of its answer: {self.words(reason)}" if reason else ""
            return self.error(what or "broke its answer off; see its log, and run again.")
        if streamed and _object(status, text) is not None:
            return self.error("answered in one piece, which cannot be timed; have it stream its answers.")
        if _error_in(found) is not None:
            return self.error(f"answered with an error: {said}")
        return self.error(f"sent no JSON object ({said}); check that this is an OpenAI-compatible server.")

    def _too_long(self) -> ServerError:
        return self.error("sends more than any answer takes; see its log, and check its address.")

    async def _whole(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        async with self._answer(method, path, _OBJECT_BYTES, body) as (response, received, _):
            await response.aread()
            text = response.content.decode(errors="replace") if response.is_success else received.text()
            return response.status_code, text

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, limit: int, body: dict[str, Any] | None
    ) -> AsyncIterator[tuple[httpx.Response, "_Bounded", asyncio.Timeout]]:
        try:
            async with (
                asyncio.timeout(self._silence) as deadline,
                self._http.stream(method, path, json=body) as response,
            ):
                if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
                    raise self.error("answers compressed, which was not asked for; switch its compression off.")
                assert isinstance(response.stream, httpx.AsyncByteStream)
                received = _Bounded(response.stream, limit, self._too_long() if response.is_success else None)
                response.stream = received
                yield response, received, deadline
        except (httpx.ConnectTimeout, httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol) as error:
            why = self.words(str(error) or "no connection in time")
            raise self.error(f"cannot be reached ({why}); check that it is running, and its address.") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            advice = "check whether it is still working, or raise --server-timeout."
            raise SilentError(str(self.error(f"has sent nothing for {self._silence:g} s; {advice}"))) from error
        except httpx.RequestError as error:
            raise self.error("broke its answer off; see its log, and run again.") from error


class _Bounded(httpx.AsyncByteStream):
    """Passes an answer's bytes on up to a limit: then it fails or, without an error, ends. Keeps the first bytes."""

    def __init__(self, stream: httpx.AsyncByteStream, limit: int, error: ServerError | None) -> None:
        self._stream, self._error = stream, error
        self._limit = limit if error is not None else _KEPT_BYTES
        self._kept, self._last, self._total = bytearray(), b"", 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self._total, self._last = self._total + len(part), part
            self._kept += part[: max(_KEPT_BYTES - len(self._kept), 0)]
            if self._total > self._limit:
                if self._error is not None:
                    raise self._error
                return
            yield part
        yield b"\n\n"  # ends an event that a server left open

    async def aclose(self) -> None:
        await self._stream.aclose()

    def text(self) -> str:
        last = self._last if self._total > _KEPT_BYTES else b""
        return (bytes(self._kept) + last).decode(errors="replace")


def _parsed(text: str) -> Any:
    """Parse JSON, also with NaN or half a surrogate pair, which servers write; None if it is not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _object(status: int, text: str) -> dict[str, Any] | None:
    found = _parsed(text) if 200 <= status < 300 else None
    return found if isinstance(found, dict) and _error_in(found) is None else None


def _error_in(data: object) -> object | None:
    """Return what an object says of an error, or None; `"error": null` is none."""
    if not isinstance(data, dict):
        return None
    choices = data.get("choices") or ()
    if data.get("object") == "error" or any(data.get(key) for key in ("error", "errors", "error_msg")):
        return data
    if not choices and (isinstance(data.get("message"), str) or data.get("detail")):
        return data
    first = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
    return (first.get("error") or data) if first.get("finish_reason") in ("error", "abort") else first.get("error")


def _last_words(text: str) -> object | None:
    """Return what the last line of a stream says of an error, or None."""
    lines = re.findall(r"^(?!event:|id:|retry:|:)(?:data:|(error:))? *(.*\S)", text, re.MULTILINE)
    field, said = lines[-1] if lines else ("", "{}")
    found = _parsed(said)
    return found or said if field or found is None else _error_in(found)


def _is_finished(data: dict[str, Any]) -> bool:
    choices = data.get("choices")
    return isinstance(choices, list) and any(isinstance(one, dict) and one.get("finish_reason") for one in choices)


def _transport(url: httpx.URL) -> httpx.AsyncHTTPTransport:
    """Return a direct connection to this machine; elsewhere, through the environment's proxy, if it has one."""
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or url.host in _HERE or proxy_bypass(url.netloc.decode()):
        proxy = None
    elif "://" not in proxy:
        proxy = f"http://{proxy}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)  # a load test sets its own
    try:
        return httpx.AsyncHTTPTransport(proxy=proxy, limits=limits)
    except (ImportError, httpx.InvalidURL, ValueError) as error:  # SOCKS needs a package, as the error says
        what = f"The environment names a proxy that cannot be used ({error})"
        raise UsageError(f"{what}; correct it, or name the server's host in NO_PROXY.") from error


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="specdemo servers", daemon=True).start()
    return loop


def _start(work: Coroutine[Any, Any, T]) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(work, _loop())


def _wait(work: Coroutine[Any, Any, T]) -> T:
    return _start(work).result()
