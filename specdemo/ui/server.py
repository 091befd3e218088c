"""The page's server: it keeps visitors' files, mounts the page behind its gate, and holds its connections.

Of Gradio's undocumented names this uses `App.tokens` and `FnIndexInferError`.
"""

import asyncio
import logging
import os
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Thread
from time import sleep, time
from typing import Any, cast
from urllib.parse import urlsplit

import gradio as gr
import uvicorn
from gradio.route_utils import FnIndexInferError
from httpx import InvalidURL
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from specdemo.errors import SpecdemoError, UsageError
from specdemo.files import environment
from specdemo.ui.gate import EVENTS, Events, Gate

SESSIONS = 200  # visitors whose chat and pair are stored; with one engine, the page is slow for ten at once
BODY_BYTES = 2**20  # the largest is a run to share: 2,048 tokens a side, compressed, are about 0.7 MB
FILE_BYTES = 10 * 2**20  # a comparison of 2,048 tokens a side takes about 5 MB
FILES = 100
FILE_SECONDS = 3600.0  # a suite is read when its benchmark starts, perhaps long after it was chosen
CONNECTIONS = 500  # a browser opens up to six, and keeps idle ones for five seconds
THREADS = 32  # for callbacks, besides the 40 that answer requests, so that slow callbacks never block the page


def uploads() -> Path:
    return Path(os.environ.get("GRADIO_TEMP_DIR", "/-"), "uploads")


@contextmanager
def visitors_files() -> Iterator[Path]:
    """Create a temporary folder for Gradio's and visitors' files. Enter it before the page is built."""
    place = os.environ.get("GRADIO_TEMP_DIR")
    try:
        temporary = TemporaryDirectory(prefix="specdemo-", dir=place, ignore_cleanup_errors=True)
    except OSError as error:
        raise SpecdemoError.of(error, "Visitors' files cannot be saved", "set TMPDIR to a writable folder") from error
    with temporary as folder, environment(GRADIO_TEMP_DIR=folder):
        yield Path(folder)


async def upload(request: Request) -> Response:
    """Keep a visitor's file for `FILE_SECONDS`. Gradio's route would fill the disk: it takes a thousand files in one
    request, and keeps what a full disk or a visitor who left cut off.
    """
    tokens = request.app.state.tokens
    if tokens is not None and tokens.keys().isdisjoint(request.cookies.values()):
        raise HTTPException(401, "Sign in at the front page first.")
    uploads().mkdir(exist_ok=True)
    for old in uploads().iterdir():
        if old.stat().st_mtime < time() - FILE_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    if len([*uploads().iterdir()]) >= FILES:
        raise HTTPException(429, "The server's space for uploads is full; try again in an hour.")
    folder = Path(mkdtemp(dir=uploads()))  # before the body is read, so that files on their way count, too
    with ExitStack() as refused:
        refused.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            async with request.form(max_files=1, max_fields=1) as form:
                [file] = [part for part in form.values() if isinstance(part, UploadFile)]
                name = re.sub(r"^\.+|[^\w.-]", "_", Path(file.filename or "file").name)  # no folder, such as ".."
                path = folder / name[-60:]  # of up to four bytes each; most systems allow 255
                with path.open("wb") as out:
                    await asyncio.to_thread(shutil.copyfileobj, file.file, out)
        except OSError as error:
            raise HTTPException(507, f"The file cannot be kept ({error.strerror}); try again later.") from error
        refused.pop_all()
    return JSONResponse([str(path)])


async def _unreadable(request: Request, error: Exception) -> Response:
    """Answer in place of a traceback: Gradio's routes raise these for names and forwarded hosts unknown to them."""
    logging.getLogger(__name__).warning("refused %s: %r", request.url.path, error)
    return PlainTextResponse("This request cannot be read; reload the page and try again.\n", 400)


def application(
    page: gr.Blocks,
    routes: Sequence[BaseRoute] = (),
    *,
    local: bool = True,
    allowed_hosts: Sequence[str] = (),
    auth: tuple[str, str] | None = None,
    sessions: int = SESSIONS,
    **look: Any,
) -> Starlette:
    """Return the page behind its gate, with further routes; `look` are options of `gr.mount_gradio_app`."""
    # Gradio would log every event and tabulate them all after each one, which disturbs the engine's clocks
    os.environ |= {"GRADIO_ANALYTICS_MAX_EVENTS": "1", "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**9)}
    page.max_threads, page.state_session_capacity = THREADS, sessions
    page.queue(max_size=EVENTS, api_open=False)  # nothing runs outside the queue
    root = os.environ.get("GRADIO_ROOT_PATH", "")
    errors = (FnIndexInferError, KeyError, TypeError, ValueError, OSError, InvalidURL, ClientDisconnect)
    unreadable = dict.fromkeys(errors, _unreadable)
    gate = Middleware(Gate, allowed_hosts, local=local, root=urlsplit(root).path)
    form = Route("/gradio_api/upload", upload, methods=["POST"], max_body_size=FILE_BYTES + 4096)  # around the file
    app = Starlette(
        routes=[form, *routes], middleware=[gate], exception_handlers=unreadable, max_body_size=BODY_BYTES
    )
    gr.mount_gradio_app(
        cast(Any, app),
        page,
        "/",
        auth=auth,
        root_path=root,
        run_history=False,  # would let visitors have this machine write to a bucket on the Hub
        ssr_mode=False,
        show_error=True,
        max_file_size=FILE_BYTES,
        app_kwargs={"exception_handlers": unreadable},
        **look,
    )
    gradio = cast(Any, app.routes.pop()).app  # which would answer at each of its addresses
    app.routes.extend(Events(gradio, page._queue).routes())
    app.state.tokens = gradio.tokens if auth else None  # of visitors who have signed in
    return app


class Connection(H11Protocol):
    """An HTTP connection. Idle, half-open and unread ones are dropped, oldest first, if there are too many: uvicorn
    closes none of them, and its `limit_concurrency` would refuse everyone instead.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.made_at = self.loop.time()
        others = cast("set[Connection]", self.connections)
        waiting = [other for other in others if other._waits_for_client()]
        if len(others) > CONNECTIONS and waiting:
            oldest = min(waiting, key=lambda other: other.made_at)
            others.discard(oldest)
            oldest.transport.abort()

    def shutdown(self) -> None:
        self.transport.abort()  # uvicorn would wait for it, then cancel what it does, with tracebacks

    def _waits_for_client(self) -> bool:
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused


@contextmanager
def listening(app: ASGIApp, host: str = "127.0.0.1", port: int | None = None) -> Iterator[str]:
    """Serve in a thread and yield the address. No request checks it, since a configured proxy could receive it."""
    listener = _listen(host, port)
    # who sends no proxy's header could choose an address with each sign-in, so proxies' headers are not read
    config = uvicorn.Config(app, http=Connection, ws="none", log_level="warning", proxy_headers=False)
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


def _listen(host: str, port: int | None) -> socket.socket:
    """Listen on this port or, without one, on the first free port of a hundred."""
    first = port if port is not None else int(os.environ.get("GRADIO_SERVER_PORT", "7860"))
    for number in range(first, first + (1 if port is not None else 100)):
        try:
            family, *_, address = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=128)
        except OSError as error:
            reason = error
    refused = f"The page cannot listen on {host}, port {number} ({str(reason.strerror).partition(' (')[0]})"
    raise UsageError(f"{refused}; choose another --host or --port.") from reason
