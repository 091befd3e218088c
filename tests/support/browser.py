"""The app in a separate process, and what visitors do in headless Chromium."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol
from urllib.request import urlopen
from weakref import WeakKeyDictionary

import psutil
from playwright.sync_api import Locator, Page, Request, expect

from specdemo.exports import schema
from specdemo.models.catalogue import catalogue
from specdemo.records import Comparison

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
# Plotly catches errors as it loads; V8 would parse its 4.7 MB again for their positions, a third of a second per page
FLAGS += ["--js-flags=--expose-gc --no-enable-lazy-source-positions", "--enable-precise-memory-info"]
WAIT = 60_000
TABS = ("Compare", "Anatomy", "Measure", "Models")
BRIEF = "/?max_new_tokens=48"  # such runs are exact but for their last tokens (see `scripted_app`)
# in this order: the shell opens pages in three quarters of the processor time
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_UNDER_WAY: WeakKeyDictionary[Page, set[Request]] = WeakKeyDictionary()
expect.set_options(timeout=WAIT)


@dataclass(frozen=True)
class App:
    url: str
    process: subprocess.Popen[bytes]
    outbound: Path

    def engine(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if any("spawn_main" in part for part in child.cmdline()))

    def other_hosts(self) -> list[str]:
        """Return hosts other than this machine that its processes tried to reach."""
        return self.outbound.read_text().splitlines() if self.outbound.exists() else []


class Visit(Protocol):
    def __call__(self, path: str = "/", width: int = 1440, height: int = 1000) -> Page: ...


@contextmanager
def started(folder: Path, *arguments: str | Path, log: Path | None = None, **environment: str) -> Iterator[App]:
    shutil.copyfile(ROOT / "tests" / "support" / "outbound.py", folder / "sitecustomize.py")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1] % 30_000 + 20_000  # below 60,000, and rarely taken
    outbound = folder / "outbound"
    variables = {
        "GRADIO_SERVER_PORT": str(port),
        "HF_HOME": str(folder),
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "0",
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "SPECDEMO_OUTBOUND_LOG": str(outbound),
    }
    said = None if log is None else log.open("wb")
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=os.environ | variables | environment, stdout=said, stderr=said
    )
    app = App(f"http://127.0.0.1:{port}", process, outbound)
    deadline = monotonic() + 90
    try:
        while not _answers(app):
            assert process.poll() is None, "the app ended while starting"
            assert monotonic() < deadline, "the app did not start"
            sleep(0.2)
        yield app
    finally:
        process.terminate()
        process.wait(20)
        if said is not None:
            said.close()


def _answers(app: App) -> bool:
    try:
        urlopen(app.url, timeout=5).close()
    except OSError:
        return False
    return True


def installed() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).filter(visible=True).first.click()


def run(page: Page) -> None:
    start(page)
    finish(page)


def start(page: Page) -> None:
    await_playback(page)
    page.click("#run")


def await_playback(page: Page) -> None:
    """Forget that an earlier playback is over, for `finish`."""
    page.evaluate("document.querySelector('.race').dataset.state = 'before'")


def ready(page: Page) -> None:
    """Wait until a page that was opened or reloaded can run. Playwright checks functions in every frame, where
    `expect` may look once a second.
    """
    page.wait_for_function("document.querySelector('#run:enabled')")


def finish(page: Page) -> None:
    """Skip the playback."""
    begun = "document.querySelector('.race:is([data-state=playing], [data-state=done])')"
    page.wait_for_function(f"{begun} && document.querySelector('#run').textContent.trim() === 'Run'")
    skip(page)


def reopen(page: Page, run: Locator) -> None:
    await_playback(page)
    run.locator(".open").click()
    finish(page)


def grown(page: Page, tokens: int) -> None:
    page.wait_for_function(f"document.querySelectorAll('.pane.plain .text [data-index]').length > {tokens}")


def watch(page: Page) -> None:
    """Track a page's open requests."""
    requests = _UNDER_WAY[page] = set()
    page.on("request", lambda request: requests.add(request))
    page.on("requestfinished", lambda request: requests.discard(request))
    page.on("requestfailed", lambda request: requests.discard(request))


def rests(page: Page, seconds: float = WAIT / 1000) -> None:
    """Wait until a watched page has no open request and has drawn everything, for at most these seconds."""
    until = monotonic() + seconds
    while _UNDER_WAY[page]:
        assert monotonic() < until, f"still under way: {_UNDER_WAY[page]}"
        page.wait_for_timeout(20)
    page.evaluate("() => new Promise(done => requestIdleCallback(() => done()))")


def messages(page: Page) -> str:
    """Return the visible text of a page without its figures, a line per element."""
    said = page.locator("#header, .message, #report, [role=alert], [role=status]").filter(visible=True)
    return "\n".join(" ".join(text.split()) for text in said.all_inner_texts())


def repeated(page: Page) -> None:
    """Wait until a finished run has been repeated and the page is idle."""
    page.wait_for_function(r"/\d repeat/.test(document.querySelector('.screen .range').textContent)")
    rests(page)


def skip(page: Page) -> None:
    page.evaluate("document.querySelector('.skip').click()")
    page.wait_for_function("document.querySelector('.race[data-state=done]')")


def share(page: Page, kind: str) -> None:
    page.click(".race .share")
    page.click(f"#share-menu [data-file={kind}]")


def downloaded(page: Page) -> Comparison:
    with page.expect_download() as download:
        share(page, "json")
    return schema.from_json(json.loads(Path(download.value.path()).read_text()))


def set_slider(page: Page, name: str, value: int) -> None:
    page.fill(f"#{name} input[type=number]", str(value))
    page.keyboard.press("Tab")


def models_tab(page: Page) -> Page:
    open_tab(page, "Models")
    expect(page.locator(".catalogue .entries:not(.own) .entry")).to_have_count(len(catalogue()))
    return page


def card(page: Page, name: str) -> Locator:
    return page.locator(f".catalogue [data-name='{name}']")


def choose(page: Page, **names: str) -> None:
    """Wait first until the lists follow the earlier choice."""
    for control, name in names.items():
        rests(page)
        page.click(f"#{control} input")
        any_mark = re.sub(r"\W", ".", name) + "( · recommended)?"  # Playwright does not escape slashes
        page.get_by_role("option", name=re.compile(f"^{any_mark}$")).click()
        expect(page.get_by_role("listbox")).to_have_count(0)


def finalized(page: Page) -> None:
    """Wait until layout and charts have followed the window."""
    page.wait_for_function("""() => [...document.querySelectorAll('.screen .chart')].every(chart => !chart.offsetWidth
        || Math.abs((chart.querySelector('.main-svg')?.clientWidth ?? 0) - chart.clientWidth) < 2)""")


def is_no_wider_than(page: Page, width: int) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth") == width)


def stop_before_speculative(page: Page) -> None:
    """Stop a run while its plain side is alone, and check that it has a result."""
    page.click("#stop")
    page.wait_for_selector(".race[data-state=done]")
    expect(page.locator(".reason")).to_contain_text("Stopped after")
    expect(page.locator(".reason")).to_contain_text("Stopped before the speculative side began.")
    expect(page.locator("#run")).to_have_text("Run")
    expect(page.locator("#run")).to_be_enabled()
    expect(page.locator("#stop")).to_be_hidden()
    comparison = downloaded(page)
    assert (comparison.plain.finish_reason, comparison.speculative.tokens) == ("cancelled", ())
    shown = page.locator(".pane.plain .text [data-index]").all_text_contents()
    assert "".join(shown) == comparison.plain.text != ""
    expect(page.locator(".past li").first).to_be_visible()
