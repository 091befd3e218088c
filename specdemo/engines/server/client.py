"""HTTP requests and streamed answers of one server, with its failures as messages.

Everything runs on one event loop in its own thread. So events carry their true arrival times however busy their
reader is, several answers can be in progress, and closing one cancels it at once.

No server is trusted to stop sending. Answers, errors and lines have byte limits, and are requested uncompressed,
since a compressed one can expand to any size. A whole answer has a deadline, and so has each event of a stream: a
server that drips bytes counts as silent.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx

from specdemo.errors import ServerError, UsageError
from specdemo.files import json_value
from specdemo.records import Server, Side

T = TypeVar("T")
_CONNECT_SECONDS = 5.0
_DATA = "data:"
_DONE = "[DONE]"
OBJECT_BYTES = 8 * 2**20
"""Limit for an answer read whole, such as a list of models."""
STREAM_BYTES = 32 * 2**20
"""Limit for a streamed answer; llama.cpp takes 1.5 kB per event."""
STREAM_EVENTS = 50_000
LINE_BYTES = 2**20
_ERROR_BYTES = 2**16  # read of an error response
STREAM_SECONDS = 3600.0
"""Limit for a streamed answer."""
_QUOTED = 300  # characters quoted of a server's error
_READ = 2000  # characters of it searched for addresses
_ADDRESSES = r"\w+://[^\s\"'<>,;]+|\b\d+(?:\.\d+){3}(?::\d+)?\b"
_SENTENCES = {
    401: "requires a valid API key; set {variable} (401).",
    403: "does not let this API key use the model; set {variable} to one that may (403).",
    404: "knows no such model or address; check both (404: {said})",
    429: "has too many requests; run again later, or raise its limit (429).",
    503: "is not ready, perhaps still loading; run again later (503).",
}
"""Messages by HTTP status."""


class Key(NamedTuple):
    """An API key and the environment variable it comes from, or would come from."""

    variable: str
    value: str = ""


class Answer(NamedTuple):
    """An answer that was read whole."""

    status_code: int
    text: str

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def is_error(self) -> bool:
        return self.status_code >= 400


class Peer:
    """A server's identity in error messages."""

    def __init__(self, server: Server, side: Side, key: Key) -> None:
        self._side = side
        self._silence = server.silence_seconds
        self._url = server.url
        self._variable = key.variable

    def check(self, response: Answer) -> None:
        """Check that an answer is not an error.

        Raises:
            ServerError: it is one.
        """
        if not response.is_error:
            return
        status = response.status_code
        sentence = _SENTENCES.get(status, "answered with an error ({status}): {said}")
        raise self.error(sentence, status=status, variable=self._variable, said=_said(response.text, self._url))

    def check_event(self, event: dict[str, Any]) -> None:
        """Check that an event is not an error.

        Raises:
            ServerError: it is one.
        """
        if "error" in event:
            raise self.error("failed in the middle of its answer: {said}", said=_said(json.dumps(event), self._url))

    def object(self, text: str) -> dict[str, Any]:
        """Parse a JSON object.

        Raises:
            ServerError: the text is not one.
        """
        found = parsed(text)
        if found is None:
            raise self.error(
                "sent something that is no JSON object ({said}); check that the address is that of an "
                "OpenAI-compatible server.",
                said=_short(text, self._url),
            )
        return found

    def failed(self, error: httpx.RequestError) -> ServerError:
        """Return the error for a failed request."""
        match error:
            case httpx.TimeoutException():
                return self.silent()
            case httpx.RemoteProtocolError() | httpx.ReadError():
                return self.broken()
            case httpx.TransportError():
                return self.error("cannot be reached; check that it is running, and its address.")
            case _:
                return self.unreadable()

    def silent(self) -> ServerError:
        """Return the error for a timeout."""
        return self.error(
            "has sent nothing for {seconds:g} s; check whether it is still working, or raise --server-timeout.",
            seconds=self._silence,
        )

    def too_long(self) -> ServerError:
        """Return the error for an answer over a limit."""
        return self.error("sends more than any answer takes; see its log, and check its address.")

    def broken(self) -> ServerError:
        """Return the error for an answer that broke off."""
        return self.error("broke its answer off; see its log, and run again.")

    def unreadable(self) -> ServerError:
        """Return the error for an answer that cannot be decoded."""
        return self.error("sent something that cannot be read; see its log.")

    def understood(self, news: Iterator[T]) -> Iterator[T]:
        """Yield the items, translating parsing errors.

        Raises:
            ServerError: the server sent something unexpected.
        """
        with self.understanding():
            yield from news

    @contextmanager
    def understanding(self) -> Iterator[None]:
        """Translate parsing errors in the block.

        Raises:
            ServerError: the server sent something unexpected.
        """
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise self.error("answered in an unknown format; name its kind with --server.") from error

    def error(self, text: str, **values: Any) -> ServerError:
        """Return an error about this server, without its address, which visitors must not see."""
        return ServerError(f"The {self._side} server " + text.format(**values))


def parsed(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None if the text is not one."""
    try:
        found = json_value(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _said(text: str, url: str) -> str:
    """Return the message in a server's error response, as short as can be found."""
    try:
        found = json_value(text)
    except ValueError:
        return _short(text, url)
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return _short(found if isinstance(found, str) else json.dumps(found), url)


def _short(text: str, url: str) -> str:
    """Return the beginning of a server's text, on one line and without addresses."""
    beginning = " ".join(text[:_READ].split())
    line = re.sub(f"{_ADDRESSES}|{re.escape(urlsplit(url).netloc or url)}", "…", beginning)
    return line if len(line) <= _QUOTED else line[:_QUOTED] + " …"


class Event(NamedTuple):
    """A part of an answer, with its arrival time by `perf_counter`."""

    at: float
    data: dict[str, Any]


OnEvent = Callable[[Event | ServerError | None], object]


class Sending(NamedTuple):
    """A request sent at time `at` by `perf_counter`, and a function that cancels it."""

    at: float
    cancel: Callable[[], object]


class Client(Peer):
    """HTTP client of one side's server."""

    def __init__(self, server: Server, side: Side, key: Key) -> None:
        """Create the client without connecting; an empty key is not sent.

        Raises:
            UsageError: the key or the address is malformed.
        """
        value = key.value.strip()  # Windows line endings leave a \r
        if not (value.isascii() and value.isprintable()):
            raise UsageError(f"The API key contains an invalid character; set {key.variable} again.")
        super().__init__(server, side, key)
        try:
            self._client = httpx.AsyncClient(
                base_url=_root(server.url),
                timeout=httpx.Timeout(self._silence, connect=min(_CONNECT_SECONDS, self._silence)),
                headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {value}"} if value else {}),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),  # a load test sets its own
            )
        except httpx.InvalidURL:
            raise UsageError(f"Invalid URL of the {side} server; write it like http://127.0.0.1:8080.") from None

    def get(self, path: str) -> Answer:
        """Return the server's answer, errors included.

        Raises:
            ServerError: it does not answer within its limits.
        """
        return _wait(self._whole("GET", path))

    def probe(self, path: str) -> dict[str, Any] | None:
        """Return the object that a server answers with; None if it does not know the path.

        Raises:
            ServerError: it does not answer, or requires an API key.
        """
        response = self.get(path)
        if response.status_code in (401, 403):
            self.check(response)
        return parsed(response.text) if response.is_success else None

    def read(self, path: str) -> dict[str, Any]:
        """Return the object that a server answers with.

        Raises:
            ServerError: it does not answer, refuses, or answers with something else.
        """
        return self._object(self.get(path))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the object that a server answers with.

        Raises:
            ServerError: it does not answer, refuses, or answers with something else.
        """
        return self._object(_wait(self._whole("POST", path, body)))

    def _object(self, answer: Answer) -> dict[str, Any]:
        self.check(answer)
        return self.object(answer.text)

    def stream(self, path: str, body: dict[str, Any]) -> Generator[Event]:
        """Send the request on the first `next`, which yields an empty event; then yield each event of the answer.

        Closing the generator cancels the request.

        Raises:
            ServerError: as for `post`, or the answer broke off.
        """
        events: SimpleQueue[Event | ServerError | None] = SimpleQueue()
        sending = self.send(path, body, events.put)
        try:
            yield Event(sending.at, {})
            while (event := events.get()) is not None:
                if isinstance(event, ServerError):
                    raise event
                yield event
        finally:
            sending.cancel()

    def send(self, path: str, body: dict[str, Any], on_event: OnEvent) -> "Sending":
        """Send the request at once. `on_event` gets each event in another thread, then None or an error."""
        return Sending(perf_counter(), _start(self._read(path, body, on_event)).cancel)

    def close(self) -> None:
        _wait(self._client.aclose())

    async def _read(self, path: str, body: dict[str, Any], on_event: OnEvent) -> None:
        ended = False
        try:
            async for event in self._events(path, body):
                ended = event is None
                on_event(event)
            if not ended:
                raise self.broken()
        except ServerError as error:
            on_event(error)
        except Exception:  # reported to the caller, whatever it is
            on_event(self.unreadable())

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncIterator[Event | None]:
        """Yield the events of an answer, then None at its proper end."""
        now = asyncio.get_running_loop().time
        last = now() + STREAM_SECONDS
        with self._failures():
            async with (
                asyncio.timeout(self._silence) as deadline,
                self._client.stream("POST", path, json=body) as response,
            ):
                self._check_encoding(response)
                if response.is_error:
                    self.check(Answer(response.status_code, await self._text(response, _ERROR_BYTES, cut=True)))
                count = 0
                async for line in self._lines(response):
                    text = line.removeprefix(_DATA).strip()
                    if not line.startswith(_DATA):
                        continue  # keep-alive comments, event names
                    if text == _DONE:
                        yield None
                        return
                    count += 1
                    if count > STREAM_EVENTS:
                        raise self.too_long()
                    event = Event(perf_counter(), self.object(text))
                    deadline.reschedule(min(now() + self._silence, last))
                    self.check_event(event.data)
                    yield event
                    if event.data.get("stop") is True:  # marks the last event of llama.cpp's own protocol
                        yield None
                        return

    async def _lines(self, response: httpx.Response) -> AsyncIterator[str]:
        """Yield an answer's lines as they arrive."""
        total, rest = 0, b""
        async for part in response.aiter_raw():
            total += len(part)
            *lines, rest = (rest + part).split(b"\n")
            if total > STREAM_BYTES or len(rest) > LINE_BYTES:
                raise self.too_long()
            for line in lines:
                yield line.decode(errors="replace")
        yield rest.decode(errors="replace")

    async def _whole(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        """Return an answer, read whole."""
        with self._failures():
            async with (
                asyncio.timeout(self._silence),
                self._client.stream(method, path, json=body) as response,
            ):
                self._check_encoding(response)
                most = _ERROR_BYTES if response.is_error else OBJECT_BYTES
                return Answer(response.status_code, await self._text(response, most, cut=response.is_error))

    async def _text(self, response: httpx.Response, most: int, *, cut: bool) -> str:
        """Return the text of an answer, cut off after `most` bytes, or refused unless `cut`."""
        data = bytearray()
        async for part in response.aiter_raw():
            data += part
            if len(data) > most:
                if not cut:
                    raise self.too_long()
                break
        return data[:most].decode(errors="replace")

    def _check_encoding(self, response: httpx.Response) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise self.error("answers compressed, which was not asked for; switch its compression off.")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Translate transport errors and timeouts."""
        try:
            yield
        except httpx.RequestError as error:
            raise self.failed(error) from error
        except TimeoutError as error:
            raise self.silent() from error


def _root(url: str) -> str:
    """Return a URL without the protocol version that is often included."""
    return re.sub(r"/(v\d+/?)?$", "", url)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop shared by all clients."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="specdemo servers", daemon=True).start()
    return loop


def _start(work: Coroutine[Any, Any, T]) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(work, _loop())


def _wait(work: Coroutine[Any, Any, T]) -> T:
    return _start(work).result()
