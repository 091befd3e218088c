import re
import shlex
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageSequence
from playwright.sync_api import BrowserContext, expect

from specdemo.cli.commands import build_parser
from specdemo.cli.options import given_settings
from specdemo.exports.gif import SIZE, animation
from specdemo.exports.html import markdown, replay
from specdemo.models.catalogue import pair_settings
from specdemo.records import SIDES, Comparison, Run, Turn
from specdemo.results.summary import summarise
from specdemo.settings import GenerationSettings
from tests.support.charts import assert_drawn
from tests.support.proposals import compared
from tests.support.scripted import ScriptedEngine

NASTY = "</script><script>document.title = 'caught'</script><img src=https://example.org/x.png>"
COPY = "window.copied = []; navigator.clipboard.writeText = async text => { copied.push(text); }"


def compare(prompt: str = "Say", **settings: Any) -> Comparison:
    engine = ScriptedEngine(words=300 * (*ScriptedEngine.words, NASTY, "\n"), wrong=range(5, 2000, 7))
    return compared(engine, prompt, **settings)


def raced(comparison: Comparison) -> Comparison:
    return comparison


def chat(comparison: Comparison) -> Comparison:
    target = comparison.pair.target.model_copy(update={"chat_template": True})
    history = (Turn(prompt="Before", answer="```\ncode\n```"),)
    return comparison.model_copy(
        update={"pair": comparison.pair.model_copy(update={"target": target}), "history": history}
    )


def failed(comparison: Comparison) -> Comparison:
    failures = {"speculative": "The server hung up; start it again."}
    return comparison.model_copy(update={"speculative": Run.without("failed"), "failures": failures})


@pytest.mark.parametrize("kind", [raced, chat, failed])
def test_a_result_as_text_has_ten_lines_and_a_command_with_the_same_settings(
    kind: Callable[[Comparison], Comparison],
) -> None:
    comparison = kind(compare("Don't\n`stop`", max_new_tokens=40, do_sample=True))
    text, _, command = markdown(comparison).decode().partition("\n\n~~~~sh\n")
    lines = text.split("\n")
    assert len(lines) < 10
    assert all(line.startswith("- ") for line in lines)
    assert lines[0].startswith(f"- **{summarise(comparison).headline}**")
    program, *arguments = shlex.split(command.removesuffix("\n~~~~\n"))
    options = build_parser().parse_args(arguments)
    assert program == "specdemo"
    assert options.prompt == comparison.prompt
    given = given_settings(options, GenerationSettings)
    assert pair_settings(comparison.pair, **given) == comparison.settings


@pytest.mark.browser
@pytest.mark.parametrize("kind", [chat, failed])
def test_a_replay_plays_every_kind_of_run_offline_and_fits_on_a_phone(
    kind: Callable[[Comparison], Comparison], browser: BrowserContext, tmp_path: Path
) -> None:
    comparison = kind(compare(f"Tell {NASTY}", max_new_tokens=40))
    file = tmp_path / "run.html"
    file.write_bytes(replay(comparison))
    page, complaints = browser.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.route(re.compile("^(?!file:|data:|blob:)"), lambda route: complaints.append(route.request.url))
    page.add_init_script(COPY)
    page.goto(file.as_uri())
    page.wait_for_selector(".race:is([data-state=playing], [data-state=done])")
    for button in page.locator("button").all():  # none may fail
        button.evaluate("button => button.click()")
    page.evaluate("document.querySelector('.skip').click()")
    page.wait_for_selector(".race[data-state=done]")
    expect(page.locator(".headline")).to_have_text(summarise(comparison).headline)
    for side in SIDES:
        if comparison.side(side).tokens:
            text = page.locator(f".pane.{side} .text").text_content() or ""
            assert f"Tell {NASTY}" in text
            assert NASTY in text.partition(f"Tell {NASTY}")[2]
    assert_drawn(page, comparison)
    for button in page.locator(".copy").all():
        button.evaluate("button => button.click()")
    assert comparison.plain.text.strip() in page.evaluate("copied")
    assert page.title() != "caught"
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    end = page.locator(".charts").evaluate("charts => charts.getBoundingClientRect().bottom")
    assert end <= page.get_by_role("heading", name="Figures").evaluate("head => head.getBoundingClientRect().top")
    page.close()
    assert complaints == []


def test_the_longest_run_stays_below_two_and_a_half_megabytes() -> None:
    assert len(replay(compare(ignore_eos=True, max_new_tokens=2048))) < 2_500_000


def test_an_animation_ends_with_the_conclusion() -> None:
    moving = Image.open(BytesIO(animation(compare(max_new_tokens=40))))
    assert (moving.format, moving.size, moving.info["loop"]) == ("GIF", SIZE, 0)
    frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(moving)]
    assert len(set(map(Image.Image.tobytes, frames))) > 10
    assert moving.info["duration"] > 1000  # of the last one, with the outcome
