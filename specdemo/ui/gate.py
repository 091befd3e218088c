"""The gate: everything that comes in is bounded here in size and number, so that sums are bounded by multiplication.

| what | most | so that all of it is at most |
|---|---|---|
| events queued, running or not yet fetched | 200; 12 of a session, 60 of an address | 200 bodies of 1 MB, parsed |
| texts of an event | 262,144 characters | 1 MB in Python, if one of them is an emoji |
| sessions whose state is kept | 200 | 1 MB of chat and 0.6 MB of Gradio's settings each |
| files of visitors | 100 of 10 MB, an hour | 1 GB on the disk |
| requests of an address | 60 open, 600 changes a minute, 20 sign-ins a minute | |

Messages that nobody fetches for a minute are thrown away. Only listed routes are open: one that a release of Gradio
adds stays closed until it is listed. Requests that a browser sends for another site's page are refused, and a page on
a loopback address answers only to its own names: otherwise any site whose name is made to resolve to 127.0.0.1 could
use it as its own (DNS rebinding).

Of Gradio's undocumented names this uses two, `Blocks.process_api` and `Blocks.get_config_file`.
"""

import asyncio
import errno
import json
import logging
import os
import re
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv6Address, ip_address
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic, sleep, time
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import gradio as gr
import uvicorn
from anyio import open_file
from anyio.to_thread import run_sync
from gradio.exceptions import InvalidPathError
from starlette.applications import Starlette
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.child import Limits
from specdemo.errors import SpecdemoError, UsageError, quoted
from specdemo.files import is_text, json_value
from specdemo.models.library import keep_model
from specdemo.models.places import models_dir, writable

SESSIONS = 200  # visitors whose chat and pair are kept; a page with one engine is slow for ten at once
UNDER_WAY, OF_SESSION, OF_ADDRESS = 200, 12, 60  # a page sends up to six at once; a class may share an address
UNREAD_SECONDS = 60.0  # a browser fetches at once; a tab that is suspended for longer must reload
BODY_BYTES = 2**20  # the largest is a run to share: 2,048 tokens a side, compressed, are about 0.7 MB
TEXT_CHARACTERS = 2**18  # about 64K tokens, more than the bundled models' context
VALUES = 20_000  # of an event; Gradio takes some microseconds for each, while everyone waits
FILE_BYTES = 10 * 2**20  # a comparison of 2,048 tokens a side takes about 5 MB
FILES = 100
FILE_SECONDS = 3600.0  # a suite is read when its benchmark starts, perhaps long after it was chosen
FREE_BYTES = 2**30  # to keep free on the disk
OPEN = 60  # requests of an address; a browser opens six, and a class may share an address
A_MINUTE = 600  # changes; all may come at once
SIGN_IN = 30  # changes that a sign-in counts for, so that 20 passwords may be tried a minute
CONNECTIONS = 1000
THREADS = 32  # for callbacks, besides the 40 that answer requests, so that slow callbacks never block the page

_API = "/gradio_api"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SAFE = ("GET", "HEAD", "OPTIONS")
_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
_JOINS = (f"{_API}/queue/join", f"{_API}/call/")
# Also before signing in: the page without its contents, the sign-in, and what Gradio asks for when it starts.
_FRONT = re.compile(
    r"/|/(assets|static|svelte|specdemo)/.+|(/gradio_api)?/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt"
    r"|/pwa_icon|/readyz|/gradio_api/(login_check|startup-events)/?"
)
_READ = re.compile(r"/config/?|/gradio_api/(info|app_id)/?|/gradio_api/file=(/|[A-Za-z]:[/\\]).+")  # no URLs
_MESSAGES = re.compile(r"/gradio_api/(?:queue/data|call/(?:v2/)?compare/([\w-]{1,64}))")
_EVENT = re.compile(r"/gradio_api/(queue/join|run/predict|cancel|reset|call/(v2/)?compare)/?")
_MODEL = re.compile(r"""/model/[^./\\<>:"|?*\x00-\x1f][^/\\<>:"|?*\x00-\x1f]{0,200}\.(?i:gguf)""")
_EXPIRED = 'data: {"msg":"unexpected_error","message":"This session has expired. Reload the page.",'
_EXPIRED += '"session_not_found":true,"success":false}\n\n'
_log = logging.getLogger(__name__)


class Refused(Exception):  # noqa: N818 - raised and returned alike
    """A request is refused, with this status and sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status

    @property
    def response(self) -> Response:
        if self.status == 401:  # Gradio's scripts know this object, and ask for a name and password
            return JSONResponse({"detail": {"error": "Not authenticated", "auth_message": str(self)}}, 401)
        return PlainTextResponse(f"{self}\n", self.status)


_UNREADABLE = Refused(400, "This request cannot be read; reload the page and try again.")
_UNKNOWN = Refused(404, "This page has no such address; begin at its front page.")


async def _unreadable(request: Request, error: Exception) -> Response:
    _log.warning("refused %s: %r", request.url.path, error)
    return _UNREADABLE.response


def only_here(host: str | None, allowed: Sequence[str]) -> bool:
    """Check if a page that listens on `host`, with these further names, is reachable only from this machine."""
    return is_loopback(host or _default_host()) and not allowed and "SPACE_HOST" not in os.environ


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.lower() == "localhost"


def _default_host() -> str:
    return os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")


@dataclass
class _Session:
    """A session with events whose messages were not all fetched. `scope`: the request that began it."""

    address: str | None
    scope: Scope
    events: int = 0
    fetching: bool = False
    since: float = field(default_factory=monotonic)


class Gate:
    """Middleware in front of the page.

    `names`: what the page is called, `*.example.org` for all subdomains; None if it cannot know. `trusted`: names in
    browsers' addresses, even if a proxy rewrites `Host`. `root`: the path below which a proxy has the page.
    `by_address`: False if every request comes from one proxy. `local`: only this machine reaches the page.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        names: Sequence[str] | None = None,
        trusted: Sequence[str] = (),
        root: str = "",
        auth: bool = False,
        by_address: bool = True,
        local: bool = False,
        known: Callable[[int], bool] = lambda event: True,
    ) -> None:
        self._app, self._names, self._trusted, self._root = app, names, trusted, root.rstrip("/")
        self._auth, self._by_address, self._local, self._known = auth, by_address, local, known
        self._sessions: dict[str, _Session] = {}
        self._open, self._changes, self._minute = Counter[str](), Counter[str](), 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            sweeper = asyncio.create_task(self._sweep())
            try:
                await self._app(scope, receive, send)
            finally:
                sweeper.cancel()
            return
        if scope["type"] != "http":  # the page uses no web sockets
            await send({"type": "websocket.close"})
            return
        if self._root and scope["path"] == self._root:
            await RedirectResponse(f"{self._root}/")(scope, receive, send)
            return
        if self._root and scope["path"].startswith(f"{self._root}/"):  # else the proxy has cut it off already
            scope = _at(scope, scope["path"].removeprefix(self._root))
        address = address_of(scope) if self._by_address else None
        try:
            answer = await self._admit(scope, address)
            self._open.update([address or ""])
            try:
                await answer(scope, receive, send)
            finally:
                self._open.subtract([address or ""])
                self._open = +self._open  # without zeros
        except Refused as refused:
            await refused.response(scope, receive, send)

    async def _admit(self, scope: Scope, address: str | None) -> ASGIApp:
        """Check a request before its body is read, and return what answers it.

        Raises:
            Refused: it may not come in.
        """
        headers, path = Headers(scope=scope), scope["path"]
        name = _host_name(headers.get("host", ""))
        if self._names is not None and not any(_is_of(name, known) for known in self._names):
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
        answer, most, before = self._route(scope["method"], path, address)
        if self._auth and not before and not await self._signed_in(scope):
            raise Refused(401, "Sign in at the front page first.")
        if "transfer-encoding" in headers:
            raise Refused(411, "The request has no length; send Content-Length.")
        length = headers.get("content-length", "0")
        if most is not None and (not length.isdecimal() or len(length) > 18 or int(length) > most):
            raise Refused(413, f"The request is too large; send at most {most:,} bytes.")
        if len(scope["query_string"]) > 4096:
            raise Refused(414, "The address is too long; send at most 4,096 characters after the ?.")
        cost = SIGN_IN if path.startswith("/login") else int(scope["method"] not in _SAFE)
        if address is not None and (self._open[address] >= OPEN or not self._affords(address, cost)):
            raise Refused(429, "Too many requests come from your address; wait a minute.")
        return answer

    def _affords(self, address: str, cost: int) -> bool:
        """Count a request's changes; False if its address has had too many this minute."""
        minute = monotonic() // 60
        if minute != self._minute:
            self._minute, self._changes = minute, Counter()
        self._changes[address] += cost
        return not cost or self._changes[address] <= A_MINUTE

    def _route(self, method: str, path: str, address: str | None) -> tuple[ASGIApp, int | None, bool]:
        """Return what answers on a route, its largest body, and whether it is open before signing in.

        Raises:
            Refused: no such route is open.
        """
        if len(path) > 1000 or any(len(part.encode()) > 255 for part in path.split("/")) or "\0" in path:
            raise _UNKNOWN  # no file system takes such a name
        if method in ("GET", "HEAD") and (_FRONT.fullmatch(path) or _READ.fullmatch(path)):
            return self._app, BODY_BYTES, _FRONT.fullmatch(path) is not None
        if method == "GET" and _MESSAGES.fullmatch(path):
            return self._messages, BODY_BYTES, False
        if method == "POST" and _EVENT.fullmatch(path):
            return partial(self._event, address), BODY_BYTES, False
        if method == "POST" and path.rstrip("/") == "/login":
            return self._app, BODY_BYTES, True
        if method == "POST" and path == f"{_API}/upload":
            return self._app, FILE_BYTES + 4096, False  # a form around the file
        if method == "PUT" and self._local and _MODEL.fullmatch(path):
            return self._app, None, False
        raise _UNKNOWN

    def _foreign(self, method: str, headers: Headers) -> bool:
        """Check if a browser sends the request for another site, which could change something or read the answer."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if method in _SAFE and origin is None:  # a link or an image: the other site cannot read the answer
            return False
        if any(_is_of(_host_name(urlsplit(origin or "").netloc), name) for name in self._trusted):
            return False
        if site is not None:  # browsers send it on trustworthy connections, other programs send neither
            return site not in ("same-origin", "none")
        return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()

    async def _signed_in(self, scope: Scope) -> bool:
        """Ask Gradio's own route."""
        statuses = []

        async def send(message: Message) -> None:
            statuses.append(message.get("status"))

        check = {**_at(scope, f"{_API}/login_check"), "method": "GET"}
        await self._app(check, _nothing, send)
        return 200 in statuses

    async def _event(self, address: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        event, joins, call = _checked(body), scope["path"].startswith(_JOINS), "/call/" in scope["path"]
        if not call and not self._known(event.get("fn_index", -1)) and not scope["path"].startswith(f"{_API}/reset"):
            raise _UNREADABLE
        if call and event.pop("session_hash", None) is not None:  # then the event's own name is that of its session
            body = json.dumps(event).encode()
        name = None if call else event.get("session_hash")
        session = self._sessions.get(name or "") or _Session(address, scope)
        if joins:
            self._make_room(session)
            session.events += 1
        if joins and name is not None:
            self._sessions[name] = session
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if call and status == 200 and message.get("body"):
                self._sessions[json_value(message["body"])["event_id"]] = session
            await send(message)

        try:
            await self._app(scope, _replay(body, receive), sending)
        finally:
            if joins and status != 200:
                session.events -= 1
                if name is not None and session.events <= 0 and not session.fetching:
                    self._sessions.pop(name, None)

    def _make_room(self, session: _Session) -> None:
        """Check that one more event fits.

        Raises:
            Refused: there are too many.
        """
        if session.events >= OF_SESSION:
            raise Refused(429, "This page has too much under way; wait until some of it is done.")
        of_address = sum(other.events for other in self._sessions.values() if other.address == session.address)
        if session.address is not None and of_address >= OF_ADDRESS:
            raise Refused(429, "Too much from your address is waiting already; try again in a minute.")
        if sum(other.events for other in self._sessions.values()) >= UNDER_WAY:
            raise Refused(503, "Too much is waiting already; try again in a minute.")

    async def _messages(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the messages of a session's events, and count the events that end."""
        match = _MESSAGES.fullmatch(scope["path"])
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[0]
        name = (match and match[1]) or asked
        session, left = self._sessions.get(name), False
        if session is None or session.fetching:
            await PlainTextResponse(_EXPIRED, media_type="text/event-stream")(scope, receive, send)
            return

        async def receiving() -> Message:
            nonlocal left
            message = await receive()
            left = left or message["type"] == "http.disconnect"
            return message

        async def sending(message: Message) -> None:  # no text can hold these quotes unescaped
            session.events -= message.get("body", b"").count(b'"msg":"process_completed"')
            await send(message)

        session.fetching = True
        try:
            await self._app(scope, receiving, sending)
        finally:
            session.fetching, session.since = False, monotonic()
            if left or session.events <= 0 or name != asked:  # Gradio has forgotten it, too
                self._sessions.pop(name, None)

    async def _sweep(self) -> None:
        """Fetch, and throw away, what nobody has fetched in time; its events are cancelled when that ends."""

        async def throw_away(name: str, session: _Session) -> None:
            call = "/call/" in session.scope["path"]
            path = f"{_API}/call/compare/{name}" if call else f"{_API}/queue/data"
            scope = {**_at(session.scope, path), "method": "GET", "query_string": f"session_hash={name}".encode()}
            await self._messages(scope, partial(_disconnect, after=1), _unsent)

        while True:
            await asyncio.sleep(UNREAD_SECONDS / 6)
            late = monotonic() - UNREAD_SECONDS
            old = [(n, s) for n, s in self._sessions.items() if not s.fetching and s.since < late]
            await asyncio.gather(*(throw_away(*one) for one in old), return_exceptions=True)


def address_of(scope: Scope) -> str | None:
    """Return the key to count a client under, an IPv6 address by its /64 network; None on this machine.

    Behind a proxy that does not forward its clients' addresses, every visitor has one of this machine. Uvicorn trusts
    `X-Forwarded-For` only from a proxy on this machine.
    """
    try:
        address = ip_address(scope["client"][0] if scope.get("client") else "")
    except ValueError:  # no IP address, as behind Unix sockets
        return None
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return None
    return str(IPv6Address(int(address) >> 64 << 64) if isinstance(address, IPv6Address) else address)


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_of(name: str, known: str) -> bool:
    """Check if a host name equals this one, or matches a pattern such as `*.example.org`."""
    known = known.lower().strip("[]")
    return name == known or (known.startswith("*.") and name.endswith(known[1:]))


def _at(scope: Scope, path: str) -> Scope:
    return {**scope, "path": path, "raw_path": path.encode()}


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _disconnect(after: float) -> Message:
    await asyncio.sleep(after)
    return {"type": "http.disconnect"}


async def _unsent(message: Message) -> None:
    pass


async def _body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _UNREADABLE
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields a body that was already read, and then the messages after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


_TYPES = {"fn_index": int, "data": list, "event_data": dict, "trigger_id": int, "session_hash": str, "event_id": str}


def _checked(body: bytes) -> dict[str, Any]:
    """Parse an event.

    Raises:
        Refused: it is none, or is too large.
    """
    try:
        event = json_value(body)
    except ValueError:
        raise _UNREADABLE from None
    if not isinstance(event, dict):
        raise _UNREADABLE
    if any(not isinstance(event[name], kind | None) for name, kind in _TYPES.items() if name in event):
        raise _UNREADABLE
    if any(event.get(name) and not _NAME.fullmatch(event[name]) for name in ("session_hash", "event_id")):
        raise Refused(400, "A session has a name of at most 64 letters and digits; reload the page.")
    characters, count = _extent([value for name, value in event.items() if name != "event_data"])
    if count + _extent([event.get("event_data")])[1] > VALUES:  # whose text is a run to share
        raise Refused(413, f"The request has more than {VALUES:,} values; send fewer.")
    if characters > TEXT_CHARACTERS:
        raise Refused(
            413,
            f"Prompt and chat have {characters:,} characters; at most {TEXT_CHARACTERS:,} fit. Shorten the prompt, "
            "or start a new chat.",
        )
    return event


def _extent(left: list[Any]) -> tuple[int, int]:
    """Count the characters and the values, nested ones included; counting stops when there are too many."""
    characters = count = 0
    while left and count <= VALUES:
        value = left.pop()
        count += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
    return characters, count


class Page(gr.Blocks):
    """Blocks whose events accept only values that their widgets can send.

    Anyone can send any JSON to any event over HTTP, without the widgets. Values are checked once, here, so that
    callbacks can rely on the types of their widgets.
    """

    def get_config_file(self) -> Any:
        """Return the configuration sent to the browser.

        Gradio's heartbeat would hold a connection per tab; browsers open six to a host, so that a seventh tab would
        stall them all. Without it, Gradio still notices when the connection with a run's updates closes.
        """
        return super().get_config_file() | {"connect_heartbeat": False}

    async def process_api(self, block_fn: Any, inputs: list[Any], *arguments: Any, **options: Any) -> dict[str, Any]:
        """Handle an event.

        Raises:
            gr.Error: a value is refused, or the callback failed; the log has what it did not expect.
        """
        if block_fn.fn is None or (options.get("iterator") is None and len(inputs) < len(block_fn.inputs)):
            raise refusal("The page received something unexpected")
        for block, value in zip(block_fn.inputs, inputs, strict=False):
            if not fits(block, value):
                raise refusal(f"{getattr(block, 'label', None) or 'A value'!r} has an unusable value")
        try:
            done: dict[str, Any] = await super().process_api(block_fn, inputs, *arguments, **options)
        except gr.Error as error:
            if error.print_exception:  # one of Gradio's own
                raise refusal("A value is out of bounds, or a file no longer exists") from error
            raise
        except (InvalidPathError, FileNotFoundError) as error:
            raise refusal("A value is out of bounds, or a file no longer exists") from error
        except Exception as error:  # Gradio would send "error: null"
            _log.exception("an event failed")
            raise gr.Error(f"It failed ({type(error).__name__}); the log has more.", print_exception=False) from error
        return done


def refusal(reason: str) -> gr.Error:
    return gr.Error(f"{reason}; correct it, or reload the page.", print_exception=False)


def fits(block: Any, value: Any) -> bool:
    """Check if a value has the type that a widget sends; Gradio itself checks bounds and choices."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    match block:
        case gr.Textbox() | gr.Radio():
            return is_text(value)
        case gr.Dropdown():
            return value is None or is_text(value)
        case gr.Checkbox():
            return isinstance(value, bool)
        case gr.CheckboxGroup():
            return isinstance(value, list) and all(is_text(choice) for choice in value)
        case gr.Slider():
            return number
        case gr.Number():
            return value is None or number
        case gr.UploadButton() | gr.File():
            return value is None or (isinstance(value, dict) and is_text(value.get("path")))
    return True  # states are never sent, and the endpoint checks its values itself


def sent(event: gr.EventData, name: str) -> Any:
    """Return what a script of the page sent with an event, or None. It is untrusted: anyone can send anything."""
    try:
        return getattr(event, name)
    except (AttributeError, TypeError):
        return None


@contextmanager
def visitors_files() -> Iterator[Path]:
    """Create a temporary folder for Gradio's and visitors' files. Enter it before the page is built."""
    before = os.environ.get("GRADIO_TEMP_DIR")
    with TemporaryDirectory(prefix="specdemo-", dir=before, ignore_cleanup_errors=True) as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ |= {"GRADIO_TEMP_DIR": before} if before is not None else {}
            if before is None:
                del os.environ["GRADIO_TEMP_DIR"]


async def upload(request: Request) -> Response:
    """Keep a visitor's file for `FILE_SECONDS`, instead of Gradio's route, which takes a thousand per request."""
    folder = Path(os.environ["GRADIO_TEMP_DIR"], "uploads")
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        if old.stat().st_mtime < time() - FILE_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    if len([*folder.iterdir()]) >= FILES:
        return Refused(429, "Visitors' files take all the space they may; try again in an hour.").response
    if shutil.disk_usage(folder).free < FREE_BYTES:
        return Refused(507, "The disk of the page's machine is nearly full; try again later.").response
    try:
        async with request.form(max_files=1, max_fields=1) as form:
            [file] = [part for part in form.values() if isinstance(part, UploadFile)]
            path = folder / uuid4().hex / (re.sub(r"[^\w.-]", "_", Path(file.filename or "").name)[-100:] or "file")
            path.parent.mkdir()
            async with await open_file(path, "wb") as out:
                await out.write(await file.read())
    except (HTTPException, ValueError):
        return Refused(400, "This is not a form with one file; choose one file on the page.").response
    except ClientDisconnect:
        return _UNREADABLE.response
    return JSONResponse([str(path)])


_LIMITS = Limits()
DROPPED = ".dropped-"  # hidden, so that a file is not listed before it is complete


class Drops:
    """Model files dropped on the page; actual models are kept in the user's models directory.

    `PUT /model/NAME` responds with the file's path there, or with the reason for a refusal. One at a time, so that no
    two share the disk's room or take the same name.
    """

    def __init__(
        self, directory: Path | None = None, free_bytes: int = FREE_BYTES, *, limits: Limits = _LIMITS
    ) -> None:
        self._directory, self._free_bytes, self._busy = directory, free_bytes, asyncio.Lock()
        self._keep = partial(keep_model, directory=directory, limits=limits)
        for left in models_dir(directory).glob(f"{DROPPED}*"):
            if all(file.stat().st_mtime < time() - FILE_SECONDS for file in left.iterdir()):
                shutil.rmtree(left, ignore_errors=True)  # of a server that was killed

    @property
    def route(self) -> Route:
        return Route("/model/{name}", self._dropped, methods=["PUT"])

    async def _dropped(self, request: Request) -> Response:
        """Answer with status 200 even to refuse, since browsers log any other as an error of the page."""
        if self._busy.locked():
            return JSONResponse({"refused": "Another file is being copied; drop this one when that is done."})
        try:
            async with self._busy:
                folder = await run_sync(writable, models_dir(self._directory), "Models")
                if shutil.disk_usage(folder).free < int(request.headers["content-length"]) + self._free_bytes:
                    raise UsageError(
                        f"There is no room for this file in {folder}; free some, or give the file's path."
                    )
                with TemporaryDirectory(prefix=DROPPED, dir=folder, ignore_cleanup_errors=True) as place:
                    file = Path(place, request.path_params["name"])
                    async with await open_file(file, "wb") as out:
                        async for piece in request.stream():
                            await out.write(piece)
                    kept = await run_sync(self._keep, file)
        except SpecdemoError as error:
            return JSONResponse({"refused": str(error)})
        except OSError as error:
            return JSONResponse({"refused": f"The file cannot be written ({error.strerror}); give its path instead."})
        except (ClientDisconnect, KeyError):
            return JSONResponse({"refused": "The file did not arrive whole; drop it again."})
        return JSONResponse({"path": str(kept)})


def application(
    page: gr.Blocks,
    routes: Sequence[BaseRoute] = (),
    *,
    host: str | None = None,
    allowed_hosts: Sequence[str] = (),
    auth: tuple[str, str] | None = None,
    ready: Callable[[], bool] = lambda: True,
    sessions: int = SESSIONS,
    models_dir: Path | None = None,
    middleware: Sequence[Middleware] = (),
    **look: Any,
) -> Starlette:
    """Return the page behind its gate, with further routes. `look`: options of `gr.mount_gradio_app`.

    `ready`: True if the engine's process makes progress, as `/readyz` says. Without `allowed_hosts`, a page on an
    address other than loopback answers to every name, since it cannot know its own.
    """
    # of every event Gradio would keep a row, and tabulate them all after each, which disturbs the engine's clocks
    os.environ |= {"GRADIO_ANALYTICS_MAX_EVENTS": "1", "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**9)}
    address, space = host or _default_host(), os.environ.get("SPACE_HOST")
    own = [*allowed_hosts, *filter(None, [space])]
    local, root = only_here(host, allowed_hosts), os.environ.get("GRADIO_ROOT_PATH", "")
    gate = Middleware(
        Gate,
        names=[*_LOOPBACK, address, *own] if allowed_hosts or is_loopback(address) else None,
        trusted=own,
        root=urlsplit(root).path,
        auth=auth is not None,
        by_address=space is None,  # where all visitors come through one proxy
        local=local,
        known=lambda event: event in page.fns,
    )

    async def readyz(request: Request) -> PlainTextResponse:
        if ready():
            return PlainTextResponse("ready\n")
        return PlainTextResponse("The engine's process does not respond; it is replaced within a minute.\n", 503)

    own_routes = [Route("/readyz", readyz), Route(f"{_API}/upload", upload, methods=["POST"]), *routes]
    if local:
        own_routes.append(Drops(models_dir).route)
    page.max_threads, page.state_session_capacity = THREADS, sessions
    page.queue(max_size=UNDER_WAY, api_open=False)  # nothing runs outside the queue
    # what Gradio's routes raise for names that it does not know
    unreadable = dict.fromkeys((KeyError, TypeError, ValueError), _unreadable)
    app = Starlette(routes=own_routes, middleware=[gate])
    # run history would let visitors have this machine write to a bucket on the Hub
    gr.mount_gradio_app(
        cast(Any, app),
        page,
        "/",
        auth=auth,
        root_path=root,
        run_history=False,
        ssr_mode=False,
        show_error=True,
        app_kwargs={"exception_handlers": unreadable, "middleware": middleware},
        **look,
    )
    return app


@contextmanager
def listening(app: ASGIApp, host: str | None = None, port: int | None = None) -> Iterator[str]:
    """Serve an application in a thread, on this port or the first that is free; yield its address.

    Nothing is fetched to see that it runs, so that no proxy of the environment is asked for this machine's page.

    Raises:
        UsageError: nothing can listen there.
    """
    host = host or _default_host()
    listener = _bound(host, port)
    config = uvicorn.Config(
        app, log_level="warning", limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=1, ws="none"
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        sleep(0.01)
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host.strip('[]')}]" if ":" in host else host
    try:
        yield f"http://{shown}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(5)
        listener.close()


def _bound(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on this port, or on the first free one of a hundred."""
    first = port if port is not None else int(os.environ.get("GRADIO_SERVER_PORT", "7860"))
    for number in range(first, first + (1 if port is not None else 100)):
        try:
            family, *_, address = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=128)
        except OSError as error:
            reason = error
    if port is not None and reason.errno == errno.EADDRINUSE:
        raise UsageError(f"Port {port} is in use; choose another with --port.") from reason
    raise UsageError(
        f"The page cannot listen on {host} ({reason.strerror}); choose another --host or --port."
    ) from reason
