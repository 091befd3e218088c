"""HTTP to one server: requests and streamed answers, and what can go wrong, as a sentence.

All of it runs on one event loop in a thread of its own. So an answer's events carry the time at which they arrived,
whatever whoever reads them does meanwhile; several answers can be under way; and closing one breaks it off at once.

Nothing that a server sends is trusted to end. Answers, errors and lines have budgets of bytes, and are asked for
uncompressed, since a compressed one can be any size. A whole answer has one deadline and each event of a stream has
one, so that a server which drips bytes is as silent as one that sends none.
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
"""An answer that is read whole, such as a list of models, at most."""
STREAM_BYTES = 32 * 2**20
"""A streamed answer at most; llama.cpp takes 1.5 kB for an event."""
STREAM_EVENTS = 50_000
LINE_BYTES = 2**20
_ERROR_BYTES = 2**16  # read of an answer that is an error
STREAM_SECONDS = 3600.0
"""A streamed answer at most."""
_QUOTED = 300  # characters of what a server says of an error
_READ = 2000  # characters of it, in which addresses are looked for
_ADDRESSES = r"\w+://[^\s\"'<>,;]+|\b\d+(?:\.\d+){3}(?::\d+)?\b"
_SENTENCES = {
    401: "requires a valid API key; set {variable} (401).",
    403: "does not let this API key use the model; set {variable} to one that may (403).",
    404: "knows no such model or address; check both (404: {said})",
    429: "has too many requests; run again later, or raise its limit (429).",
    503: "is not ready, perhaps still loading; run again later (503).",
}
"""Some errors by their status."""


class Key(NamedTuple):
    """An API key, and the environment variable that it comes from, or would."""

    variable: str
    value: str = ""


class Answer(NamedTuple):
    """An answer that was read whole."""

    status_code: int
    text: str

    @property
    def is_success(self) -> bool:
        """Whether the server did what it was asked."""
        return 200 <= self.status_code < 300

    @property
    def is_error(self) -> bool:
        """Whether it did not."""
        return self.status_code >= 400


class Peer:
    """One server, and the sentences for what is wrong with it."""

    def __init__(self, server: Server, side: Side, key: Key) -> None:
        self._side = side
        self._silence = server.silence_seconds
        self._url = server.url
        self._variable = key.variable

    def check(self, response: Answer) -> None:
        """Check that an answer is none of an error.

        Raises:
            ServerError: it is.
        """
        if not response.is_error:
            return
        status = response.status_code
        sentence = _SENTENCES.get(status, "answered with an error ({status}): {said}")
        raise self.error(sentence, status=status, variable=self._variable, said=_said(response.text, self._url))

    def check_event(self, event: dict[str, Any]) -> None:
        """Check that a part of an answer is none of an error.

        Raises:
            ServerError: it is.
        """
        if "error" in event:
            raise self.error("failed in the middle of its answer: {said}", said=_said(json.dumps(event), self._url))

    def object(self, text: str) -> dict[str, Any]:
        """The JSON object that a text holds.

        Raises:
            ServerError: it holds none.
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
        """What a failed request means."""
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
        """That nothing of an answer has come for too long."""
        return self.error(
            "has sent nothing for {seconds:g} s; check whether it is still working, or raise --server-timeout.",
            seconds=self._silence,
        )

    def too_long(self) -> ServerError:
        """That more comes than any answer has."""
        return self.error("sends more than any answer takes; see its log, and check its address.")

    def broken(self) -> ServerError:
        """That an answer has no end."""
        return self.error("broke its answer off; see its log, and run again.")

    def unreadable(self) -> ServerError:
        """That what came cannot even be decoded."""
        return self.error("sent something that cannot be read; see its log.")

    def understood(self, news: Iterator[T]) -> Iterator[T]:
        """What is read of an event.

        Raises:
            ServerError: it is not what such a server should send.
        """
        with self.understanding():
            yield from news

    @contextmanager
    def understanding(self) -> Iterator[None]:
        """While something that the server sent is read.

        Raises:
            ServerError: it is not what such a server should send.
        """
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise self.error("answered in an unknown format; name its kind with --server.") from error

    def error(self, text: str, **values: Any) -> ServerError:
        """An error of this server, as a sentence about it, without the address, which visitors must not see."""
        return ServerError(f"The {self._side} server " + text.format(**values))


def parsed(text: str) -> dict[str, Any] | None:
    """The JSON object that a text holds, if it does."""
    try:
        found = json_value(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _said(text: str, url: str) -> str:
    """What the server at this address says of an error, in as few words as it can be found."""
    try:
        found = json_value(text)
    except ValueError:
        return _short(text, url)
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return _short(found if isinstance(found, str) else json.dumps(found), url)


def _short(text: str, url: str) -> str:
    """The beginning of a text from the server at this address, on one line and without addresses."""
    beginning = " ".join(text[:_READ].split())
    line = re.sub(f"{_ADDRESSES}|{re.escape(urlsplit(url).netloc or url)}", "…", beginning)
    return line if len(line) <= _QUOTED else line[:_QUOTED] + " …"


class Event(NamedTuple):
    """A part of an answer, and when it arrived, by `perf_counter`."""

    at: float
    data: dict[str, Any]


OnEvent = Callable[[Event | ServerError | None], object]


class Sending(NamedTuple):
    """A request that was sent `at` this time, by `perf_counter`, and how to break it off."""

    at: float
    cancel: Callable[[], object]


class Client(Peer):
    """One server, as one side of a comparison uses it."""

    def __init__(self, server: Server, side: Side, key: Key) -> None:
        """A client that has not connected yet; an empty key is not sent.

        Raises:
            UsageError: no key or no address can be like this.
        """
        value = key.value.strip()  # files with Windows' line ends leave a \r
        if not (value.isascii() and value.isprintable()):
            raise UsageError(f"The API key contains an invalid character; set {key.variable} again.")
        super().__init__(server, side, key)
        try:
            self._client = httpx.AsyncClient(
                base_url=_root(server.url),
                timeout=httpx.Timeout(self._silence, connect=min(_CONNECT_SECONDS, self._silence)),
                headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {value}"} if value else {}),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),  # a load sets its own
            )
        except httpx.InvalidURL:
            raise UsageError(f"Invalid URL of the {side} server; write it like http://127.0.0.1:8080.") from None

    def get(self, path: str) -> Answer:
        """Whatever the server answers, errors included.

        Raises:
            ServerError: it does not answer, or not within its limits.
        """
        return _wait(self._whole("GET", path))

    def probe(self, path: str) -> dict[str, Any] | None:
        """The object that a server answers with; None if it does not know the path.

        Raises:
            ServerError: it does not answer, or requires an API key.
        """
        response = self.get(path)
        if response.status_code in (401, 403):
            self.check(response)
        return parsed(response.text) if response.is_success else None

    def read(self, path: str) -> dict[str, Any]:
        """The object that a server answers with.

        Raises:
            ServerError: it does not answer, refuses, or answers with something else.
        """
        return self._object(self.get(path))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The object that a server answers with.

        Raises:
            ServerError: it does not answer, refuses, or answers with something else.
        """
        return self._object(_wait(self._whole("POST", path, body)))

    def _object(self, answer: Answer) -> dict[str, Any]:
        self.check(answer)
        return self.object(answer.text)

    def stream(self, path: str, body: dict[str, Any]) -> Generator[Event]:
        """Ask at once, on the first `next`, which yields an event without data; then each event of the answer.

        Closing the generator breaks the answer off.

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
        """Ask at once; `on_event` gets each event as it arrives, in another thread, then None, or an error."""
        return Sending(perf_counter(), _start(self._read(path, body, on_event)).cancel)

    def close(self) -> None:
        """Close all connections."""
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
        except Exception:  # reported to whoever waits, whatever it is
            on_event(self.unreadable())

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncIterator[Event | None]:
        """The events of an answer, and None at its proper end."""
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
                        continue  # comments that keep the connection open, names of events
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
                    if event.data.get("stop") is True:  # llama.cpp's own protocol says so in its last event
                        yield None
                        return

    async def _lines(self, response: httpx.Response) -> AsyncIterator[str]:
        """The lines of an answer, as they arrive."""
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
        """An answer, read whole."""
        with self._failures():
            async with (
                asyncio.timeout(self._silence),
                self._client.stream(method, path, json=body) as response,
            ):
                self._check_encoding(response)
                most = _ERROR_BYTES if response.is_error else OBJECT_BYTES
                return Answer(response.status_code, await self._text(response, most, cut=response.is_error))

    async def _text(self, response: httpx.Response, most: int, *, cut: bool) -> str:
        """The text of an answer; what is beyond `most` bytes is cut off, or refused."""
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
        """Whatever can go wrong with a request, as a sentence."""
        try:
            yield
        except httpx.RequestError as error:
            raise self.failed(error) from error
        except TimeoutError as error:
            raise self.silent() from error


def _root(url: str) -> str:
    """An address without the protocol's version, with which many people write it."""
    return re.sub(r"/(v\d+/?)?$", "", url)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all clients."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="specdemo servers", daemon=True).start()
    return loop


def _start(work: Coroutine[Any, Any, T]) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(work, _loop())


def _wait(work: Coroutine[Any, Any, T]) -> T:
    return _start(work).result()
