"""The page's server: it checks the values of events, stores visitors' files, and mounts the page behind its gate.

Of Gradio's undocumented names this uses two, `Blocks.process_api` and `Blocks.get_config_file`.
"""

import errno
import logging
import os
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import sleep, time
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import gradio as gr
import uvicorn
from anyio import open_file
from gradio.exceptions import InvalidPathError
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from specdemo.errors import UsageError
from specdemo.files import is_text
from specdemo.ui.gate import EVENTS, UNREADABLE, Gate, Refused, default_host, is_loopback

SESSIONS = 200  # visitors whose chat and pair are stored; with one engine, the page is slow for ten at once
FILES = 100
FILE_SECONDS = 3600.0  # a suite is read when its benchmark starts, perhaps long after it was chosen
CONNECTIONS = 1000
THREADS = 32  # for callbacks, besides the 40 that answer requests, so that slow callbacks never block the page
_API = "/gradio_api"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_log = logging.getLogger(__name__)


class Page(gr.Blocks):
    """Blocks that reject values which no widget can send: over HTTP, anyone can send anything."""

    def get_config_file(self) -> Any:
        # the heartbeat holds a connection per tab; a browser opens six to a host, so a seventh tab would stall all
        return super().get_config_file() | {"connect_heartbeat": False}

    async def process_api(self, block_fn: Any, inputs: list[Any], *arguments: Any, **options: Any) -> dict[str, Any]:
        if block_fn.fn is None or (options.get("iterator") is None and len(inputs) < len(block_fn.inputs)):
            raise refusal("The page received something unexpected")
        for block, value in zip(block_fn.inputs, inputs, strict=False):
            if not fits(block, value):
                raise refusal(f"{getattr(block, 'label', None) or 'A value'!r} has an unusable value")
        try:
            result: dict[str, Any] = await super().process_api(block_fn, inputs, *arguments, **options)
        except (gr.Error, InvalidPathError, FileNotFoundError) as error:
            if isinstance(error, gr.Error) and not error.print_exception:  # one of ours
                raise
            raise refusal("A value is out of bounds, or a file no longer exists") from error
        except Exception as error:  # Gradio would send "error: null"
            _log.exception("an event failed")
            failed = f"This action failed ({type(error).__name__}); see the server's log."
            raise gr.Error(failed, print_exception=False) from error
        return result


def refusal(reason: str) -> gr.Error:
    return gr.Error(f"{reason}; correct it, or reload the page.", print_exception=False)


def fits(block: Any, value: Any) -> bool:
    """Check the type that a widget sends; Gradio itself checks bounds and choices."""
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
    return True  # browsers never send states, and the API endpoint checks its own values


def event_value(event: gr.EventData, name: str) -> Any:
    """Return a value that the page's script sent with an event, or None. Anyone can send anything: check it."""
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
            del os.environ["GRADIO_TEMP_DIR"]
            if before is not None:
                os.environ["GRADIO_TEMP_DIR"] = before


async def upload(request: Request) -> Response:
    """Keep a visitor's file for `FILE_SECONDS`, instead of Gradio's route, which takes a thousand per request."""
    folder = Path(os.environ["GRADIO_TEMP_DIR"], "uploads")
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        if old.stat().st_mtime < time() - FILE_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    if len([*folder.iterdir()]) >= FILES:
        return Refused(429, "The server's space for uploads is full; try again in an hour.").response
    try:
        async with request.form(max_files=1, max_fields=1) as form:
            [file] = [part for part in form.values() if isinstance(part, UploadFile)]
            path = folder / uuid4().hex / (re.sub(r"[^\w.-]", "_", Path(file.filename or "").name)[-100:] or "file")
            path.parent.mkdir()
            async with await open_file(path, "wb") as out:
                await out.write(await file.read())
    except (HTTPException, ValueError):
        return Refused(400, "The upload is not a form with one file; choose one file on the page.").response
    except ClientDisconnect:
        return Refused(*UNREADABLE).response
    return JSONResponse([str(path)])


async def _unreadable(request: Request, error: Exception) -> Response:
    _log.warning("refused %s: %r", request.url.path, error)
    return Refused(*UNREADABLE).response


def application(
    page: gr.Blocks,
    routes: Sequence[BaseRoute] = (),
    *,
    host: str | None = None,
    allowed_hosts: Sequence[str] = (),
    auth: tuple[str, str] | None = None,
    sessions: int = SESSIONS,
    **look: Any,
) -> Starlette:
    """Return the page behind its gate, with further routes; `look` are options of `gr.mount_gradio_app`. Without
    `allowed_hosts`, a page on no loopback address answers to every name, since its own names are unknown.
    """
    # Gradio would log every event and tabulate them all after each one, which disturbs the engine's clocks
    os.environ |= {"GRADIO_ANALYTICS_MAX_EVENTS": "1", "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(10**9)}
    address, space = host or default_host(), os.environ.get("SPACE_HOST")
    trusted = [*allowed_hosts, *filter(None, [space])]
    root = os.environ.get("GRADIO_ROOT_PATH", "")
    gate = Middleware(
        Gate,
        names=[*_LOOPBACK, address, *trusted] if allowed_hosts or is_loopback(address) else None,
        trusted=trusted,
        root=urlsplit(root).path,
        auth=auth is not None,
    )
    page.max_threads, page.state_session_capacity = THREADS, sessions
    page.queue(max_size=EVENTS, api_open=False)  # nothing runs outside the queue
    # Gradio's routes raise these for names that it does not know
    handlers = dict.fromkeys((KeyError, TypeError, ValueError), _unreadable)
    app = Starlette(routes=[Route(f"{_API}/upload", upload, methods=["POST"]), *routes], middleware=[gate])
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
        app_kwargs={"exception_handlers": handlers},
        **look,
    )
    return app


@contextmanager
def listening(app: ASGIApp, host: str | None = None, port: int | None = None) -> Iterator[str]:
    """Serve in a thread and yield the address. No request checks it, since a configured proxy could receive it."""
    host = host or default_host()
    listener = _listen(host, port)
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


def _listen(host: str, port: int | None) -> socket.socket:
    """Listen on this port or, without one, on the first free port of a hundred."""
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
