"""HTTP to one server: requests and streamed answers, and what can go wrong, as a sentence.

All of it runs on one event loop in a thread of its own. So an answer's events carry the time at which they arrived,
whatever whoever reads them does meanwhile; several answers can be under way; and closing one breaks it off at once.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import cache
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import httpx

from specdemo.engines.server.peer import Key, Peer, parsed
from specdemo.errors import ServerError, UsageError
from specdemo.records import Server, Side

T = TypeVar("T")
_CONNECT_SECONDS = 5.0
_DATA = "data:"
_DONE = "[DONE]"


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
                headers={"Authorization": f"Bearer {value}"} if value else {},
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),  # a load sets its own
            )
        except httpx.InvalidURL:
            raise UsageError(f"The {side} server's address is none; write it like http://127.0.0.1:8080.") from None

    def get(self, path: str) -> httpx.Response:
        """Whatever the server answers, errors included.

        Raises:
            ServerError: it does not answer.
        """
        return _wait(self._told(self._client.get(path)))

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
        return self._read_all(self._client.get(path))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The object that a server answers with.

        Raises:
            ServerError: it does not answer, refuses, or answers with something else.
        """
        return self._read_all(self._client.post(path, json=body))

    def _read_all(self, answer: Coroutine[Any, Any, httpx.Response]) -> dict[str, Any]:
        response = _wait(self._told(answer))
        self.check(response)
        return self.object(response.text)

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
        try:
            async with self._client.stream("POST", path, json=body) as response:
                if response.is_error:
                    await response.aread()
                self.check(response)
                async for line in response.aiter_lines():
                    text = line.removeprefix(_DATA).strip()
                    if not line.startswith(_DATA):
                        continue  # comments that keep the connection open, names of events
                    if text == _DONE:
                        yield None
                        return
                    event = Event(perf_counter(), self.object(text))
                    self.check_event(event.data)
                    yield event
                    if event.data.get("stop") is True:  # llama.cpp's own protocol says so in its last event
                        yield None
                        return
        except httpx.RequestError as error:
            raise self.failed(error) from error

    async def _told(self, answer: Coroutine[Any, Any, T]) -> T:
        try:
            return await answer
        except httpx.RequestError as error:
            raise self.failed(error) from error


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
