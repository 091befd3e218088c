"""HTTP to one server: requests and streamed answers, and what can go wrong, as a sentence.

All of it runs on one event loop in a thread of its own. So an answer's events carry the time at which they arrived,
whatever whoever reads them does meanwhile; several answers can be under way; and closing one breaks it off at once.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from functools import cache
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import httpx

from specdemo.errors import ServerError
from specdemo.records import Server, Side

T = TypeVar("T")
_CONNECT_SECONDS = 5.0
_QUOTED = 300  # characters of what a server says of an error
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


class Client:
    """One server, as one side of a comparison uses it."""

    def __init__(self, server: Server, side: Side, key: str | None = None) -> None:
        """`key`: the API key, if the server needs one."""
        timeout = httpx.Timeout(server.silence_seconds, connect=min(_CONNECT_SECONDS, server.silence_seconds))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._side = side
        self._silence = server.silence_seconds
        self._client = httpx.AsyncClient(base_url=_root(server.url), timeout=timeout, headers=headers)

    def get(self, path: str) -> httpx.Response:
        """Whatever the server answers, errors included.

        Raises:
            ServerError: it does not answer.
        """
        return _wait(self._told(self._client.get(path)))

    def probe(self, path: str) -> dict[str, Any] | None:
        """The object that a server answers with; None if it does not know the path.

        Raises:
            ServerError: it does not answer, or wants an API key.
        """
        response = self.get(path)
        if response.status_code in (401, 403):
            self._check(response)
        try:
            found = response.json() if response.is_success else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The object that a server answers with.

        Raises:
            ServerError: it does not answer, refuses, or answers with something else.
        """
        response = _wait(self._told(self._client.post(path, json=body)))
        self._check(response)
        return self._object(response.text)

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
                raise self._broken()
        except ServerError as error:
            hear(error)

    async def _told_all(self, path: str, body: dict[str, Any]) -> AsyncIterator[Event | None]:
        """The events of an answer, and None at its proper end."""
        try:
            async with self._client.stream("POST", path, json=body) as response:
                if response.is_error:
                    await response.aread()
                self._check(response)
                async for line in response.aiter_lines():
                    text = line.removeprefix(_DATA).strip()
                    if not line.startswith(_DATA):
                        continue  # comments that keep the connection open, names of events
                    if text == _DONE:
                        yield None
                        return
                    event = Event(perf_counter(), self._object(text))
                    self._check_event(event.data)
                    yield event
                    if event.data.get("stop") is True:  # llama.cpp's own protocol says so in its last event
                        yield None
                        return
        except httpx.TimeoutException as error:
            raise self._silent() from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def _told(self, answer: Coroutine[Any, Any, T]) -> T:
        try:
            return await answer
        except httpx.TimeoutException as error:
            raise self._silent() from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _check(self, response: httpx.Response) -> None:
        if not response.is_error:
            return
        status, said = response.status_code, _said(response.text)
        raise self.error(
            _SENTENCES.get(status, "answered with an error ({status}): {said}"), status=status, said=said
        )

    def _check_event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise self.error("failed in the middle of its answer: {said}", said=_said(json.dumps(event)))

    def _object(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self.error(
                "sent something that is no JSON object ({said}); check that the address is that of an "
                "OpenAI-compatible server.",
                said=_short(text),
            )
        return found

    def _silent(self) -> ServerError:
        return self.error(
            "has sent nothing for {seconds:g} seconds; check whether it is still working, or raise --server-timeout.",
            seconds=self._silence,
        )

    def _unreachable(self, error: httpx.TransportError) -> ServerError:
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
            return self._broken()
        return self.error("cannot be reached; check that it is running, and its address.")

    def _broken(self) -> ServerError:
        return self.error("broke its answer off; see its log, and run again.")

    def understood(self, news: Iterator[T]) -> Iterator[T]:
        """What is read of an event.

        Raises:
            ServerError: it is not what such a server should send.
        """
        try:
            yield from news
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # nothing in an answer can be relied on
            raise self.error("sent an event in an unknown format; name its kind with --server.") from error

    def error(self, text: str, **values: Any) -> ServerError:
        """An error of this server, as a sentence about it, without the address, which visitors must not see."""
        return ServerError(f"The {self._side} server " + text.format(**values))


_SENTENCES = {
    401: "wants an API key that it knows; set SPECDEMO_API_KEY to one (401).",
    403: "does not let this API key use the model; set SPECDEMO_API_KEY to one that may (403).",
    404: "knows no such model or address; check both (404: {said})",
    429: "has too many requests; run again later, or raise its limit (429).",
    503: "is not ready, perhaps still loading; run again later (503).",
}
"""Some errors by their status."""


def _root(url: str) -> str:
    """An address without the protocol's version, with which many people write it."""
    return re.sub(r"/(v\d+/?)?$", "", url)


def _said(text: str) -> str:
    """What a server says of an error, in as few words as it can be found."""
    try:
        found = json.loads(text)
    except ValueError:
        return _short(text)
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return _short(found if isinstance(found, str) else json.dumps(found))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _QUOTED else line[:_QUOTED] + " …"


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
