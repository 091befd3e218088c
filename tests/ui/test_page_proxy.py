from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import BrowserContext
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from specdemo.ui.server import listening
from tests.support.browser import BRIEF, ready, run, started

pytestmark = pytest.mark.browser
ROOT = "/demo"


@contextmanager
def proxy(target: str) -> Iterator[str]:
    """One that cuts its path off and names the target as `Host`, which is the hardest."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=target, timeout=None, trust_env=False) as app.state.http:
            yield

    async def forward(request: Request) -> Response:
        if not request.url.path.startswith(ROOT):
            return Response("another page", 404)
        headers = [(name, value) for name, value in request.headers.raw if name not in (b"connection", b"host")]
        url = httpx.URL(target).copy_with(path=request.url.path.removeprefix(ROOT), query=request.url.query.encode())
        http = app.state.http
        sent = http.build_request(request.method, url, headers=headers, content=await request.body())
        answer = await http.send(sent, stream=True)
        passed = StreamingResponse(answer.aiter_raw(), answer.status_code)
        hop = (b"transfer-encoding", b"connection")
        passed.raw_headers = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in hop]
        return passed

    methods = ["GET", "HEAD", "POST"]
    app = Starlette(routes=[Route("/{path:path}", forward, methods=methods)], lifespan=lifespan)
    with listening(app, port=0) as url:
        yield url


def test_the_page_runs_below_a_proxys_path(browser: BrowserContext, models_dir: Path, tmp_path: Path) -> None:
    arguments = ("-m", "tests.support.scripted_app", models_dir)
    with started(tmp_path, *arguments, GRADIO_ROOT_PATH=ROOT) as below, proxy(below.url) as url:
        page = browser.new_page()
        for address in (below.url + ROOT, f"{url}{ROOT}{BRIEF}"):  # the first as a proxy asks that keeps its path
            page.goto(address)
            ready(page)  # once an event has restored the settings
        run(page)
        page.close()
