"""What a server says, read with suspicion: nothing in it can be relied on, and visitors see none of its addresses."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx

from specdemo.errors import ServerError
from specdemo.files import json_value
from specdemo.records import Server, Side

T = TypeVar("T")
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
    """One server, and the sentences that tell what is wrong with it."""

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
