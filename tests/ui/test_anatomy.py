"""The anatomy of a run, without a browser."""

import json
import re
from time import process_time
from typing import Any

import pytest
from hypothesis import given

from specdemo import metrics
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import FileError
from specdemo.presentation import schema
from specdemo.race import race
from specdemo.records import MOST, Comparison, Outcome, Round, Run, Token
from specdemo.settings import GenerationSettings
from specdemo.summary import walk_through
from specdemo.ui.boards import anatomy
from specdemo.ui.uploads import show_file
from tests.support.proposals import proposals
from tests.support.random_records import comparisons


def compared(**settings: Any) -> Comparison:
    *_, comparison = race(ScriptedEngine(wrong=(4, 7)), "Say", GenerationSettings(**settings))
    assert isinstance(comparison, Comparison)
    return comparison


@given(comparisons)
def test_any_comparison_has_an_anatomy(comparison: Comparison) -> None:
    view = json.loads(anatomy(comparison))
    assert view["steps"].count('<li class="step"') == len(comparison.speculative.rounds)
    assert json.loads(view["timeline"])["data"]
    for text in walk_through(comparison):
        assert text


def test_the_walk_through_is_about_the_users_own_tokens() -> None:
    lines = " ".join(walk_through(compared(num_assistant_tokens=6)))
    assert (
        "Take round 1. First the draft proposed 6 tokens: “ quick”, “ brown”, “ fox”, “ um”, “ over”, “ a”." in lines
    )
    assert (
        "It accepted “ quick”, “ brown”, “ fox”, rejected “ um”, and wrote “ jumps”, the correction token, instead."
        in lines
    )
    assert "The 2 after it were discarded unjudged. So one target pass committed 4 tokens." in lines


def test_passes_of_the_run_and_of_the_oracle() -> None:
    comparison = compared(num_assistant_tokens=3)
    # " quick brown fox" right, 4 wrong, 5 6 right, 7 wrong, 8 the last
    assert comparison.draft_agreement == (True, True, True, False, True, True, False, True)
    assert metrics.draft_passes(comparison) == 3 + 3 + 3
    alternatives = {name: (passes.target, passes.draft) for name, passes in metrics.alternative_passes(comparison)}
    assert alternatives["oracle"] == (3, 6)
    same = compared(num_assistant_tokens=5)
    assert same.speculative.finish_reason == "stop"
    assert alternatives["constant 5"] == (len(same.speculative.rounds), metrics.draft_passes(same))
    lookaheads = metrics.oracle_lookaheads(comparison)
    assert lookaheads is not None
    assert lookaheads[0] == 3


def test_acceptance_by_confidence_leaves_out_what_was_not_judged() -> None:
    run = compared().speculative
    assert metrics.acceptance_by_confidence(run) == {}  # the scripted draft has no probabilities
    sure = [
        step.model_copy(
            update={"proposed": tuple(d.model_copy(update={"draft_probability": 1.0}) for d in proposals(step))}
        )
        for step in run.rounds
    ]
    [(tenth, (accepted, judged))] = metrics.acceptance_by_confidence(run.model_copy(update={"rounds": sure})).items()
    outcomes = [draft.verdict for step in run.rounds for draft in proposals(step)]
    assert tenth == 9
    assert (accepted, judged) == (outcomes.count(Outcome.ACCEPTED), len(outcomes) - outcomes.count(Outcome.DISCARDED))


def test_markup_in_texts_is_escaped() -> None:
    comparison = compared()
    step = comparison.speculative.rounds[0]
    token = step.committed[-1].model_copy(update={"text": "<img src=x onerror=alert(1)>"})
    rounds = (step.model_copy(update={"committed": (*step.committed[:-1], token)}),)
    run = comparison.speculative.model_copy(update={"rounds": rounds})
    view = json.loads(anatomy(comparison.model_copy(update={"speculative": run})))
    assert "<img" not in view["steps"] + view["explanation"]
    assert "&lt;img" in view["steps"]


def test_a_file_is_shown_as_the_run_was() -> None:
    comparison = compared()
    update = show_file(json.dumps(schema.to_json(comparison)).encode())
    assert update.anatomy == anatomy(comparison)
    assert '"kind": "end"' in str(update.feed)


SAVED = schema.to_json(compared())
"""The JSON that Share writes."""


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("plain", "prefill_seconds"), 0),
        (("plain", "rounds", 0, "seconds"), 0),
        (("speculative", "rounds", 0, "seconds"), -1),
        (("speculative", "rounds", 0, "seconds"), 5e-324),
        (("speculative", "rounds", 0, "draft_seconds"), -0.1),
        (("speculative", "rounds", 0, "proposed", 0, "draft_probability"), 1e308),
        (("speculative", "rounds"), [SAVED["plain"]["rounds"][0] | {"committed": []}] * 3000),
        (("speculative", "rounds", 0, "proposed"), SAVED["speculative"]["rounds"][0]["proposed"] * 1000),
        (("pair", "target", "parameters"), 10**400),
        (("draft_agreement"), [False] * 3000),
        (("costs"), {"plain_step": 0, "draft_step": 1, "verify": [1]}),
        (("costs"), {"plain_step": 1, "draft_step": 0, "verify": [1]}),
        (("costs"), {"plain_step": 1, "draft_step": 1, "verify": [0, 1]}),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_record_of_absurd_figures_is_refused(place: tuple[str | int, ...] | str, value: object) -> None:
    changed = json.loads(json.dumps(SAVED))
    *path, last = (place,) if isinstance(place, str) else place
    part = changed
    for step in path:
        part = part[step]
    part[last] = value
    with pytest.raises(FileError, match="not a comparison of schema 2"):
        show_file(json.dumps(changed).encode())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999"])
def test_a_number_that_is_none_is_refused(number: str) -> None:
    text = json.dumps(SAVED | {"plain": SAVED["plain"] | {"prefill_seconds": 123.25}})
    with pytest.raises(FileError, match="not a comparison of schema 2"):
        show_file(text.replace("123.25", number).encode())


def test_nesting_ends_somewhere() -> None:
    for data in (b"[" * 100_000, b'{"schema": 1, "plain": ' + b'{"a":' * 100_000):
        with pytest.raises(FileError, match="not a comparison of schema 2"):
            show_file(data)


def test_the_longest_run_is_shown_without_going_over_it_for_each_of_its_rounds() -> None:
    steps = tuple(Round(committed=(Token(id=1, text="a"),), seconds=0.001) for _ in range(MOST - 1))
    run = Run(prefill=steps[0], rounds=steps, finish_reason="length")
    settings = GenerationSettings(max_new_tokens=MOST)
    longest = compared().model_copy(
        update={"speculative": run, "settings": settings, "draft_agreement": (False,) * (MOST - 1)}
    )
    began = process_time()
    assert metrics.oracle_lookaheads(longest) == [0] * (MOST - 1)
    assert process_time() - began < 0.5, "some ms; two loops, one inside the other, take seconds"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'{"schema": 1}', b'{"schema": 2}', b"null"])
def test_another_file_is_refused(data: bytes) -> None:
    with pytest.raises(FileError, match="not a comparison of schema 2; open one saved with Share"):
        show_file(data)


def test_anatomy_shows_rounds_by_tokens_accepted_and_the_speedup_along_the_text() -> None:
    words = ("<think>", *[" hm"] * 40, "</think>", *[" so"] * 80)
    settings = GenerationSettings(engine="traced", ignore_eos=True, max_new_tokens=129)
    *_, found = race(ScriptedEngine(words=words, wrong=range(42)), "Say", settings)
    assert isinstance(found, Comparison)
    shown = json.loads(anatomy(found))
    (bars,) = json.loads(shown["accepted"])["data"]
    assert sum(bars["y"]) == len(found.speculative.rounds)
    assert bars["y"][0] >= 41  # while it thinks, nothing is accepted
    line, rates = json.loads(shown["position"])["data"]
    assert line["y"][0] < 1 < line["y"][-1]
    assert (rates["name"], rates["y"][0], rates["y"][-1]) == ("α", 0, 1)
    assert re.findall("<td>(thinking|answer)</td>", shown["parts"]) == ["thinking", "answer"]
