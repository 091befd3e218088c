"""HTTP to one server: requests and streamed answers, and what can go wrong, as a sentence.

All of it runs on one event loop in a thread of its own. So an answer's events carry the time at which they arrived,
whatever whoever reads them does meanwhile; several answers can be under way; and closing one breaks it off at once.

Nothing that a server sends is trusted to end. Answers, errors and lines have budgets of bytes, and are asked for
uncompressed, since a compressed one can be any size. A whole answer has one deadline and each event of a stream has
one, so that a server which drips bytes is as silent as one that sends none.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import httpx

from specdemo.engines.server.peer import Answer, Key, Peer, parsed
from specdemo.errors import ServerError, UsageError
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


class Event(NamedTuple):
    """A part of an answer, and when it arrived, by `perf_counter`."""

    at: float
    data: dict[str, Any]


Hear = Callable[[Event | ServerError | None], object]


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
            raise UsageError(f"The API key holds a character that no key has; set {key.variable} anew.")
        super().__init__(server, side, key)
        try:
            self._client = httpx.AsyncClient(
                base_url=_root(server.url),
                timeout=httpx.Timeout(self._silence, connect=min(_CONNECT_SECONDS, self._silence)),
                headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {value}"} if value else {}),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),  # a load sets its own
            )
        except httpx.InvalidURL:
            raise UsageError(f"The {side} server's address is none; write it like http://127.0.0.1:8080.") from None

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

    def send(self, path: str, body: dict[str, Any], hear: Hear) -> "Sending":
        """Ask at once; `hear` each event as it arrives, in another thread, then None, or what went wrong."""
        return Sending(perf_counter(), _start(self._read(path, body, hear)).cancel)

    def close(self) -> None:
        """Close all connections."""
        _wait(self._client.aclose())

    async def _read(self, path: str, body: dict[str, Any], hear: Hear) -> None:
        ended = False
        try:
            async for event in self._told_all(path, body):
                ended = event is None
                hear(event)
            if not ended:
                raise self.broken()
        except ServerError as error:
            hear(error)
        except Exception:  # whoever waits must hear of it, whatever it is
            hear(self.unreadable())

    async def _told_all(self, path: str, body: dict[str, Any]) -> AsyncIterator[Event | None]:
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
