"""Visitors' use of the engine, with neither widgets nor an engine."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import gradio as gr

from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import LoadError
from specdemo.models.pairs import bundled_pair
from specdemo.records import ModelPair, Turn
from specdemo.settings import GenerationSettings
from specdemo.ui.compare import CompareCallbacks
from specdemo.ui.controls import start_values
from specdemo.ui.models import ModelsCallbacks
from specdemo.ui.registry import PAIR_NAMES, values_of
from specdemo.ui.session import Sessions, Update, initial_pair
from specdemo.worker import IfLoaded, Prepare, WithEngine


class Recorder:
    """A worker that records the requested pairs."""

    def __init__(self) -> None:
        self.pairs: list[ModelPair] = []
        self.idle: list[IfLoaded | Prepare] = []

    def run(self, job: WithEngine, *arguments: Any) -> Iterator[Any]:
        self.pairs.append(job.pair)
        yield from ()

    def run_idle(self, job: IfLoaded | Prepare) -> Iterator[Any]:
        self.idle.append(job)
        yield from self.failing()

    def failing(self) -> Iterator[Any]:
        raise LoadError("OpenVINO cannot load it; export it again.")

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


def test_an_engine_gets_ready_for_whoever_reads_and_its_failures_wait_for_the_run() -> None:
    worker, settings = Recorder(), GenerationSettings(num_assistant_tokens=3)
    sessions = Sessions(worker)  # type: ignore[arg-type]
    for load in (True, False):
        sessions.prepare(bundled_pair(), settings, load=load)
    job = Prepare("genai", bundled_pair(), settings)
    assert worker.idle == [job, IfLoaded(job)]


def test_pairs_that_genai_speculates_for_without_prefix_caching_are_loaded_without_it() -> None:
    pair = ScriptedEngine().pair
    chat = pair.model_copy(update={"target": pair.target.model_copy(update={"chat_template": True})})
    linear = chat.model_copy(update={"target": chat.target.model_copy(update={"linear_attention": True})})
    assert chat.draft is not None
    heads = [
        chat.model_copy(update={"draft": chat.draft.model_copy(update={"head": head})}) for head in ("dflash", "mtp")
    ]
    kept = [initial_pair(each).runtime.enable_prefix_caching for each in (chat, linear, *heads)]
    assert kept == [True, False, False, False]


def test_a_message_without_an_answer_leaves_the_chat_as_it_was() -> None:
    before, last, new = (Turn(prompt=each, answer="Yes.") for each in "abc")
    sessions = mock.Mock()
    sessions.run.return_value = [Update(None, "Refused."), Update(None, "Stopped.")]
    pair = bundled_pair()
    chat = pair.model_copy(update={"target": pair.target.model_copy(update={"chat_template": True})})
    values = start_values(chat).values()

    def outputs(*, goes_on: bool = True) -> list[Any]:
        said = CompareCallbacks(sessions).run(mock.Mock(), True, chat, (before, last), goes_on, "c", *values)
        return [[value for value in news[2:4] if value != gr.skip()] for news in said]

    assert outputs() == [[], []]
    sessions.run.return_value = [Update(None, ""), Update("shown", "", turn=new)]
    nothing, (turns, _) = outputs()
    assert (nothing, turns) == ([], (before, last, new))
    _, (turns, _) = outputs(goes_on=False)
    assert turns == (new,), "each run starts afresh unless the chat is continued"


def test_a_pair_is_loaded_in_an_engine_that_can_run_it() -> None:
    """The page of a served pair has no other engine chosen, and its control is hidden."""
    pair, loaded = bundled_pair(), list[str]()

    def load(visitor: str, engine: str, pair: ModelPair) -> Iterator[str]:
        loaded.append(engine)
        yield "Stopped."

    sessions, registry = mock.Mock(load=load), mock.Mock(choose=lambda *_: pair)
    shown = mock.MagicMock()
    for engine in ("server", "traced"):
        values = values_of(pair)
        list(
            ModelsCallbacks(sessions, registry, shown).use(
                mock.Mock(), pair, "", engine, *map(values.get, PAIR_NAMES)
            )
        )
    assert loaded == ["genai", "traced"]
