"""Access checks in front of Gradio's own routes.

- Host: a page on a loopback address answers only to its own names. Otherwise any site whose name is made to resolve
  to 127.0.0.1 could use the page as its own (DNS rebinding).
- Origin: requests that a browser sends for another site's page are refused. Browsers name the origin in
  `Sec-Fetch-Site` on trustworthy connections, else in `Origin`; other programs send neither.
- Route: only the `ROUTES` are open; a route that a release of Gradio adds stays closed until it is listed there.
  If visitors must sign in, only the sign-in's own routes are open before that.
- Size: requests, all texts in them, session names, and all files on disk together are limited.
- Address: open requests, and requests per minute, are limited for each address.
"""

import gc
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.files import json_value
from specdemo.ui.gradio_inside import (
    form_boundary,
    has_messages,
    queue_is_full,
    signed_in,
    under_way,
    under_way_from,
)
from specdemo.ui.limits import OPEN, Addresses, limited
from specdemo.ui.uploads import FILE_BYTES, UPLOADS, FolderUsage, UploadLimits

BODY_BYTES = 2**20
"""Maximum bytes of a request other than an upload."""
TEXT_CHARACTERS = 2**19
"""Maximum characters of all texts in a request, such as a prompt and its chat; about 128K tokens."""
NAME_CHARACTERS = 64
"""Maximum length of the name of a session or event."""
_FORM_BYTES = 2**12  # overhead of a form around its file
_QUERY_CHARACTERS = 4096
_EVENTS = 12  # per session, queued or running
_VALUES = 20_000  # per event, nested ones included; Gradio takes some microseconds for each, while everyone waits
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_OWN = ("same-origin", "none")
_SAFE = ("GET", "HEAD", "OPTIONS")
_NAME = re.compile(rf"[\w-]{{1,{NAME_CHARACTERS}}}", re.ASCII)
_FILES = re.compile(r"/(assets|static|svelte)/|/gradio_api/file=")
"""Paths that end in a client-chosen name."""


class Route(NamedTuple):
    """Paths that are open for these methods. `before`: also before signing in. `json`: the body is an event.
    `local`: only on a page that is reachable only from this machine; its files may have any size.
    """

    methods: str
    path: re.Pattern[str]
    before: bool = False
    json: bool = False
    local: bool = False


def _route(methods: str, path: str, *, before: bool = False, json: bool = False, local: bool = False) -> Route:
    return Route(methods, re.compile(path), before, json, local)


_API = "/gradio_api"
_UPLOAD = f"{_API}/upload"
_MESSAGES = f"{_API}/queue/data"
_JOINS = (f"{_API}/queue/join", f"{_API}/call/")
ROUTES = (
    # the page, its sign-in, and the static files of both
    _route("GET HEAD", r"/", before=True),
    _route("GET HEAD", r"/(assets|static|svelte)/.+", before=True),
    _route(
        "GET HEAD",
        r"(/gradio_api)?/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt|/pwa_icon",
        before=True,
    ),
    _route("POST", r"/login/?", before=True),
    _route("GET", rf"{_API}/login_check/?", before=True),
    _route("GET", r"/logout"),
    _route("GET HEAD", r"/specdemo/.+", before=True),
    _route("GET HEAD", r"/readyz", before=True),
    _route("GET HEAD", rf"{_API}/startup-events", before=True),  # requested by Gradio itself when it starts
    # the page's own requests, and those of API clients
    _route("GET", rf"/config/?|{_API}/info/?|{_API}/app_id/?"),
    _route("POST", rf"{_API}/(queue/join|run/predict|cancel|reset)/?", json=True),
    _route("POST", rf"{_API}/call/(v2/)?compare/?", json=True),
    _route("GET", rf"{_API}/call/(v2/)?compare/[\w-]{{1,{NAME_CHARACTERS}}}"),
    _route("GET", _MESSAGES),
    _route("POST", _UPLOAD),
    _route("PUT", r"""/model/[^./\\<>:"|?*\x00-\x1f][^/\\<>:"|?*\x00-\x1f]{0,200}\.(?i:gguf)""", local=True),
    _route("GET HEAD", rf"{_API}/file=(/|[A-Za-z]:[/\\]).+"),  # a path, not a URL
)
"""All open routes."""


def checks(host: str | None, allowed: Sequence[str], uploads: UploadLimits = UPLOADS) -> list[Middleware]:
    """Return the checks for a page that listens on `host`, or on Gradio's default.

    `allowed`: further host names of the page; `*.example.org` includes all subdomains. Without any, a page on an
    address other than loopback answers to every name, since it cannot know its own.
    """
    address = host or os.environ.get("GRADIO_SERVER_NAME", _LOOPBACK[1])
    space = os.environ.get("SPACE_HOST")  # of a Hugging Face Space, which serves the page behind a proxy
    own = [*allowed, *filter(None, [space])]
    here = only_here(host, allowed)
    found = [Middleware(Checks, trusted=own, addresses=None if space else Addresses(), local=here, uploads=uploads)]
    if allowed or is_loopback(address):
        names = [*_LOOPBACK, address, *own]
        found.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False))
    return found


def only_here(host: str | None, allowed: Sequence[str]) -> bool:
    """Check if a page that listens on `host`, with these further names, is reachable only from this machine."""
    address = host or os.environ.get("GRADIO_SERVER_NAME", _LOOPBACK[1])
    return is_loopback(address) and not allowed and "SPACE_HOST" not in os.environ


def is_loopback(address: str) -> bool:
    """Check if a page that listens on this address is reachable only from this machine."""
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.lower() == "localhost"


class Refusal(NamedTuple):
    """Status and message of a refusal."""

    status: int
    text: str

    @property
    def response(self) -> Response:
        """Return the response. Gradio's scripts recognise this object and ask the visitor to sign in."""
        if self.status == HTTPStatus.UNAUTHORIZED:
            return JSONResponse({"detail": {"error": "Not authenticated", "auth_message": self.text}}, self.status)
        return PlainTextResponse(f"{self.text}\n", self.status)


_UNKNOWN = Refusal(404, "This page has no such address; begin at its front page.")
_UNREADABLE = Refusal(400, "This request cannot be read; reload the page and try again.")
_NO_FORM = Refusal(415, "This is not a form with a file; choose the file on the page.")
_SECOND_FILE = Refusal(400, "A form may hold one file; send each in a form of its own.")
_FULL = Refusal(429, "The files of this page's visitors take all the space they may; try again in an hour.")
_EXPIRED = 'data: {"msg":"unexpected_error","message":"This session has expired. Reload the page.",'
_EXPIRED += '"session_not_found":true,"success":false}\n\n'


class Checks:
    """Middleware that refuses requests from other sites, to closed routes, or beyond a limit."""

    def __init__(
        self,
        app: ASGIApp,
        trusted: Sequence[str],
        addresses: Addresses | None = None,
        *,
        local: bool = False,
        uploads: UploadLimits,
    ) -> None:
        """Check requests to `app`.

        `trusted`: host names of this page, even if a proxy rewrites the `Host` header. `addresses`: None behind a
        proxy from which all requests seem to come. `local`: the page is reachable only from this machine.
        """
        self._local = local
        self._app = app
        self._trusted = [name.lower() for name in trusted]
        self._addresses = addresses
        self._uploads = uploads
        self._usage = FolderUsage(uploads.fresh_seconds)
        self._uploading = 0  # bytes of uploads in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it to the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            else:  # the page uses no web sockets
                await send({"type": "websocket.close"})
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal.response(scope, receive, send)
        elif self._addresses is None:
            await self._answer(scope, receive, send, headers)
        else:
            with self._addresses.busy(_client(scope)):
                await self._answer(scope, receive, send, headers)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        route = _route_of(scope)
        if route is not None and route.json:
            await self._event(scope, receive, send)
        elif scope["path"] == _UPLOAD:
            await self._upload(scope, receive, send, headers)
        elif scope["path"].startswith((_MESSAGES, f"{_API}/call/")) and not has_messages(scope, _recipient(scope)):
            await PlainTextResponse(_EXPIRED, media_type="text/event-stream")(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _event(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an event to the application if its names and texts are within their limits."""
        body = await _body(receive)
        if body is None:
            return
        refusal = _refused(scope, body) or self._crowded(scope)
        if refusal is not None:
            await refusal.response(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    def _crowded(self, scope: Scope) -> Refusal | None:
        """Refuse an event whose address has too many queued or running."""
        address = limited(_client(scope)) if self._addresses is not None else None
        if address is None or not scope["path"].startswith(_JOINS) or under_way_from(scope, address) < OPEN:
            return None
        return Refusal(429, "Too much from your address is waiting already; try again in a minute.")

    async def _upload(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Pass an upload of one file to the application."""
        size = _length(headers)
        boundary = form_boundary(headers)
        refusal = _NO_FORM if not boundary else await self._full(size)
        if refusal is not None:
            await refusal.response(scope, receive, send)
            return
        form = _Form(boundary)

        async def limited() -> Message:
            message = await receive()
            form.read(message.get("body", b""))
            return {"type": "http.disconnect"} if form.refused else message

        async def sending(message: Message) -> None:
            if not form.refused:
                await send(message)

        self._uploading += size
        try:
            # drop the upload's id: no button of the page sends one, and Gradio would keep it for ever
            await self._app({**scope, "query_string": b""}, limited, sending)
        except Exception:
            if not form.refused:
                raise
        finally:
            self._uploading -= size
            self._usage.changed()
        if form.refused:
            await _SECOND_FILE.response(scope, receive, send)

    async def _full(self, size: int) -> Refusal | None:
        """Refuse an upload if there is no room for it."""
        used = await self._usage.now()
        if used.bytes + self._uploading + size > self._uploads.bytes or used.files >= self._uploads.files:
            return _FULL
        if self._usage.free < self._uploads.free_bytes:
            return Refusal(507, "The disk of the page's machine is nearly full; try again later.")
        return None

    def _refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Check a request before its body is read."""
        if self._foreign(scope["method"], headers):
            return Refusal(
                403,
                "This request comes from another site's page; open the page itself. If it is the page itself, behind "
                "a proxy, start it with --allowed-host and the name in the browser's address.",
            )
        route = _route_of(scope)
        if route is None or (route.local and not self._local):
            return _UNKNOWN
        if not route.before and not signed_in(scope):
            return Refusal(401, "Sign in at the front page first.")
        if "transfer-encoding" in headers:
            return Refusal(411, "The request has no length; send Content-Length.")
        most = FILE_BYTES + _FORM_BYTES if scope["path"] == _UPLOAD else BODY_BYTES
        if _length(headers) > most and not route.local:
            return Refusal(413, f"The request has {_length(headers):,} bytes; send at most {most:,}.")
        if len(scope["query_string"]) > _QUERY_CHARACTERS:
            return Refusal(
                414, f"The address is too long; send at most {_QUERY_CHARACTERS:,} characters after the ?."
            )
        changes = scope["method"] not in _SAFE
        if self._addresses is not None and self._addresses.too_much(
            _client(scope), changes=changes, sign_in=scope["path"].rstrip("/") == "/login"
        ):
            return Refusal(429, "Too many requests come from your address; wait a minute.")
        return None

    def _foreign(self, method: str, headers: Headers) -> bool:
        """Check if a browser sends the request for another site, which could change something or read the answer."""
        origin = headers.get("origin")
        if method in _SAFE and origin is None:  # a link or an image: the other site cannot read the answer
            return False
        asked = urlsplit(origin or "")
        if any(_is_of(asked.hostname or "", trusted) for trusted in self._trusted):
            return False
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site not in _OWN
        return origin is not None and asked.netloc.lower() != headers.get("host", "").lower()


class _Form:
    """Counter of a form's parts as it streams through."""

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"--" + boundary
        self._end = b""
        self._marks = 0

    @property
    def refused(self) -> bool:
        """True if there is a second part: a form with one has two boundary marks, before it and after it."""
        return self._marks > 2

    def read(self, data: bytes) -> None:
        """Count the marks in the next chunk."""
        text = self._end + data
        self._marks += text.count(self._mark)
        last = text.rfind(self._mark)
        counted = last + len(self._mark) if last >= 0 else 0
        self._end = text[max(counted, len(text) - len(self._mark) + 1) :]


class Readable:
    """Middleware that answers requests on which Gradio's own routes fail.

    Those assume well-formed requests: that an event exists, that a body can be quoted in an error message, that a
    session is not dropped while its events are streamed, that a requested file name is valid. Errors of callbacks
    never get here; Gradio reports those itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap this application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        readable = scope["type"] == "http" and (scope["method"] == "POST" or _FILES.match(scope["path"]) is not None)

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            messages = scope["type"] == "http" and scope["path"].startswith((_MESSAGES, f"{_API}/call/"))
            if started and messages:
                await send({"type": "http.response.body", "body": b""})
            elif started or not readable:
                raise
            logging.getLogger(__name__).warning("refused a request to %r: %s", scope["path"], type(error).__name__)
            if not started:
                refusal = _UNREADABLE if scope["method"] == "POST" else _UNKNOWN
                await refusal.response(scope, receive, send)


@contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """Pause garbage collection, which would scan everything repeatedly while many short-lived objects are made."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _body(receive: Receive) -> bytes | None:
    """Read the body of a request; None if the client disconnects."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields a body that was already read, and then the messages after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _refused(scope: Scope, body: bytes) -> Refusal | None:
    """Check an event's body, and return the refusal if it exceeds a limit."""
    with _no_search_for_garbage():
        return _refused_event(scope, body)


def _refused_event(scope: Scope, body: bytes) -> Refusal | None:
    try:
        event = json_value(body)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        return _UNREADABLE
    session = event.get("session_hash")
    for name in (session, event.get("event_id")):
        if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
            return Refusal(400, "A session has a name of at most 64 letters and digits; reload the page.")
    characters, values = _extent(value for name, value in event.items() if name != "event_data")
    values += _extent([event.get("event_data")])[1]
    if characters > TEXT_CHARACTERS:
        return Refusal(
            413,
            f"Prompt and chat have {characters:,} characters; at most {TEXT_CHARACTERS:,} fit. Shorten the prompt, "
            "or start a new chat.",
        )
    if values > _VALUES:
        return Refusal(413, f"The request has more than {_VALUES:,} values; send fewer.")
    if scope["path"].startswith(_JOINS):
        if under_way(scope, session) >= _EVENTS:
            return Refusal(429, "This page has too much under way; wait until some of it is done.")
        if queue_is_full(scope):
            return Refusal(503, "Too much is waiting already; try again in a minute.")
    return None


def _extent(values: Iterable[Any]) -> tuple[int, int]:
    """Count the characters and the values, nested ones included; counting stops when there are too many."""
    characters = count = 0
    left = list(values)
    while left and count <= _VALUES:
        value = left.pop()
        count += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict):
            left += value.keys()
            left += value.values()
        elif isinstance(value, list):
            left += value
    return characters, count


def _route_of(scope: Scope) -> Route | None:
    """Return the open route of a request, if there is one."""
    method, path = scope["method"], scope["path"]
    return next((one for one in ROUTES if method in one.methods.split() and one.path.fullmatch(path)), None)


def _recipient(scope: Scope) -> str:
    """Return the session or event whose messages are requested."""
    if scope["path"].startswith(_MESSAGES):
        return str(dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("session_hash", ""))
    return str(scope["path"]).rsplit("/", 1)[-1]


def _client(scope: Scope) -> str | None:
    return str(scope["client"][0]) if scope.get("client") else None


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdecimal() and len(text) < 20 else 0 if not text.isdecimal() else sys.maxsize


def _is_of(name: str, trusted: str) -> bool:
    """Check if a host name equals this one, or matches a pattern such as `*.example.org`."""
    return name == trusted or (trusted.startswith("*.") and name.endswith(trusted[1:]))
