import logging
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from specdemo.models.catalogue import PAIR_VARIABLE, bundled_pair, defaults_of
from specdemo.models.devices import PROPERTIES_VARIABLE
from specdemo.records import Server, Servers
from tests.support import BRIEF

if TYPE_CHECKING:  # fixtures import these, since they take two seconds that most tests need not wait for
    from playwright.sync_api import BrowserContext, ConsoleMessage, Page

    from specdemo.engines.genai.engine import GenAIEngine
    from specdemo.engines.traced.engine import TracedEngine
    from tests.support.browser import App, Visit

PAGES = "/test_page"  # in the ids of tests that drive the page in a browser
OPENED = pytest.StashKey["list[Page]"]()
PROMPTS = (
    "Once upon a time there was a fox who",
    "In a deep forest there lived",
    '"Where are you going?" asked the wolf.',
)

# Dozens of processes import the app: with compiled modules they take half the processor time to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

hypothesis.settings.register_profile("quick", max_examples=30, deadline=None)
hypothesis.settings.load_profile("quick")  # pytest --hypothesis-profile default tries more examples


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run quick tests first, then those on real models, then those in a browser. Several processes begin with the
    long files, so that short ones keep all of them busy to the end.
    """
    slow, long = ("browser", "openvino"), ("engines", "models")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: -item.path.stat().st_size)
        items.sort(key=lambda item: (PAGES not in item.nodeid, item.path.parent.name not in long))
    else:
        items.sort(key=lambda item: [item.get_closest_marker(mark) is not None for mark in slow])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> "_Files | None":
    """Give each process whole files, and one process all of the page's: two browsers would slow each other down."""
    return _Files(config, log) if config.getoption("dist") == "loadfile" else None


class _Files(LoadFileScheduling):  # type: ignore[misc]  # which has no types
    def _split_scope(self, nodeid: str) -> str:
        return PAGES if PAGES in nodeid else str(super()._split_scope(nodeid))


@pytest.fixture(scope="session", autouse=True)
def process(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Prepare this process and those that it starts."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ[PAIR_VARIABLE] = "story-pair"
    # test processes share the cores: with two threads each they would wait, and pinned threads share one core
    os.environ[PROPERTIES_VARIABLE] = "INFERENCE_NUM_THREADS=1 ENABLE_CPU_PINNING=NO"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs and their processes ignore Ctrl+C


@pytest.fixture(autouse=True)
def fresh_defaults() -> None:
    defaults_of.cache_clear()  # a test may have had another catalogue


@pytest.fixture(autouse=True)
def log_of_commands() -> Iterator[None]:
    yield  # a command logs to the captured stream of its own test
    for handler in [each for each in logging.root.handlers if type(each) is logging.StreamHandler]:
        logging.root.removeHandler(handler)


@pytest.fixture(scope="session")
def engine() -> "Iterator[GenAIEngine]":
    from specdemo.engines.genai.engine import GenAIEngine

    engine = GenAIEngine(bundled_pair(), thoroughness=BRIEF)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def traced() -> "Iterator[TracedEngine]":
    from specdemo.engines.traced.engine import TracedEngine

    engine = TracedEngine(bundled_pair(), thoroughness=BRIEF)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def llama_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The second server has a draft."""
    from tests.support import llama

    target, draft = llama.write_pair(tmp_path_factory.mktemp("gguf"))
    with llama.started(target) as plain, llama.started(target, draft) as speculative:
        yield Servers(plain=Server(url=plain), speculative=Server(url=speculative))


@pytest.fixture(scope="session")
def chromium() -> str:
    """Skip without a browser, or fail if `SPECDEMO_REQUIRE_BROWSER` is set."""
    from tests.support.browser import installed

    path = installed()
    if path is None:
        message = "no Chromium on this machine (Debian: apt-get install chromium)"
        if os.environ.get("SPECDEMO_REQUIRE_BROWSER"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="session")
def browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[BrowserContext]":
    """Its profile keeps compiled scripts, so the page opens in half the time."""
    from playwright.sync_api import sync_playwright

    from tests.support.browser import FLAGS

    with sync_playwright() as playwright:
        profile = tmp_path_factory.mktemp("profile")
        browser = playwright.chromium.launch_persistent_context(profile, executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.folders import add_models

    folder = tmp_path_factory.mktemp("models")
    add_models(folder)
    return folder


@pytest.fixture(scope="session")
def app(chromium: str, models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[App]":
    """Runs scripted engines, without downloads as on a Space."""
    from tests.support.browser import started

    folder = tmp_path_factory.mktemp("scripted")
    with started(folder, "-m", "tests.support.scripted_app", models_dir, SPACE_ID="somebody/specdemo") as app:
        yield app


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the visible text of a failed test's pages, which often has the reason."""
    report = yield
    if report.failed and report.when == "call" and (pages := item.stash.get(OPENED, [])):
        from tests.support.browser import messages

        report.sections += [(f"Page {page.url}", messages(page)) for page in pages if not page.is_closed()]
    return report


@pytest.fixture
def visit(browser: "BrowserContext", app: "App", request: pytest.FixtureRequest) -> "Iterator[Visit]":
    """Open the page as a new visitor. At the end, no page may have logged an error or asked another host."""
    from tests.support.browser import WAIT, ready, watch

    pages: list[Page] = []
    request.node.stash[OPENED] = pages
    complaints: list[str] = []

    def is_fault(message: "ConsoleMessage") -> bool:  # leaving a page cuts Gradio's connections, which it logs
        return message.type == "error" and not re.search("errored out|AbortError", message.text)

    def foreign(url: str) -> bool:
        return urlsplit(url).scheme in ("http", "https", "ws", "wss") and not url.startswith(app.url)

    def open_page(path: str = "/", width: int = 1440, height: int = 1000) -> "Page":
        page = browser.new_page()
        pages.append(page)
        watch(page)
        page.set_default_timeout(WAIT)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="light")
        page.on("console", lambda message: complaints.append(message.text) if is_fault(message) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: complaints.append(request.url) if foreign(request.url) else None)
        forget = {"origin": app.url, "storageTypes": "cookies,local_storage"}
        browser.new_cdp_session(page).send("Storage.clearDataForOrigin", forget)
        page.goto(app.url + path)
        ready(page)
        page.wait_for_function("document.querySelector('.chart.tokens .plot-container, .race[data-state=idle]')")
        page.dispatch_event("#prompt", "input")  # as typing does, which removes the recorded race
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []
    assert app.other_hosts() == []
