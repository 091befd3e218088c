"""What the automatic lookahead learnt is kept per pair and strategy, in memory and in the cache folder."""

from copy import copy
from pathlib import Path

import pytest

from specdemo.decoding.auto import Experience
from specdemo.engines.scripted import ScriptedEngine
from specdemo.engines.traced import TracedEngine
from specdemo.engines.traced.engine import Experiences
from specdemo.records import Costs, Request
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import Auto, BothAuto
from tests.conftest import PROMPTS

PAIR = ScriptedEngine().pair
AUTO, BOTH = Auto(8), BothAuto(3, 8)


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specdemo.engines.traced.engine.own_cache", lambda: tmp_path)


def learnt(outcomes: int) -> Experience:
    experience = Experience()
    for _ in range(outcomes):
        experience.outcomes([2.0], 1, 1)
    return experience


def test_a_request_begins_with_what_the_one_before_taught() -> None:
    kept = Experiences(PAIR)
    assert kept.of(AUTO) is None
    experience = learnt(0)
    kept.keep(AUTO, experience)
    experience.outcomes([2.0], 1, 1)  # while the request goes on
    taught = kept.of(AUTO)
    assert taught is not None
    assert taught.trusted == experience.trusted
    assert kept.of(BOTH) is None


def test_it_outlives_the_process_but_not_a_change_of_pair_or_settings() -> None:
    first = Experiences(PAIR)
    first.keep(AUTO, learnt(5))
    first.write()
    again = Experiences(PAIR).of(AUTO)
    assert again is not None
    assert again.trusted == learnt(5).trusted
    assert Experiences(PAIR.model_copy(update={"draft": None})).of(AUTO) is None
    assert Experiences(PAIR.model_copy(update={"runtime": RuntimeSettings(precision="f32")})).of(AUTO) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"first": 3}', b"\xff"])
def test_a_damaged_file_is_no_experience(tmp_path: Path, content: bytes) -> None:
    kept = Experiences(PAIR)
    kept.keep(AUTO, learnt(1))
    kept.write()
    (file,) = (tmp_path / "experience").iterdir()
    file.write_bytes(content)
    assert Experiences(PAIR).of(AUTO) is None


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("specdemo.engines.traced.engine.own_cache", lambda: tmp_path / "file")
    kept = Experiences(PAIR)
    kept.keep(AUTO, learnt(1))
    kept.write()
    assert kept.of(AUTO) is not None


def test_a_race_teaches_the_next_one_although_its_warm_up_is_created_after_it(traced: TracedEngine) -> None:
    request = Request.of(PROMPTS[0], GenerationSettings(engine="traced", policy="auto", max_new_tokens=48))
    costs = Costs(plain_step=0.01, draft_step=0.001, verify=(0.01,) * 17)
    engine = copy(traced)
    engine._experience = Experiences(traced.pair)
    race, warm_up = (engine.decoder(request, costs) for _ in range(2))
    kept = []
    for decoder in (warm_up, race):
        assert list(decoder.rounds())
        kept.append(engine._experience._latest["auto"])
    assert kept[0] is not kept[1]
