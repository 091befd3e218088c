"""HTTP requests to one server, and its streamed answers.

Everything runs on one event loop in its own thread, so events carry their true arrival times however busy their
reader is. No server is trusted to stop sending: every answer has a byte limit and every event a deadline.
"""

import asyncio
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

import httpx
from httpx_sse import EventSource
from pydantic import ValidationError

from specdemo.engines.server import failures
from specdemo.errors import ServerError, UsageError
from specdemo.records import Server, Side

T = TypeVar("T")
_log = logging.getLogger(__name__)
_CONNECT_SECONDS = 5.0  # a reachable host accepts in well under one; more only delays the message
_OBJECT_BYTES = 8 * 2**20  # of an answer without a stream; a list of a thousand models takes 0.5 MB
_STREAM_BYTES = 32 * 2**20  # of a stream; llama.cpp takes 1.5 kB per event, and a run has at most 2,048 tokens
_STREAM_EVENTS = 50_000  # of a stream; more of the smallest ones would fill the memory
_HEAD_BYTES = 2**16  # of an answer's beginning, to quote from if it is no stream of events
# of an event, for both protocols; others can be large, such as the ids of the prompt
_FIELDS = (
    "choices", "usage", "metrics", "sglext", "timings",
    "content", "tokens", "tokens_predicted", "prompt_progress", "stop", "stop_type",
)  # fmt: skip
# ask for counts, ids and, from SGLang, acceptance; some servers refuse them
_OPTIONAL = ("stream_options", "return_token_ids", "return_spec_tokens_details")
_URL_PATH = r"(?P<root>.*?)(?P<version>/v\d\w*(/.*?)?)?(/(chat/)?completions?|/models|/responses|/props|/health)?/*"
_LOCAL_HOST = re.compile(r"localhost|127(\.\d+){3}|::1|0\.0\.0\.0")
REFUSALS = 301, 302, 303, 307, 308, 401, 403, 429, 503  # statuses that mean more than an unknown path


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
        self._silence = server.silence_seconds
        self._omitted = set[str]()  # fields that the server refuses
        self.key = os.environ.get(key_variable, "").strip()  # Windows line endings leave a \r
        if not (self.key.isascii() and self.key.isprintable()):
            raise UsageError(f"The API key contains an invalid character; set {key_variable} again.")
        try:
            url = httpx.URL(server.url)
            is_valid = url.scheme in ("http", "https") and url.host and not url.userinfo
        except httpx.InvalidURL:
            is_valid = False
        if not is_valid:
            raise UsageError(f"Invalid URL of the {side} server; write it like http://127.0.0.1:8080.")
        self._address = urlsplit(server.url).netloc
        path = re.fullmatch(_URL_PATH, url.path)
        self.version = (path and path["version"]) or ""  # of the protocol, such as /v1, if it is given
        base = url.copy_with(path=(path and path["root"]) or "/", query=None, fragment=None)
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        # without the environment's proxies and certificates, whose faults must not reach this machine's own servers
        is_local = url.scheme == "http" and _LOCAL_HOST.fullmatch(url.host) is not None
        try:
            self._http = httpx.AsyncClient(
                base_url=base,
                timeout=httpx.Timeout(self._silence, connect=min(_CONNECT_SECONDS, self._silence)),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),  # a load test sets its own
                headers=headers,
                trust_env=not is_local,
                verify=not is_local,
            )
        except (ImportError, httpx.InvalidURL, ValueError, OSError) as error:  # SOCKS needs a package, as one says
            reason = f"The environment names a proxy or certificate that cannot be used ({error})"
            raise UsageError(f"{reason}; correct NO_PROXY and the like, or SSL_CERT_FILE.") from error

    def find(self, path: str, *, refusals: Collection[int] = REFUSALS) -> dict[str, Any] | None:
        """Return the object at a path; None if there is none. Raise ServerError for a status in `refusals`."""
        status, text = _wait(self._request("GET", path))
        if status in refusals:
            raise self._response_error(status, text)
        return failures.usable_object(status, text)

    def fetch(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the object at a path, or the answer to a body. Raise ServerError for anything else."""
        status, text = _wait(self._request("GET" if body is None else "POST", path, body))
        answer = failures.usable_object(status, text)
        if answer is None:
            raise self._response_error(status, text)
        return answer

    def stream(self, path: str, body: dict[str, Any]) -> Generator[Event]:
        """Send at the first `next`, which yields an empty event, then yield events. Closing cancels the request."""
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
        """Send the request at once. Return its time by `perf_counter`, and a function that cancels it.

        `on_event` is called in another thread, with each event and at the end with None or an error.
        """
        return perf_counter(), _start(self._report(path, body, on_event)).cancel

    def close(self) -> None:
        _wait(self._http.aclose())

    def error(self, text: str) -> ServerError:
        return ServerError(f"The {self.side} server {text}")

    @contextmanager
    def checking_format(self) -> Iterator[None]:
        try:
            yield
        except failures.ExcessError as error:
            raise self._too_long(str(error)) from error
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            reason = self.redact(str(error)) or type(error).__name__
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False, include_input=False)[0]
                reason = self.redact(": ".join([".".join(map(str, first["loc"])), first["msg"]]))
            raise self.error(f"answered in an unknown format ({reason}); name its kind with --server.") from error

    def redact(self, message: object) -> str:
        """Return a server's message on one line, without addresses, which visitors must not see."""
        return failures.redact(message, self._address)

    async def _report(self, path: str, body: dict[str, Any], on_event: OnEvent) -> None:
        try:
            while refused := await self._stream_once(path, body, on_event):
                self._omitted.update(refused)
            on_event(None)
        except ServerError as error:
            on_event(error)
        except Exception as error:  # the receiver waits for an end in any case
            _log.exception("An answer could not be read")
            on_event(self.error(f"sent data that cannot be read ({type(error).__name__}); see specdemo's log."))

    async def _stream_once(self, path: str, body: dict[str, Any], on_event: OnEvent) -> list[str]:
        """Report the events up to the proper end: `[DONE]`, llama.cpp's `stop`, or a finish reason with usage.

        A server that sends only the finish reason may also close the connection or fall silent. Return the optional
        fields that an older server refuses; then nothing was reported.
        """
        now, count, reported, finished = asyncio.get_running_loop().time, 0, False, False
        head: Callable[[], str] = str
        body = {name: body[name] for name in body if name not in self._omitted}
        try:
            async with (
                self._open("POST", path, _STREAM_BYTES, body) as (response, received, deadline),
                aclosing(EventSource(response).aiter_sse()) as frames,
            ):
                head = received.text
                if not response.is_success:
                    await response.aread()
                    raise self._response_error(response.status_code, received.text())
                response.headers["content-type"] = "text/event-stream"  # some servers call it plain text
                async for frame in frames:
                    at, text, count = perf_counter(), frame.data.strip(), count + 1
                    if text == "[DONE]":
                        return []
                    if count > _STREAM_EVENTS:
                        raise self._too_long()
                    data = self._parsed_event(text, failed=frame.event == "error")
                    if data is None:
                        continue
                    deadline.reschedule(now() + self._silence)
                    on_event(Event(at, data))
                    reported = True
                    finished = finished or failures.is_finished(data)
                    if data.get("stop") is True or (finished and data.get("usage")):
                        return []
                if not finished:
                    raise self._response_error(response.status_code, received.text(), streamed=True)
        except ServerError:
            text = "" if reported else head()
            if refused := [name for name in _OPTIONAL if name in body and name in text]:
                return refused
            if not finished:
                raise
        return []

    def _parsed_event(self, text: str, *, failed: bool) -> dict[str, Any] | None:
        data = failures.parse_json(text)
        reason = (data or text) if failed else failures.error_in(data)
        if reason is not None:
            raise self.error(f"failed in the middle of its answer: {self.redact(reason)}")
        if data is None and text.startswith("{"):
            raise self.error(f"sent an event that is not JSON ({self.redact(text)}); see its log, and run again.")
        return {name: data[name] for name in _FIELDS if name in data} if isinstance(data, dict) else None

    def _response_error(self, status: int, text: str, *, streamed: bool = False) -> ServerError:
        return self.error(failures.describe(status, text, self._address, self._key_variable, streamed=streamed))

    def _too_long(self, what: str = "data") -> ServerError:
        return self.error(f"sends more {what} than any answer needs; see its log, and check its address.")

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        async with self._open(method, path, _OBJECT_BYTES, body) as (response, received, _):
            await response.aread()
            text = response.content.decode(errors="replace") if response.is_success else received.text()
            return response.status_code, text

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, limit: int, body: dict[str, Any] | None
    ) -> AsyncIterator[tuple[httpx.Response, "_LimitedStream", asyncio.Timeout]]:
        try:
            async with (
                asyncio.timeout(self._silence) as deadline,
                self._http.stream(method, path, json=body) as response,
            ):
                if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
                    raise self.error("sends compressed answers, which the request excludes; switch compression off.")
                assert isinstance(response.stream, httpx.AsyncByteStream)
                received = _LimitedStream(response.stream, limit, self._too_long() if response.is_success else None)
                response.stream = received
                yield response, received, deadline
        except (httpx.ConnectTimeout, httpx.ConnectError, httpx.ProxyError, httpx.UnsupportedProtocol) as error:
            reason = self.redact(str(error) or "no connection in time")
            raise self.error(f"cannot be reached ({reason}); check that it is running, and its address.") from error
        except (TimeoutError, httpx.TimeoutException) as error:
            advice = "check whether it is still working, or raise --server-timeout."
            raise SilentError(str(self.error(f"has sent nothing for {self._silence:g} s; {advice}"))) from error
        except httpx.RequestError as error:
            raise self.error("ended its answer early; see its log, and run again.") from error


class _LimitedStream(httpx.AsyncByteStream):
    """Passes on an answer's bytes up to a limit, then raises the error or, without one, ends; keeps the beginning."""

    def __init__(self, stream: httpx.AsyncByteStream, limit: int, error: ServerError | None) -> None:
        self._stream, self._error = stream, error
        self._limit = limit if error is not None else _HEAD_BYTES
        self._head, self._total = bytearray(), 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self._total += len(part)
            self._head += part[: max(_HEAD_BYTES - len(self._head), 0)]
            if self._total > self._limit:
                if self._error is not None:
                    raise self._error
                return
            yield part
        yield b"\n\n"  # ends an event that a server left open

    async def aclose(self) -> None:
        await self._stream.aclose()

    def text(self) -> str:
        return self._head.decode(errors="replace")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="specdemo servers", daemon=True).start()
    return loop


def _start(work: Coroutine[Any, Any, T]) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(work, _loop())


def _wait(work: Coroutine[Any, Any, T]) -> T:
    return _start(work).result()
