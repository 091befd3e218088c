from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest
from playwright.sync_api import BrowserContext, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from specdemo.ui.server import listening
from tests.support.browser import BRIEF, App, run, started

pytestmark = pytest.mark.browser
ROOT = "/demo"


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    folder = tmp_path_factory.mktemp("below")
    (folder / "models").mkdir()
    with started(folder, "-m", "tests.support.scripted_app", folder / "models", GRADIO_ROOT_PATH=ROOT) as app:
        yield app


@contextmanager
def proxy(target: str, *, cut: bool, keeps_host: bool) -> Iterator[str]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=target, timeout=None, trust_env=False) as app.state.http:
            yield

    async def forward(request: Request) -> Response:
        if not request.url.path.startswith(ROOT):
            return Response("another page", 404)
        path = (request.url.path.removeprefix(ROOT) or "/") if cut else request.url.path
        dropped = {b"connection"} if keeps_host else {b"connection", b"host"}
        http, headers = app.state.http, [(name, value) for name, value in request.headers.raw if name not in dropped]
        url = httpx.URL(target).copy_with(path=path, query=request.url.query.encode())
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


@pytest.mark.parametrize(("cut", "keeps_host", "path"), [(False, True, "/demo"), (True, False, "/demo/")])
def test_the_page_runs_below_a_proxys_path(
    below: App, browser: BrowserContext, cut: bool, keeps_host: bool, path: str
) -> None:
    with proxy(below.url, cut=cut, keeps_host=keeps_host) as url:
        page = browser.new_page()
        page.goto(url + path + BRIEF.removeprefix("/"))
        expect(page.locator("#run")).to_be_enabled()  # once an event has restored the settings
        if not keeps_host:  # which is the hardest
            run(page)
        page.close()
