"""The gate limits the size and number of requests, and thereby the memory and disk that visitors can use.

In all, there are at most 500 bodies of 1 MB on their way, 100 events of 1 MB (262,144 characters with an emoji), 200
sessions with 1 MB of chat and 3 MB of Gradio's settings each, and 100 files of 10 MB. Beside each rule stands the
attack that it stops. Gradio checks passwords and limits queued events; Starlette lists routes and limits bodies. Of
Gradio's undocumented names this uses `Blocks._queue`, for events that nobody fetches.
"""

import asyncio
import os
import re
from collections.abc import Sequence
from fnmatch import translate
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any

from pydantic import AliasPath, BaseModel, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.errors import quoted
from specdemo.files import json_text, json_value

EVENTS = 100  # queued, running or not yet fetched; a page sends up to six at once
TEXT_CHARACTERS = 2**18  # about 64K tokens, more than the bundled models' context
CLOSING_SECONDS = 0.3  # after which a browser, even a busy one, has read that its stream of messages ends
SIGN_IN_SECONDS = 1.0  # between two attempts of an address

# Gradio's other routes write files, fetch addresses, start programs or sign everyone out (/deep_link, /proxy=,
# /process_recording, /logout); what a release adds stays closed.
_READ = (
    "/", "/assets/{path:path}", "/static/{path:path}", "/svelte/{path:path}", "/theme.css", "/gradio_api/theme.css",
    "/favicon.ico", "/manifest.json", "/robots.txt", "/pwa_icon", "/config", "/gradio_api/login_check",
    "/gradio_api/info", "/gradio_api/app_id",
)  # fmt: skip
_CALLS = ("/gradio_api/call/compare", "/gradio_api/call/v2/compare")
_EVENTS = ("/gradio_api/queue/join", "/gradio_api/run/predict", "/gradio_api/cancel", "/gradio_api/reset", *_CALLS)
_MESSAGES = ("/gradio_api/queue/data", *(f"{path}/{{session}}" for path in _CALLS))
_EXPIRED = 'data: {"msg":"unexpected_error","message":"This session has expired. Reload the page.",'
_EXPIRED += '"session_not_found":true,"success":false}\n\n'
_REFUSED = (
    "This page does not answer to the name {}, to other sites or, without --allowed-host, through a proxy; open it "
)
_REFUSED += "as localhost on its own machine, or start it with --allowed-host NAME.\n"
_FORWARDED = ("forwarded", "x-forwarded-", "x-real-ip", "via")  # how headers begin that only proxies send
_ADDRESS = re.compile(r"([a-z0-9._-]*[a-z0-9_-]|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?", re.IGNORECASE)


def is_local_only(host: str, allowed: Sequence[str]) -> bool:
    """Whether only this machine reaches the page, so that visitors may name its paths; see `Gate._is_known`."""
    return is_loopback(host) and not allowed and "SPACE_HOST" not in os.environ


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.lower() == "localhost"


def host_name(address: str) -> str:
    """Return the name in a `Host` or behind an origin's scheme; empty if no browser sends such an address."""
    match = _ADDRESS.fullmatch(address)
    return match[1].strip("[]").lower() if match and int(match[2] or 80) < 2**16 else ""


class Gate:
    """Middleware that refuses strangers' requests. `allowed`: host names besides this machine's, `*.example.org` for
    all subdomains; without any, a page that is not `local` (see `is_local_only`) answers to every name, since its own
    are unknown. `root`: the page's path on a proxy.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str], *, local: bool, root: str = "") -> None:
        self._app, self._local, self._any_name, self._root = app, local, not (local or allowed), root.rstrip("/")
        names = [name.lower().strip("[]") for name in (*allowed, os.environ.get("SPACE_HOST", ""))]
        self._named = re.compile("|".join(map(translate, names)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, path, headers = self._app, scope.get("path", ""), Headers(raw=scope.get("headers", []))
        if scope["type"] == "http" and not self._is_known(scope["method"], headers):
            app = PlainTextResponse(_REFUSED.format(quoted(headers.get("host", ""))), 403)
        elif self._root and path == self._root:
            app = RedirectResponse(f"{self._root}/")
        elif self._root and path.startswith(f"{self._root}/"):  # else the proxy has cut it off already
            scope = {**scope, "path": path.removeprefix(self._root)}
        await app(scope, receive, send)

    def _is_known(self, method: str, headers: Headers) -> bool:
        """Another site could send requests in a visitor's browser, or have its own name resolve to 127.0.0.1 (DNS
        rebinding); a proxy could open a local page to others, who would look for files by adding them as models.
        """
        origin, site, host = headers.get("origin"), headers.get("sec-fetch-site"), headers.get("host", "")
        name, address = host_name(host), (origin or "").partition("://")[2]
        sender = host_name(address)
        proxied = any(header.startswith(_FORWARDED) for header in headers) or not is_loopback(sender or name)
        answers = self._any_name or is_loopback(name) or self._named.match(name)
        if not (name and answers) or (self._local and proxied):
            return False
        if origin is None:  # without one, no other site can read the answer
            return method in ("GET", "HEAD") or site in (None, "same-origin", "none")
        # browsers send `Sec-Fetch-Site` on trustworthy connections; a proxy may rename `Host`
        same = site in ("same-origin", "none") if site else address.lower() == host.lower()
        return sender != "" and (same or self._named.match(sender) is not None)


class _Event(BaseModel):
    session_hash: str = Field("", pattern="^[A-Za-z0-9_-]{0,64}$")  # the longest would be kept with the session
    record: str = Field("", validation_alias=AliasPath("event_data", "record"))  # a run to share


class Events:
    """The open routes of Gradio's `page`, with limits on the events in its `queue`."""

    def __init__(self, page: ASGIApp, queue: Any) -> None:
        self._page, self._queue = page, queue
        self._signed_in = dict[str, float]()  # when, by address
        self._reading = set[str]()  # sessions whose messages are being read
        self._closing = set[str]()  # sessions whose stream of messages has just ended

    def routes(self) -> list[Route]:
        return [
            *(Route(path, self._page, methods=["GET"]) for path in _READ),
            Route("/gradio_api/file={file:path}", self._file),
            *(Route(path, self._messages) for path in _MESSAGES),
            *(Route(path, self._event, methods=["POST"]) for path in _EVENTS),
            Route("/login", self._sign_in, methods=["POST"]),
        ]

    async def _file(self, request: Request) -> ASGIApp:
        if not Path(request.path_params["file"]).is_absolute():  # Gradio would fetch an address
            raise HTTPException(404)
        return self._page

    async def _sign_in(self, request: Request) -> ASGIApp:
        """Passwords could be guessed by trying many. Nobody waits, so that those who leave delay nobody."""
        address = ":".join(request.scope["client"][0].split(":")[:4])  # of IPv6 the network: one person's, perhaps
        now = monotonic()
        self._signed_in = {other: at for other, at in self._signed_in.items() if now - at < SIGN_IN_SECONDS}
        if address in self._signed_in:
            raise HTTPException(429, "Too many sign-ins at once from your address; try again in a second.")
        self._signed_in[address] = now
        return self._page

    async def _event(self, request: Request) -> ASGIApp:
        body, queued = await request.body(), request.url.path.endswith(("/join", "/compare"))
        read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return read.pop() if read else await request.receive()

        sent = json_value(body)  # Gradio answers deep nesting, or no text, with tracebacks
        event = _Event.model_validate(sent)
        if len(json_text(sent)) - len(event.record) > TEXT_CHARACTERS:  # 1 MB of small lists takes 20 MB, 100 times
            long = f"Prompt and chat exceed {TEXT_CHARACTERS:,} characters"
            raise HTTPException(422, f"{long}; shorten the prompt, or start a new chat.")
        if queued and event.session_hash in self._closing:
            # Gradio's client takes its stream for open until it has read the end, and would not fetch what it is told
            await asyncio.sleep(CLOSING_SECONDS)
        pending = self._queue.pending_event_ids_session  # queued, running or unread; Gradio limits only queued ones
        while queued and sum(map(len, pending.values())) >= EVENTS:
            oldest = next((name for name in pending if name not in self._reading), None)
            if oldest is None:
                raise HTTPException(503, "Too many events are waiting; try again in a minute.")
            await self._queue.clean_events(session_hash=oldest)  # also ends running ones
            self._drop(oldest)
        return lambda scope, _, send: self._page(scope, replayed, send)

    def _drop(self, session: str) -> None:
        self._queue.pending_event_ids_session.pop(session, None)
        self._queue.pending_messages_per_session.pop(session, None)

    async def _messages(self, request: Request) -> ASGIApp:
        name = request.path_params.get("session") or request.query_params.get("session_hash", "")
        if not self._queue.pending_event_ids_session.get(name) or name in self._reading:
            return PlainTextResponse(_EXPIRED, media_type="text/event-stream")  # it could hold every connection

        async def read(scope: Scope, receive: Receive, send: Send) -> None:
            ended = False

            async def pass_on(message: Message) -> None:
                nonlocal ended
                ended = message["type"] == "http.response.body" and not message.get("more_body")
                if ended:
                    self._closing.add(name)
                    asyncio.get_running_loop().call_later(CLOSING_SECONDS, self._closing.discard, name)
                await send(message)

            self._reading.add(name)
            try:
                await self._page(scope, receive, pass_on)
            finally:
                self._reading.discard(name)
                if not ended:  # the client left
                    await self._queue.clean_events(session_hash=name)
                if not ended or not self._queue.pending_event_ids_session.get(name):  # no new event came meanwhile
                    self._drop(name)  # Gradio would keep it, and 1,999 others

        return read
