import gzip
import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from specdemo.errors import FileError
from specdemo.exports import schema
from specdemo.racing.race import race
from specdemo.records import Comparison, SettingsUpdate, Slice
from specdemo.settings import GenerationSettings
from specdemo.ui.feed import Feed, end_event
from tests.support.proposals import compared
from tests.support.random_records import comparisons
from tests.support.scripted import ScriptedEngine

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
