"""Visitors' use of the engine, with neither widgets nor an engine."""

from collections.abc import Iterator
from typing import Any

from specdemo.models.pairs import bundled_pair
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.ui.session import Sessions
from specdemo.worker import WithEngine


class Recorder:
    """A worker that records the requested pairs."""

    def __init__(self) -> None:
        self.pairs: list[ModelPair] = []

    def run(self, job: WithEngine, *arguments: Any) -> Iterator[Any]:
        self.pairs.append(job.pair)
        yield from ()

    def compare(self, pair: ModelPair, *arguments: Any) -> Iterator[Any]:
        self.pairs.append(pair)
        yield from ()


def test_a_pair_is_loaded_as_its_first_run_wants_it() -> None:
    bundled = bundled_pair()
    chat = bundled.model_copy(update={"target": bundled.target.model_copy(update={"chat_template": True})})
    for pair, keeps in ((bundled, False), (chat, True)):
        worker = Recorder()
        sessions = Sessions(worker)  # type: ignore[arg-type]
        assert list(sessions.load("visitor", "genai", pair)) == [""]
        list(sessions.run("visitor", pair, "Say", GenerationSettings()))
        loaded, used = worker.pairs
        assert loaded == used
        assert used.runtime.enable_prefix_caching is keeps


def test_an_empty_prompt_leaves_the_earlier_run_on_the_page() -> None:
    worker = Recorder()
    sessions = Sessions(worker)  # type: ignore[arg-type]
    (update,) = sessions.run("visitor", bundled_pair(), " \n", GenerationSettings())
    assert update.feed is None
    assert "The prompt is empty" in update.message
    assert worker.pairs == []
