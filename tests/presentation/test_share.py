"""Files to share: the file that replays a run offline, and pictures."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageColor, ImageSequence
from playwright.sync_api import BrowserContext, expect

from specdemo.engines.scripted import ScriptedEngine
from specdemo.files import colours
from specdemo.presentation.share import HEIGHT, WIDTH, moving_picture, replay, verdict_picture
from specdemo.race import race
from specdemo.records import Comparison
from specdemo.settings import GenerationSettings
from specdemo.summary import summarise
from tests.support.browser import WAIT

NASTY = "</script><script>document.title = 'caught'</script><img src=https://example.org/x.png>"


def compare(prompt: str = "Say", **settings: Any) -> Comparison:
    engine = ScriptedEngine(words=300 * (*ScriptedEngine.words, NASTY, "\n"), wrong=range(5, 2000, 7))
    *_, comparison = race(engine, prompt, GenerationSettings(**settings))
    assert isinstance(comparison, Comparison)
    return comparison


@pytest.mark.browser
def test_the_file_replays_the_run_without_a_network(browser: BrowserContext, tmp_path: Path) -> None:
    comparison = compare(f"Tell {NASTY}", max_new_tokens=40)
    file = tmp_path / "run.html"
    file.write_bytes(replay(comparison))
    page, complaints = browser.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url != file.as_uri() else None)
    page.goto(file.as_uri())
    page.wait_for_selector(".race[data-state=playing]")
    page.click(".skip")
    page.wait_for_selector(".race[data-state=done]", timeout=WAIT)
    expect(page.locator(".headline")).to_have_text(summarise(comparison).headline)
    for side in ("plain", "speculative"):
        text = page.locator(f".pane.{side} .text").text_content() or ""
        assert text.startswith(f"Tell {NASTY}")
        assert NASTY in text.removeprefix(f"Tell {NASTY}")
    drawn = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
    assert page.locator("canvas").evaluate_all(f"all => all.map({drawn})") == [True, True]
    page.click(".toggle")
    page.wait_for_selector(".race[data-state=playing]")
    page.close()
    assert complaints == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_charts_stay_within_their_cards(browser: BrowserContext, tmp_path: Path, width: int) -> None:
    file = tmp_path / "run.html"
    file.write_bytes(replay(compare(max_new_tokens=40)))
    page = browser.new_page()
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(file.as_uri())
    page.click(".skip")
    page.wait_for_selector(".race[data-state=done]", timeout=WAIT)
    beyond = """cards => cards.map(card => {
        const around = card.getBoundingClientRect(), inside = card.querySelector('canvas').getBoundingClientRect();
        return Math.max(inside.bottom - around.bottom, inside.right - around.right, around.left - inside.left);
    })"""
    assert [far <= 0 for far in page.locator(".charts .card").evaluate_all(beyond)] == [True, True]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    end = page.locator(".charts").evaluate("charts => charts.getBoundingClientRect().bottom")
    assert end <= page.get_by_role("heading", name="Figures").evaluate("head => head.getBoundingClientRect().top")
    page.close()


def test_the_longest_run_stays_below_a_megabyte() -> None:
    assert len(replay(compare(ignore_eos=True, max_new_tokens=2048))) < 2**20


def test_pictures() -> None:
    comparison = compare(max_new_tokens=40)
    still = Image.open(BytesIO(verdict_picture(comparison)))
    assert (still.format, still.size) == ("PNG", (WIDTH, HEIGHT))
    moving = Image.open(BytesIO(moving_picture(comparison)))
    assert (moving.format, moving.size, moving.info["loop"]) == ("GIF", (WIDTH, HEIGHT), 0)
    frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(moving)]
    assert len(set(map(Image.Image.tobytes, frames))) > 10
    assert moving.info["duration"] > 1000  # of the last one, with the outcome


def test_at_the_end_of_pictures_bars_are_as_long_as_the_seconds_they_name() -> None:
    comparison = compare(max_new_tokens=120)
    seconds = [*summarise(comparison).seconds.values()]
    image = Image.open(BytesIO(verdict_picture(comparison))).convert("RGB")
    lengths = [
        sum(image.getpixel((x, y)) == ImageColor.getrgb(colours()[name]) for x in range(WIDTH // 2 + 200))
        for y, name in ((85, "plain"), (103, "accepted"))
    ]
    assert lengths[1] / lengths[0] == pytest.approx(seconds[1] / seconds[0], abs=0.02)
    assert seconds[1] < 0.9 * seconds[0]


def test_a_run_of_one_token_has_pictures_too() -> None:
    *_, comparison = race(ScriptedEngine(words=(" the",)), "Say", GenerationSettings())
    assert isinstance(comparison, Comparison)
    assert comparison.plain.rounds == ()
    assert moving_picture(comparison)
