"""Who may ask the page for what: checks in front of Gradio's own routes.

- Host: a page on a loopback address answers under its own names alone. Otherwise any site whose name is made to
  resolve to 127.0.0.1 could use it as its own (DNS rebinding).
- Origin: no request that a browser makes for another site's page. Browsers say so, in `Sec-Fetch-Site` where the
  connection is trustworthy, else in `Origin`; programs that are no browsers send neither.
- Size: of a request, of all uploads within `AGE` seconds, and of the disk that must stay free.
- Routes of Gradio that this page has no use for and that write files, start programs or fetch addresses are closed.
"""

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Sequence
from ipaddress import ip_address
from time import monotonic
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.ui.files import AGE

FILE_BYTES = 10 * 2**20
"""A visitor's file at most; a comparison of 2,048 tokens a side has some 5 MB."""
BODY_BYTES = 2**20
"""Any other request at most; a prompt that fills a context of 128K tokens has about half of it."""
_FORM_BYTES = 2**16  # what a form adds to its file
_ALL_UPLOADS = 2**30
_LEAST_UPLOAD = 2**18  # counted for a small one, whose folder takes space, too
_FREE_BYTES = 2**30
_CLOSED = (
    "/deep_link",
    "/process_recording",
    "/proxy=",
    "/file=http",
    "/file/http",
    "/vibe-",
    "/undo-vibe-",
    "/monitoring",
)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_OWN = ("same-origin", "none")
_SAFE = ("GET", "HEAD", "OPTIONS")


def gate(host: str | None, allowed: Sequence[str]) -> list[Middleware]:
    """The checks for a page that listens on `host`, None being where Gradio listens then.

    `allowed`: further names that it is reached under, `*.example.org` being all below a domain. Unless some are
    given, a page on other addresses than loopback answers under any name: it cannot know its own.
    """
    address = host or os.environ.get("GRADIO_SERVER_NAME", _LOOPBACK[1])
    space = os.environ.get("SPACE_HOST")  # of a Hugging Face Space, behind whose proxy the page stands
    own = [*allowed, *filter(None, [space])]
    checks = [Middleware(Gate, trusted=own)]
    if allowed or is_loopback(address):
        names = [*_LOOPBACK, address, *own]
        checks.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False))
    return checks


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a page that listens there."""
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.lower() == "localhost"


class Gate:
    """Refuses what is another site's, too large, or for a closed route."""

    def __init__(self, app: ASGIApp, trusted: Sequence[str]) -> None:
        """`trusted`: hosts whose pages are this page, whatever a proxy makes of its name."""
        self._app = app
        self._trusted = [name.lower() for name in trusted]
        self._uploads: deque[tuple[float, int]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or have the application do so."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            status, text = refusal
            await PlainTextResponse(f"{text}\n", status)(scope, receive, send)
        elif _is_upload(scope):
            await self._upload(scope, receive, send, _length(headers))
        else:
            await self._app(scope, receive, send)

    async def _upload(self, scope: Scope, receive: Receive, send: Send, size: int) -> None:
        """Count it, unless the application refuses it."""
        counted = monotonic(), max(size, _LEAST_UPLOAD)
        self._uploads.append(counted)

        async def seen(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._uploads.remove(counted)
            await send(message)

        await self._app(scope, receive, seen)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Status and text, if the request is refused."""
        if self._foreign(scope["method"], headers):
            return 403, (
                "This request comes from another site's page; open the page itself. If it is the page itself, behind "
                "a proxy, start it with --allowed-host and the name in the browser's address."
            )
        if any(part in scope["path"] for part in _CLOSED):
            return 404, "This page has no such address; begin at its front page."
        if "transfer-encoding" in headers:
            return 411, "The request does not say its length; send Content-Length."
        most = FILE_BYTES + _FORM_BYTES if _is_upload(scope) else BODY_BYTES
        if _length(headers) > most:
            return 413, f"The request has {_length(headers):,} bytes; send at most {most:,}."
        return self._full() if _is_upload(scope) else None

    def _full(self) -> tuple[int, str] | None:
        """Why nothing more can be uploaded now."""
        while self._uploads and monotonic() - self._uploads[0][0] > AGE:
            self._uploads.popleft()
        if sum(size for _, size in self._uploads) >= _ALL_UPLOADS:
            return 429, "Too much was uploaded to this page in the last hour; try again later."
        if shutil.disk_usage(tempfile.gettempdir()).free < _FREE_BYTES:
            return 507, "The disk of the page's machine is nearly full; try again later."
        return None

    def _foreign(self, method: str, headers: Headers) -> bool:
        """Whether a browser sends it for another site's page, and it could change something or be read there."""
        origin = headers.get("origin")
        if method in _SAFE and origin is None:  # a link, an image: that site cannot read what comes back
            return False
        asked = urlsplit(origin or "")
        if any(_is_of(asked.hostname or "", trusted) for trusted in self._trusted):
            return False
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site not in _OWN
        return origin is not None and asked.netloc.lower() != headers.get("host", "").lower()


def _is_upload(scope: Scope) -> bool:
    return scope["method"] == "POST" and str(scope["path"]).rstrip("/").endswith("/upload")


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdecimal() else 0


def _is_of(name: str, trusted: str) -> bool:
    """Whether a host's name is this one, or matches `*.example.org`."""
    return name == trusted or (trusted.startswith("*.") and name.endswith(trusted[1:]))
