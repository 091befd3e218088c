"""Saved and shared records: as JSON, which is read back, as text, HTML and GIF."""

import gzip
import json
import re
import shlex
from base64 import b64encode
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from PIL import Image, ImageSequence
from playwright.sync_api import BrowserContext, expect

from specdemo.cli.commands import build_parser
from specdemo.cli.options import given_settings
from specdemo.errors import FileError
from specdemo.exports import schema
from specdemo.exports.gif import SIZE, animation
from specdemo.exports.html import markdown, replay
from specdemo.models.catalogue import pair_settings
from specdemo.racing.race import race
from specdemo.records import SIDES, Comparison, Run, SettingsUpdate, Slice, Turn
from specdemo.results.summary import summarise
from specdemo.settings import GenerationSettings
from specdemo.ui.feed import Feed, end_event
from tests.support.charts import assert_drawn
from tests.support.proposals import compared
from tests.support.random_records import comparisons
from tests.support.scripted import ScriptedEngine

NASTY = "</script><script>document.title = 'caught'</script><img src=https://example.org/x.png>"
COPY = "window.copied = []; navigator.clipboard.writeText = async text => { copied.push(text); }"


def compare(prompt: str = "Say", **settings: Any) -> Comparison:
    engine = ScriptedEngine(words=300 * (*ScriptedEngine.words, NASTY, "\n"), wrong=range(5, 2000, 7))
    return compared(engine, prompt, **settings)


def chat(comparison: Comparison) -> Comparison:
    target = comparison.pair.target.model_copy(update={"chat_template": True})
    history = (Turn(prompt="Before", answer="```\ncode\n```"),)
    return comparison.model_copy(
        update={"pair": comparison.pair.model_copy(update={"target": target}), "history": history}
    )


def failed(comparison: Comparison) -> Comparison:
    failures = {"speculative": "The server hung up; start it again."}
    return comparison.model_copy(update={"speculative": Run.without("failed"), "failures": failures})


@pytest.mark.parametrize("kind", [Comparison.model_copy, chat, failed])
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


ROOT = Path(__file__).parents[2]


@given(comparisons)
def test_written_objects_are_read_back_unchanged(comparison: Comparison) -> None:
    assert schema.from_json(json.loads(json.dumps(schema.to_json(comparison)))) == comparison


@given(comparisons)
def test_objects_of_schema_2_are_read(comparison: Comparison) -> None:
    update = SettingsUpdate(round=3, values={"assistant_confidence_threshold": 0.5})
    comparison = comparison.model_copy(update={"settings_updates": (update,)})
    written = json.loads(json.dumps(schema.to_json(comparison)).replace('"outcome":', '"verdict":')) | {"schema": 2}
    del written["settings_updates"]
    written["moves"] = [{"round": 3, "num_assistant_tokens": None, "assistant_confidence_threshold": 0.5}]
    assert schema.from_json(written) == comparison


@pytest.mark.parametrize(
    "outcomes", [("rejected", "accepted"), ("accepted",) * 5, ("discarded", "rejected"), ("accepted", "rejected") * 2]
)
def test_proposals_that_contradict_what_was_committed_are_refused(outcomes: tuple[str, ...]) -> None:
    written = schema.to_json(compared())
    step = written["speculative"]["rounds"][0]
    step["proposed"] = [{"id": None, "text": "", "outcome": outcome} for outcome in outcomes]
    step["committed"] = step["committed"][:2]
    with pytest.raises(ValueError, match="proposals contradict what it committed"):
        schema.from_json(written)


def test_every_key_is_documented() -> None:
    written = schema.to_json(compared())
    side = written["speculative"]
    step = side["rounds"][0]
    section = (ROOT / "docs" / "measuring.md").read_text().partition("## Files")[2].partition("\n## ")[0]
    for part in (written, side, step, step["proposed"][0], step["committed"][0]):
        assert set(part) <= set(re.findall(r"\w+", section))
    assert {"headline", "speedup", "speedup_interval", "acceptance_rate", "identical"} <= set(written["summary"])
    tokens = [*side["prefill"]["committed"], *(token for each in side["rounds"] for token in each["committed"])]
    assert side["token_ids"] == [token["id"] for token in tokens]
    assert side["text"] == "".join(token["text"] for token in tokens)


def test_a_round_looks_the_same_in_a_message_and_in_the_file() -> None:
    feed, sent = Feed(ScriptedEngine().pair, "<Say>", GenerationSettings()), list[dict[str, Any]]()
    for item in race(ScriptedEngine(wrong=(4,)), "<Say>", GenerationSettings()):
        if isinstance(item, Slice):
            feed.add(item)
        if isinstance(item, Comparison):
            lines = feed.next_update() + end_event(item, feed.run, len(feed))
    assert "<" not in lines  # user text must not look like markup
    start, *events = (json.loads(line) for line in lines.splitlines())
    assert (start["kind"], start["record"]["prompt"], events[-1]["kind"]) == ("start", "<Say>", "end")
    assert [event["at"] for event in events] == list(range(1, len(events) + 1))
    sent = [step for event in events if event.get("side") == "speculative" for step in event["rounds"]]
    side = events[-1]["record"]["speculative"]
    assert sent == [side["prefill"], *side["rounds"]]


SAVED = schema.to_json(compared())  # as Share writes it


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("plain", "prefill", "seconds"), 0),
        (("speculative", "rounds", 0, "committed"), []),
        (("speculative", "rounds"), [SAVED["plain"]["rounds"][0] | {"committed": []}] * 3000),
        (("pair", "target", "parameters"), 10**400),
        (("history"), [{"prompt": "a", "answer": "b" * 200}] * 20_000),
        ("schema", 4),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_record_with_absurd_figures_is_refused(place: tuple[str | int, ...] | str, value: object) -> None:
    changed = json.loads(json.dumps(SAVED))
    *path, last = (place,) if isinstance(place, str) else place
    part = changed
    for step in path:
        part = part[step]
    part[last] = value
    with pytest.raises(FileError, match="not a comparison of schema 3"):
        schema.from_text(json.dumps(changed).encode(), "open one saved with Share")


INFINITE = [json.dumps(SAVED | {"other_load": 0.123}).replace("0.123", number) for number in ("NaN", "1e999")]
OTHERS = ["", "{}", "[1]", b"\xff", '{"schema": 2}', "[" * 100_000, *INFINITE]


@pytest.mark.parametrize("data", OTHERS, ids=range(len(OTHERS)))
def test_other_files_are_refused(data: str | bytes) -> None:
    with pytest.raises(FileError, match="not a comparison of schema 3; open one saved with Share"):
        schema.from_text(data, "open one saved with Share")


def test_shared_records_are_unpacked_within_a_limit() -> None:
    packed = b64encode(gzip.compress(json.dumps(SAVED).encode())).decode()
    assert schema.unpack(packed, 2**20) == compared()
    for damaged, most, said in ((packed[:50], 2**20, "arrived damaged"), (packed, 100, "more than 100 bytes")):
        with pytest.raises(FileError, match=said):
            schema.unpack(damaged, most)
