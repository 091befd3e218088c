"""Shared fixtures. The real pair is loaded once; tests that need a browser find Chromium or say why not."""

import os
import shutil
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from specdemo.engines.genai import GenAIEngine
from specdemo.models.pairs import bundled_pair
from tests.browser import FLAGS, ROOT, WAIT, App, started

PROMPTS = (
    "Once upon a time there was a fox who",
    "In a deep forest there lived",
    '"Where are you going?" asked the wolf.',
)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what is cached, such as compiled models, out of the home of whoever runs the tests."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def engine() -> Iterator[GenAIEngine]:
    """The bundled pair in real OpenVINO pipelines."""
    engine = GenAIEngine(bundled_pair())
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; where it must not be missing, `SPECDEMO_REQUIRE_BROWSER` makes that a failure."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        message = "no Chromium on this machine (Debian: apt-get install chromium)"
        if os.environ.get("SPECDEMO_REQUIRE_BROWSER"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def app(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """`app.py`, as a Space starts it."""
    with started(tmp_path_factory.mktemp("elsewhere"), ROOT / "app.py") as app:
        yield app


@pytest.fixture
def visit(browser: Browser, app: App) -> Iterator[Callable[..., Page]]:
    """Open the page as a new visitor; at the end, no page may have complained or asked another host.

    The page is that of the module's own `app`, unless another is given.
    """
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_page(path: str = "/", width: int = 1440, context: BrowserContext | None = None, app: App = app) -> Page:
        def foreign(url: str) -> bool:
            return urlsplit(url).scheme in ("http", "https", "ws", "wss") and not url.startswith(app.url)

        if context is None:
            context = browser.new_context(viewport={"width": width, "height": 1000}, accept_downloads=True)
            contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: complaints.append(request.url) if foreign(request.url) else None)
        page.goto(app.url + path)
        expect(page.locator("#run")).to_be_enabled(timeout=WAIT)
        page.wait_for_function("document.querySelector('.chart.clock')?.data !== undefined")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
