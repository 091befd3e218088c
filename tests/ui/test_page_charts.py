"""The race's charts: they are exact, grow during a race, can be explored, and take little memory."""

import re
from contextlib import suppress

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import BRIEF, App, Visit, downloaded, grown, ready, reopen, repeated, run, start
from tests.support.charts import DATA, assert_drawn, drawn

pytestmark = pytest.mark.browser
FULL = "document.querySelector('.chart.tokens .js-plotly-plot')._fullLayout"
MORE = f"most => ({DATA})('tokens')[1][1].length > most"


def drag(page: Page) -> None:
    """Zoom into the middle of the first chart."""
    box = page.locator(".chart.tokens .nsewdrag").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=4)
    page.mouse.up()


def test_charts_grow_keep_a_zoom_and_end_exact_in_light_and_dark(visit: Visit) -> None:
    page = visit("/#engine=traced&max_new_tokens=2000")
    start(page)
    grown(page, 20)
    page.wait_for_function(MORE, arg=5)
    drag(page)
    zoomed = page.evaluate(f"{FULL}.xaxis.range")
    assert 0 < zoomed[0] < zoomed[1]
    before = len(drawn(page, "tokens")[1][1])
    page.click("#stop")
    page.wait_for_selector(".race[data-state=done]")
    comparison = downloaded(page)
    assert len(comparison.speculative.rounds) >= before
    assert_drawn(page, comparison)
    page.click(".which label:has([value=tokens])")  # by mouse, so nothing may cover it
    assert page.evaluate(f"{FULL}.xaxis.range") == zoomed
    assert page.evaluate(f"{FULL}.paper_bgcolor") == "#fff"
    page.evaluate("document.body.classList.add('dark')")
    page.wait_for_function(f"{FULL}.paper_bgcolor === '#171b21'")
    page.hover(".chart.acceptance .nsewdrag")
    expect(page.locator(".chart.acceptance .hoverlayer")).to_contain_text("not accepted")
    titles = page.locator(".chart.acceptance .modebar-btn").evaluate_all("all => all.map(b => b.dataset.title)")
    assert titles == ["Zoom", "Pan", "Reset axes", "Download plot as a PNG"]
    page.locator(".chart.acceptance .numbers").click()
    rows = page.locator(".chart.acceptance .menu tr")
    expect(rows).to_have_count(1 + len(comparison.speculative.rounds))


def memory(page: Page) -> float:
    """Return the bytes of live objects: what the page still draws, and garbage, can only add to a reading."""
    readings = []
    for _ in range(8):
        page.evaluate("new Promise(done => requestIdleCallback(done, { timeout: 2000 }))")
        page.evaluate("gc()")
        readings.append(page.evaluate("performance.memory.usedJSHeapSize"))
    return float(min(readings))


def test_many_runs_take_no_more_memory_than_a_few(visit: Visit) -> None:
    page = visit(BRIEF)
    run(page)
    repeated(page)
    used = []
    for number in range(20):
        reopen(page, page.locator(".past li").first)
        drawn(page, "tokens" if number % 2 else "timing")
        if number in (4, 19):
            used.append(memory(page))
    assert used[1] - used[0] < 1.5e6, used


def test_on_a_touch_screen_charts_scroll_and_a_tap_shows_values(visit: Visit) -> None:
    page = visit(BRIEF)
    device = page.context.new_cdp_session(page)
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    device.send("Emulation.setDeviceMetricsOverride", size)
    device.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    page.reload()
    ready(page)
    run(page)
    repeated(page)
    drawn(page, "tokens")
    x = y = 0.0
    for _ in range(5):  # a tap while Plotly redraws, or while the page moves, names nothing
        page.evaluate("document.querySelector('.chart.tokens').scrollIntoView({ block: 'center' })")
        page.wait_for_function(f"{FULL}.yaxis.range[1] > 48")  # all tokens are drawn once the chart is in view
        box = page.locator(".chart.tokens .nsewdrag").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        device.send("Input.synthesizeTapGesture", {"x": x, "y": y})
        with suppress(AssertionError):
            expect(page.locator(".chart.tokens .hoverlayer")).to_contain_text("speculative", timeout=3000)
            break
    said = re.compile(r"speculative : \d+ tokens at \d+\.\d\d s")
    expect(page.locator(".chart.tokens .hoverlayer")).to_contain_text(said)
    before, ranges = page.evaluate("scrollY"), page.evaluate(f"{FULL}.yaxis.range")
    device.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for moved in range(10, 130, 10):
        device.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": x, "y": y - moved}]})
    device.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_function("before => scrollY > before + 60", arg=before)
    assert page.evaluate(f"{FULL}.yaxis.range") == ranges
    assert page.locator(".chart.tokens .modebar-btn").count() == 0


def test_plotly_is_served_locally_and_loaded_once(app: App) -> None:
    charts = httpx.get(f"{app.url}/specdemo/charts.json").json()
    script = httpx.get(f"{app.url}/{charts['script']}")
    assert (script.headers["content-encoding"], "immutable" in script.headers["cache-control"]) == ("gzip", True)
    assert "plotly.js" in script.text[:200]
