"""The gate limits the size and number of requests, and thereby the memory and disk that visitors can use.

In all, there are at most 500 bodies of 1 MB on their way, 100 events of 1 MB (262,144 characters with an emoji), 200
sessions with 1 MB of chat and 3 MB of Gradio's settings each, and 100 files of 10 MB. Beside each rule stands the
attack that it stops. Gradio checks passwords and limits queued events; Starlette counts the bytes of bodies. Of
Gradio's undocumented names this uses `Blocks._queue`, for events that nobody fetches.
"""

import asyncio
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.errors import quoted
from specdemo.files import json_text, json_value

EVENTS = 100  # queued, running or not yet fetched; a page sends up to six at once
BODY_BYTES = 2**20  # the largest is a run to share: 2,048 tokens a side, compressed, are about 0.7 MB
FILE_BYTES = 10 * 2**20  # a comparison of 2,048 tokens a side takes about 5 MB
TEXT_CHARACTERS = 2**18  # about 64K tokens, more than the bundled models' context
CLOSING_SECONDS = 0.3  # after which a browser, even a busy one, has read that its stream of messages ends
SIGN_IN_SECONDS = 1.0  # between two attempts of an address

_READ = re.compile(
    r"/|/(assets|static|svelte|specdemo)/.+|(/gradio_api)?/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt"
    r"|/pwa_icon|/config/?|/gradio_api/((login_check|startup-events|info|app_id)/?|file=(/|[A-Za-z]:[/\\]).+)"
)
_MESSAGES = re.compile(r"/gradio_api/(?:queue/data|call/(?:v2/)?compare/([\w-]{1,64}))")
_EVENT = re.compile(r"/gradio_api/(queue/join|run/predict|cancel|reset|call/(v2/)?compare)/?")
_LOGIN, _UPLOAD = re.compile("/login/?"), re.compile("/gradio_api/upload")
_NAME = re.compile("[A-Za-z0-9_-]{0,64}")
_EXPIRED = 'data: {"msg":"unexpected_error","message":"This session has expired. Reload the page.",'
_EXPIRED += '"session_not_found":true,"success":false}\n\n'
_FORWARDED = ("forwarded", "x-forwarded-", "x-real-ip", "via")  # how headers begin that only proxies send
UNREADABLE = "This request cannot be read; reload the page and try again."


def only_here(host: str, allowed: Sequence[str]) -> bool:
    """Whether only this machine reaches the page, so that visitors may name its paths; see `Gate._check_sender`."""
    return is_loopback(host) and not allowed and "SPACE_HOST" not in os.environ


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.lower() == "localhost"


class Gate:
    """`queue`: Gradio's. `names`: host names besides this machine's, `*.example.org` for all subdomains. `any_name`:
    others work, too. `local`: see `only_here`. `root`: the path under which a proxy serves the page.
    """

    def __init__(
        self, app: ASGIApp, queue: Any, names: Sequence[str], *, any_name: bool, local: bool, root: str = ""
    ) -> None:
        self._app, self._queue, self._root = app, queue, root.rstrip("/")
        self._names, self._any_name, self._local = [name.lower().strip("[]") for name in names], any_name, local
        self._signed_in = dict[str, float]()  # when, by address
        self._reading = set[str]()  # sessions whose messages are being read
        self._closing = set[str]()  # sessions whose stream of messages has just ended
        # Gradio's other routes write files, fetch addresses, start programs or sign everyone out (/deep_link,
        # /proxy=, /process_recording, /logout); what a release adds stays closed.
        reads, posts = [(_READ, app), (_MESSAGES, self._messages)], [(_EVENT, self._event), (_LOGIN, self._sign_in)]
        self._routes: dict[str, list[tuple[re.Pattern[str], ASGIApp]]]
        self._routes = {"HEAD": reads[:1], "GET": reads, "POST": [*posts, (_UPLOAD, app)]}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # at start and end
            await self._app(scope, receive, send)
            return
        path, headers = scope["path"], Headers(scope=scope)
        if self._root and f"{path}/".startswith(f"{self._root}/"):  # else the proxy has cut it off already
            path = path.removeprefix(self._root)
            scope = {**scope, "path": path, "raw_path": path.encode()}
        routes: list[tuple[re.Pattern[str], ASGIApp]]
        routes = [*self._routes.get(scope["method"], []), (re.compile(""), RedirectResponse(f"{self._root}/"))]
        app = next((app for pattern, app in routes if pattern.fullmatch(path)), self._unknown)
        limit = FILE_BYTES + 4096 if _UPLOAD.fullmatch(path) else BODY_BYTES  # a form is around the file
        length = headers.get("content-length", "0")
        try:
            self._check_sender(scope["method"], headers)
            if len(length) > 9 or int(length) > limit:  # it would fill the memory or the disk
                raise HTTPException(413, f"The request is too large; send at most {limit:,} bytes.")
            await RequestBodyLimitMiddleware(app, limit)(scope, receive, send)  # also counts bodies without a length
        except HTTPException as refused:
            await PlainTextResponse(f"{refused.detail}\n", refused.status_code)(scope, receive, send)
        except ClientDisconnect:  # while its body was read
            pass

    def _check_sender(self, method: str, headers: Headers) -> None:
        """Another site could send requests in a visitor's browser, or have its own name resolve to 127.0.0.1 (DNS
        rebinding); a proxy could open a local page to others, who would look for files by adding them as models.
        """
        origin, site, host = headers.get("origin"), headers.get("sec-fetch-site"), headers.get("host", "")
        name, address = _host_name(host), (origin or "").partition("://")[2]
        sender = _host_name(address)
        proxied = any(header.startswith(_FORWARDED) for header in headers) or not is_loopback(sender or name)
        if not (name and (self._any_name or is_loopback(name) or self._is_named(name))) or (self._local and proxied):
            known = False
        elif origin is None:  # without one, no other site can read the answer
            known = method in ("GET", "HEAD") or site in (None, "same-origin", "none")
        else:  # browsers send `Sec-Fetch-Site` on trustworthy connections; a proxy may rename `Host`
            same = site in ("same-origin", "none") if site else address.lower() == host.lower()
            known = sender != "" and (same or self._is_named(sender))
        if not known:
            raise HTTPException(
                403,
                f"This page does not answer to the name {quoted(name)}, to other sites or, without --allowed-host, "
                "through a proxy; open it as localhost on its own machine, or start it with --allowed-host NAME.",
            )

    async def _unknown(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise HTTPException(404, "This page has no such address; start at its front page.")

    def _is_named(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._names)

    async def _sign_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passwords could be guessed by trying many. Nobody waits, so that those who leave delay nobody."""
        address = ":".join(scope["client"][0].split(":")[:4])  # of IPv6 the network, which one person may have whole
        now = monotonic()
        self._signed_in = {other: at for other, at in self._signed_in.items() if now - at < SIGN_IN_SECONDS}
        if address in self._signed_in:
            raise HTTPException(429, "Too many sign-ins at once from your address; try again in a second.")
        self._signed_in[address] = now
        await self._app(scope, receive, send)

    async def _event(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, path = await Request(scope, receive).body(), scope["path"]
        read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return read.pop() if read else await receive()

        try:
            event = json_value(body)
        except ValueError:
            event = None
        if not isinstance(event, dict) or ("/run/" in path and event.get("fn_index") is None):
            raise HTTPException(400, UNREADABLE)  # Gradio answers these, deep nesting, or no text with tracebacks
        session = event.get("session_hash", "")
        if not isinstance(session, str) or not _NAME.fullmatch(session):  # the longest would be kept with the session
            raise HTTPException(400, UNREADABLE)
        if len(json_text(event.get("data"))) > TEXT_CHARACTERS:  # 100 of them would fill the memory
            long = f"Prompt and chat exceed {TEXT_CHARACTERS:,} characters"
            raise HTTPException(422, f"{long}; shorten the prompt, or start a new chat.")
        if "/join" in path and session in self._closing:
            # Gradio's client takes its stream for open until it has read the end, and would not fetch what it is told
            await asyncio.sleep(CLOSING_SECONDS)
        pending = self._queue.pending_event_ids_session  # queued, running or unread; Gradio limits only queued ones
        while ("/join" in path or "/call/" in path) and sum(map(len, pending.values())) >= EVENTS:
            oldest = next((name for name in pending if name not in self._reading), None)
            if oldest is None:
                raise HTTPException(503, "Too many events are waiting; try again in a minute.")
            await self._forget(oldest)
        await self._app(scope, replayed, send)

    async def _forget(self, session: str) -> None:
        await self._queue.clean_events(session_hash=session)  # also ends running ones
        self._drop(session)

    def _drop(self, session: str) -> None:
        self._queue.pending_event_ids_session.pop(session, None)
        self._queue.pending_messages_per_session.pop(session, None)

    async def _messages(self, scope: Scope, receive: Receive, send: Send) -> None:
        match, query = _MESSAGES.fullmatch(scope["path"]), parse_qs(scope["query_string"].decode("latin-1"))
        name, ended = (match and match[1]) or query.get("session_hash", [""])[0], False
        pending = self._queue.pending_event_ids_session
        if not pending.get(name) or name in self._reading:  # one event could hold every connection
            await PlainTextResponse(_EXPIRED, media_type="text/event-stream")(scope, receive, send)
            return

        async def pass_on(message: Message) -> None:
            nonlocal ended
            ended = message["type"] == "http.response.body" and not message.get("more_body")
            if ended:
                self._closing.add(name)
                asyncio.get_running_loop().call_later(CLOSING_SECONDS, self._closing.discard, name)
            await send(message)

        self._reading.add(name)
        try:
            await self._app(scope, receive, pass_on)
        finally:
            self._reading.discard(name)
            if not ended:  # the client left
                await self._forget(name)
            elif not pending.get(name):  # Gradio would keep it, and 1,999 others; a new event may have come meanwhile
                self._drop(name)


def _host_name(address: str) -> str:
    """Return the name in a `Host` or behind an origin's scheme; empty for what Gradio could not parse either."""
    try:
        parts = urlsplit(f"//{address}")
        named = parts.port != 0 and parts.netloc == address and "@" not in address  # a name and a port, nothing else
        return (parts.hostname or "").lower() if named else ""
    except ValueError:
        return ""
