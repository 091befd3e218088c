"""The conclusions of the search for the current prompt's best setting, without a page."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from specdemo.engines.scripted import ScriptedEngine
from specdemo.estimate import Interval
from specdemo.experiments.sweep import candidates
from specdemo.experiments.sweep_result import Candidate, Point, Sweep, recommend
from specdemo.settings import GenerationSettings
from specdemo.ui.controls import start_values
from specdemo.ui.session import with_chat_cache
from specdemo.ui.tabs.compare import QUICK
from specdemo.ui.tabs.find import Finder, outcome, with_current
from specdemo.worker import Job, WithEngine

NOW = GenerationSettings(num_assistant_tokens=2)


def point(lookahead: int, middle: float, spread: float | None = None) -> Point:
    settings = GenerationSettings(num_assistant_tokens=lookahead)
    ends = {} if spread is None else {"low": middle - spread, "high": middle + spread}
    return Point(
        candidate=Candidate(kind="lookahead", name=f"lookahead {lookahead}", value=lookahead, settings=settings),
        speedup=Interval(middle=middle, **ends),
        speedups=(middle,) * 2,
        identical=True,
        mean_accepted_length=3,
        acceptance_rate=None,
        token_acceptance=None,
        draft_share=None,
        verify_share=None,
        other_share=None,
    )


def swept(*points: Point, fresh: Point | None) -> Sweep:
    engine = ScriptedEngine()
    return Sweep(
        pair=engine.pair,
        prompts=("Say",),
        settings=NOW,
        environment=engine.environment,
        costs=None,
        points=points,
        fresh=fresh,
        recommendation=recommend(points, fresh),
    )


@pytest.mark.parametrize(
    ("found", "lookahead", "words"),
    [
        (
            swept(point(2, 1.5), point(6, 1.8), fresh=point(6, 1.8, 0.1)),
            6,
            "Set: lookahead 6 reached 1.80× (95 % interval 1.70–1.90) in 2 fresh runs. Before, lookahead 2 reached "
            "1.50× in 2 runs, so decoding is now about 20 % faster.",
        ),
        (
            swept(point(2, 1.75), point(6, 1.8), fresh=point(6, 1.8, 0.1)),
            None,
            "Your setting is as good as any tried: lookahead 6 reached 1.80×",
        ),
        (swept(point(2, 1.5), fresh=point(2, 1.5, 0.1)), None, "Your setting is as good as any tried: lookahead 2"),
        (
            swept(point(2, 0.8), point(6, 0.9), fresh=point(6, 0.9, 0.1)),
            None,
            "No setting beats plain decoding here: the best, lookahead 6, reached 0.90×",
        ),
    ],
)
def test_what_is_set_and_said(found: Sweep, lookahead: int | None, words: str) -> None:
    candidate, sentence = outcome(found, NOW)
    assert (candidate and candidate.value) == lookahead
    assert sentence.startswith(words)
    assert lookahead is not None or sentence.endswith("Nothing was changed.")


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"num_assistant_tokens": 3}, None), ({"num_assistant_tokens": 7}, "lookahead 7")],
)
def test_the_present_setting_is_among_those_tried(changes: dict[str, Any], name: str | None) -> None:
    settings = GenerationSettings(**changes)
    before = candidates(ScriptedEngine().pair, settings, (2, 3), ())
    added = [candidate.name for candidate in with_current(before, settings) if candidate not in before]
    assert added == ([] if name is None else [name])


class Asked:
    """Stands for the sessions, and remembers what was to be measured."""

    jobs: list[WithEngine]

    def measure(self, visitor: str, what: str, job: Job) -> Iterator[Any]:
        assert isinstance(job, WithEngine)
        self.jobs = [job]
        yield from ()


def test_it_searches_with_the_pair_that_a_run_has_loaded() -> None:
    pair, asked = ScriptedEngine().pair, Asked()
    chat = pair.model_copy(update={"target": pair.target.model_copy(update={"chat_template": True})})
    values = start_values(chat).values()
    request: Any = SimpleNamespace(session_hash="visitor")
    list(Finder(asked).find(request, True, chat, "Say", QUICK, *values))  # type: ignore[arg-type]
    assert asked.jobs[0].pair == with_chat_cache(chat, GenerationSettings())
    assert asked.jobs[0].pair.runtime.enable_prefix_caching
