"""The gate limits the size and number of requests, and thereby the memory and disk that visitors can use.

| what | limit | in all, at most |
|---|---|---|
| events queued, running or not yet fetched | 100 | 100 bodies of 1 MB, parsed |
| texts of an event | 262,144 characters | 1 MB in Python, if one of them is an emoji |
| sessions whose state is kept | 200 | 1 MB of chat and 0.6 MB of Gradio's settings each |
| files of visitors | 100 of 10 MB, an hour | 1 GB on the disk |

Only listed routes are open: a route that a release of Gradio adds stays closed until it is listed. Requests that a
browser sends for another site's page are refused. A page on a loopback address answers only to its own names, because
any site could otherwise have its own name resolve to 127.0.0.1 and use the page (DNS rebinding).
"""

import asyncio
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.errors import quoted
from specdemo.files import json_value

EVENTS = 100  # queued, running or not yet fetched; a page sends up to six at once
UNREAD_SECONDS = 60.0  # a browser fetches at once; a tab that is suspended for longer must reload
BODY_BYTES = 2**20  # the largest is a run to share: 2,048 tokens a side, compressed, are about 0.7 MB
TEXT_CHARACTERS = 2**18  # about 64K tokens, more than the bundled models' context
VALUES = 20_000  # of an event; Gradio takes some microseconds for each, while everyone waits
FILE_BYTES = 10 * 2**20  # a comparison of 2,048 tokens a side takes about 5 MB
SIGN_IN_SECONDS = 1.0  # per sign-in, one at a time, so that passwords cannot be guessed by trying

_API = "/gradio_api"
_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
# Open before signing in: the empty page, the sign-in, and the routes that Gradio's scripts request at start.
_FRONT = re.compile(
    r"/|/(assets|static|svelte|specdemo)/.+|(/gradio_api)?/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt"
    r"|/pwa_icon|/gradio_api/(login_check|startup-events)/?"
)
_READ = re.compile(r"/config/?|/gradio_api/(info|app_id)/?|/gradio_api/file=(/|[A-Za-z]:[/\\]).+")  # no URLs
_MESSAGES = re.compile(r"/gradio_api/(?:queue/data|call/(?:v2/)?compare/([\w-]{1,64}))")
_EVENT = re.compile(r"/gradio_api/(queue/join|run/predict|cancel|reset|call/(v2/)?compare)/?")
_EXPIRED = 'data: {"msg":"unexpected_error","message":"This session has expired. Reload the page.",'
_EXPIRED += '"session_not_found":true,"success":false}\n\n'


class Refused(Exception):  # noqa: N818 - raised and returned alike
    """A new instance each time: one raised again keeps the frames of earlier times, with their request bodies."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status

    @property
    def response(self) -> Response:
        if self.status == 401:  # Gradio's scripts know this object, and ask for a name and password
            return JSONResponse({"detail": {"error": "Not authenticated", "auth_message": str(self)}}, 401)
        return PlainTextResponse(f"{self}\n", self.status)


UNREADABLE = 400, "This request cannot be read; reload the page and try again."
_UNKNOWN = 404, "This page has no such address; start at its front page."


def only_here(host: str | None, allowed: Sequence[str]) -> bool:
    return is_loopback(host or default_host()) and not allowed and "SPACE_HOST" not in os.environ


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.lower() == "localhost"


def default_host() -> str:
    return os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")


@dataclass
class _Session:
    """A session with events whose messages were not all fetched. `scope`: the request that began it."""

    scope: Scope
    events: int = 0
    fetching: bool = False
    since: float = field(default_factory=monotonic)


class Gate:
    """`names`: host names of the page, `*.example.org` for all subdomains; None if unknown. `trusted`: host names
    accepted in browsers' addresses, even if a proxy rewrites `Host`. `root`: the path under which a proxy serves it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        names: Sequence[str] | None = None,
        trusted: Sequence[str] = (),
        root: str = "",
        auth: bool = False,
    ) -> None:
        self._app, self._names, self._trusted, self._root = app, names, trusted, root.rstrip("/")
        self._auth, self._signing_in = auth, asyncio.Lock()
        self._sessions: dict[str, _Session] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the page uses no web sockets
            await send({"type": "websocket.close"})
            return
        if self._root and scope["path"] == self._root:
            await RedirectResponse(f"{self._root}/")(scope, receive, send)
            return
        if self._root and scope["path"].startswith(f"{self._root}/"):  # else the proxy has cut it off already
            scope = _at(scope, scope["path"].removeprefix(self._root))
        try:
            app = await self._admit(scope)
            await app(scope, receive, send)
        except Refused as refused:
            await refused.response(scope, receive, send)
        except ClientDisconnect:  # while its body was read
            pass

    async def _admit(self, scope: Scope) -> ASGIApp:
        """Check a request before its body is read. Return the app that answers it, or raise `Refused`."""
        headers, path = Headers(scope=scope), scope["path"]
        name = _host_name(headers.get("host", ""))
        if self._names is not None and not any(_matches(name, pattern) for pattern in self._names):
            raise Refused(
                400,
                f"This page does not answer to the name {quoted(name)}. Open it as localhost on its own machine; for "
                "another name, start it with --allowed-host and that name.",
            )
        if self._foreign(scope["method"], headers):
            raise Refused(
                403,
                "This request comes from another site's page; open the page itself. If it is the page itself, behind "
                "a proxy, start it with --allowed-host and the name in the browser's address.",
            )
        app, limit, public = self._route(scope["method"], path)
        if self._auth and not public and not await self._signed_in(scope):
            raise Refused(401, "Sign in at the front page first.")
        if "transfer-encoding" in headers:
            raise Refused(411, "The request has no length; send Content-Length.")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > limit:
            raise Refused(413, f"The request is too large; send at most {limit:,} bytes.")
        return app

    def _route(self, method: str, path: str) -> tuple[ASGIApp, int, bool]:
        """Return the app for a route, the limit of its body, and whether it is open before signing in."""
        if len(path) > 1000 or any(len(part.encode()) > 255 for part in path.split("/")) or "\0" in path:
            raise Refused(*_UNKNOWN)  # no file system takes such a name
        if method in ("GET", "HEAD") and (_FRONT.fullmatch(path) or _READ.fullmatch(path)):
            return self._app, BODY_BYTES, _FRONT.fullmatch(path) is not None
        if method == "GET" and _MESSAGES.fullmatch(path):
            return self._messages, BODY_BYTES, False
        if method == "POST" and _EVENT.fullmatch(path):
            return self._event, BODY_BYTES, False
        if method == "POST" and path.rstrip("/") == "/login":
            return self._sign_in, BODY_BYTES, True
        if method == "POST" and path == f"{_API}/upload":
            return self._app, FILE_BYTES + 4096, False  # a form around the file
        raise Refused(*_UNKNOWN)

    def _foreign(self, method: str, headers: Headers) -> bool:
        """Whether a browser sends the request for another site, which could change something or read the answer."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if method in ("GET", "HEAD", "OPTIONS") and origin is None:  # the other site cannot read the answer
            return False
        if any(_matches(_host_name(urlsplit(origin or "").netloc), pattern) for pattern in self._trusted):
            return False
        if site is not None:  # browsers send it on trustworthy connections, other programs send neither
            return site not in ("same-origin", "none")
        return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()

    async def _signed_in(self, scope: Scope) -> bool:
        statuses = []

        async def send(message: Message) -> None:
            statuses.append(message.get("status"))

        check = {**_at(scope, f"{_API}/login_check"), "method": "GET"}
        await self._app(check, _replay(b"", _gone), send)
        return 200 in statuses

    async def _sign_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._signing_in:
            await asyncio.sleep(SIGN_IN_SECONDS)
        await self._app(scope, receive, send)

    async def _event(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, path = await Request(scope, receive).body(), scope["path"]
        event, call = _parse_event(body), path.startswith(f"{_API}/call/")
        if path.startswith(f"{_API}/run/") and event.get("fn_index") is None:  # Gradio's routes stumble over it
            raise Refused(*UNREADABLE)
        if not call and not path.startswith(f"{_API}/queue/join"):
            await self._app(scope, _replay(body, receive), send)
            return
        name = event.get("session_hash")
        if call and name is not None:  # without it, the event's own name is that of its session
            raise Refused(*UNREADABLE)
        session, status = self._sessions.get(name or "") or _Session(scope), 0
        await self._make_room(session)
        session.events += 1
        if name is not None:
            self._sessions[name] = session

        async def forward(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if call and status == 200 and message.get("body"):
                self._sessions[json_value(message["body"])["event_id"]] = session
            await send(message)

        try:
            await self._app(scope, _replay(body, receive), forward)
        finally:
            if status != 200:
                session.events -= 1
                if name is not None and session.events <= 0 and not session.fetching:
                    self._sessions.pop(name, None)

    async def _make_room(self, session: _Session) -> None:
        """Drop sessions that nobody has fetched for long and, if one more event does not fit, the oldest one."""
        cutoff = monotonic() - UNREAD_SECONDS
        full = sum(other.events for other in self._sessions.values()) >= EVENTS
        idle = {name: other for name, other in self._sessions.items() if not other.fetching and other is not session}
        if full and not idle:
            raise Refused(503, "Too many events are waiting; try again in a minute.")
        oldest = min(idle, key=lambda name: idle[name].since) if full else None
        unwanted = [name for name, other in idle.items() if name == oldest or other.since < cutoff]
        await asyncio.gather(*(self._drop(name, idle[name].scope) for name in unwanted))

    async def _messages(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the messages of a session's events, and count the events that end."""
        match = _MESSAGES.fullmatch(scope["path"])
        requested = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[0]
        name = (match and match[1]) or requested
        session, disconnected = self._sessions.get(name), False
        if session is None or session.fetching:
            await PlainTextResponse(_EXPIRED, media_type="text/event-stream")(scope, receive, send)
            return

        async def watch() -> Message:
            nonlocal disconnected
            message = await receive()
            disconnected = disconnected or message["type"] == "http.disconnect"
            return message

        async def count_completed(message: Message) -> None:  # no text can hold these quotes unescaped
            session.events -= message.get("body", b"").count(b'"msg":"process_completed"')
            await send(message)

        session.fetching = True
        try:
            await self._app(scope, watch, count_completed)
        finally:
            session.fetching, session.since = False, monotonic()
            if disconnected or session.events <= 0 or name != requested:  # Gradio has forgotten it, too
                self._sessions.pop(name, None)

    async def _drop(self, name: str, scope: Scope) -> None:
        """Drain a session's messages and disconnect, which cancels its events."""

        async def disconnect() -> Message:
            await asyncio.sleep(0.2)  # time to fetch what is there
            return {"type": "http.disconnect"}

        async def discard(message: Message) -> None:
            pass

        path = f"{_API}/call/compare/{name}" if "/call/" in scope["path"] else f"{_API}/queue/data"
        scope = {**_at(scope, path), "method": "GET", "query_string": f"session_hash={name}".encode()}
        try:
            await self._messages(scope, disconnect, discard)
        except Exception:  # Gradio may have forgotten the session meanwhile
            logging.getLogger(__name__).warning("messages of a session were not dropped", exc_info=True)


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _matches(name: str, pattern: str) -> bool:
    pattern = pattern.lower().strip("[]")
    return name == pattern or (pattern.startswith("*.") and name.endswith(pattern[1:]))


def _at(scope: Scope, path: str) -> Scope:
    return {**scope, "path": path, "raw_path": path.encode()}


async def _gone() -> Message:
    return {"type": "http.disconnect"}


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


_TYPES = {"fn_index": int, "data": list, "event_data": dict, "trigger_id": int, "session_hash": str, "event_id": str}


def _parse_event(body: bytes) -> dict[str, Any]:
    try:
        event = json_value(body)
    except ValueError:
        raise Refused(*UNREADABLE) from None
    if not isinstance(event, dict):
        raise Refused(*UNREADABLE)
    if any(not isinstance(event[name], kind | None) for name, kind in _TYPES.items() if name in event):
        raise Refused(*UNREADABLE)
    if any(event.get(name) and not _NAME.fullmatch(event[name]) for name in ("session_hash", "event_id")):
        raise Refused(400, "The session's name is invalid; reload the page.")
    characters, count = _extent([value for name, value in event.items() if name != "event_data"])
    if count + _extent([event.get("event_data")])[1] > VALUES:  # its text may be long: a run to share
        raise Refused(413, f"The request has more than {VALUES:,} values; send fewer.")
    if characters > TEXT_CHARACTERS:
        raise Refused(
            413,
            f"Prompt and chat have {characters:,} characters; at most {TEXT_CHARACTERS:,} fit. Shorten the prompt, "
            "or start a new chat.",
        )
    return event


def _extent(pending: list[Any]) -> tuple[int, int]:
    """Count characters and values, including nested ones, until there are too many."""
    characters = count = 0
    while pending and count <= VALUES:
        value = pending.pop()
        count += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict):
            pending += [*value, *value.values()]
        elif isinstance(value, list):
            pending += value
    return characters, count
