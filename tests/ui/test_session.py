import gzip
import json
from base64 import b64encode
from collections.abc import Iterator
from threading import Event
from typing import Any
from unittest import mock

import gradio as gr
import pytest

from specdemo.child import Limits, result_of
from specdemo.errors import EngineError, FileError, LoadError
from specdemo.exports.html import make_file
from specdemo.exports.schema import to_json
from specdemo.models.catalogue import bundled_pair
from specdemo.racing.race import race
from specdemo.racing.worker import Preload
from specdemo.records import Slice, Turn
from specdemo.settings import GenerationSettings
from specdemo.ui import events
from specdemo.ui.compare import CompareCallbacks
from specdemo.ui.controls import start_values
from specdemo.ui.session import FinishedRun, Sessions, Update, Visitors
from tests.support.proposals import compared
from tests.support.scripted import ScriptedEngine


def failing(error: Exception) -> Iterator[Any]:
    yield next(one for one in race(ScriptedEngine(), "Say", GenerationSettings()) if isinstance(one, Slice))
    raise error


def test_a_pair_is_loaded_with_the_settings_of_its_first_run() -> None:
    bundled = bundled_pair()
    chat = bundled.model_copy(update={"target": bundled.target.model_copy(update={"chat_template": True})})
    for pair, keeps in ((bundled, False), (chat, True)):
        worker = mock.Mock(run=mock.Mock(return_value=iter(())), compare=mock.Mock(return_value=iter(())))
        sessions = Sessions(worker)
        assert list(sessions.load("visitor", "genai", pair)) == [""]
        list(sessions.run("visitor", pair, "Say", GenerationSettings()))
        loaded, used = worker.run.call_args.args[0].pair, worker.compare.call_args.args[0]
        assert loaded == used
        assert used.runtime.enable_prefix_caching is keeps


def test_an_empty_prompt_removes_the_earlier_run() -> None:
    worker = mock.Mock()
    (update,) = Sessions(worker).run("visitor", bundled_pair(), " ", GenerationSettings())
    assert [json.loads(line)["kind"] for line in str(update.feed).splitlines()] == ["start", "error"]
    assert "The prompt is empty" in update.message
    worker.compare.assert_not_called()


def test_an_engine_is_loaded_in_advance_and_failures_are_left_to_the_run() -> None:
    worker, settings = mock.Mock(), GenerationSettings(num_assistant_tokens=3)
    worker.run_idle.side_effect = lambda job: failing(LoadError("OpenVINO cannot load it; export it again."))
    sessions = Sessions(worker)
    for load in (True, False):
        sessions.preload(bundled_pair(), settings, load=load)
    job = Preload("genai", bundled_pair(), settings)
    first, second = (call.args[0] for call in worker.run_idle.call_args_list)
    assert first == second.keywords["job"] == job


@pytest.mark.parametrize("error", [EngineError("It broke; run again."), ZeroDivisionError("by hand")])
def test_the_feed_of_a_run_ends_whatever_fails(error: Exception) -> None:
    sessions = Sessions(mock.Mock(compare=lambda *_: failing(error)))
    first, last = sessions.run("visitor", bundled_pair(), "Say", GenerationSettings())
    events = [json.loads(line)["kind"] for line in str(last.feed).splitlines()]
    assert (json.loads(str(first.feed).splitlines()[-1])["kind"], events[-1]) == ("slice", "error")
    assert 'role="alert"' in last.message
    assert isinstance(error, EngineError) or "ZeroDivisionError: by hand" in last.message


def test_a_message_without_an_answer_leaves_the_chat_unchanged() -> None:
    before, last, new = (Turn(prompt=each, answer="Yes.") for each in "abc")
    sessions = mock.Mock()
    sessions.run.return_value = [Update(None, "Refused."), Update(None, "Stopped.")]
    pair = bundled_pair()
    chat = pair.model_copy(update={"target": pair.target.model_copy(update={"chat_template": True})})
    values = start_values(chat)

    def outputs(*, continue_chat: bool = True) -> list[Any]:
        said = CompareCallbacks(sessions).run(mock.Mock(), True, chat, (before, last), continue_chat, "c", **values)
        return [[value for value in news[2:4] if value != gr.skip()] for news in said]

    assert outputs() == [[], []]
    sessions.run.return_value = [Update(None, ""), Update("shown", "", turn=new)]
    nothing, (turns, _) = outputs()
    assert (nothing, turns) == ([], (before, last, new))
    _, (turns, _) = outputs(continue_chat=False)
    assert turns == (new,), "each run starts afresh unless the chat is continued"


def test_a_stop_ends_a_visitors_activities_of_that_name_only() -> None:
    visitors = Visitors()
    with visitors.busy("me", "repeat") as first, visitors.busy("you", "repeat") as yours:
        with visitors.busy("me", "repeat") as second:
            pass
        visitors.stop("me", "repeat")
        assert (first.is_set(), second.is_set(), yours.is_set()) == (True, False, False)
    visitors.stop("you", "repeat")
    assert not yours.is_set()


def test_the_page_learns_when_repeats_can_be_stopped_and_what_they_found() -> None:
    before = compared()
    again = before.model_copy(update={"other_load": 0.5})  # anything new
    finished = FinishedRun.of("run", 3, before)

    def run_idle(job: Any, cancelled: Event) -> Iterator[Any]:
        yield again
        assert cancelled.is_set(), "as Stop was pressed meanwhile"

    sessions = Sessions(mock.Mock(run_idle=run_idle))
    repeats = sessions.repeat("me", before.pair, finished)
    begun = next(repeats)
    assert begun is not None
    assert json.loads(begun[0]) == {"run": "run", "at": 3, "kind": "repeating"}
    assert next(repeats) is None
    sessions.stop("me", "repeat")
    *_, last = repeats
    assert last is not None
    event = json.loads(last[0])
    assert (event["kind"], event["at"], last[1].events) == ("end", 4, 5)


WORDS = {"what": "This run cannot be drawn", "otherwise": "share it as JSON"}


def packed(**changed: Any) -> str:
    return b64encode(gzip.compress(json.dumps(to_json(compared()) | changed).encode())).decode()


def test_a_run_is_drawn_in_a_limited_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made = events.run_in_child(make_file, "gif", packed(), waiting=[{"value": "Wait"}], **WORDS)
    assert next(made)[0].pop("value") == "Wait"  # as Gradio does when it sends an update
    assert next(made)[0].pop("value") == "Wait"
    assert result_of(made).startswith(b"GIF8")
    monkeypatch.setattr(events, "FILE_LIMITS", Limits(seconds=1))
    long = packed(prompt="\n" * 2**22)
    assert len(long) < 50_000
    with pytest.raises(FileError, match="cannot be drawn: it took longer than 1 s; share it as JSON"):
        result_of(events.run_in_child(make_file, "gif", long, waiting=[], **WORDS))


def test_forged_kinds_of_files_are_refused() -> None:
    kinds: tuple[Any, ...] = (["gif"], {}, None, "exe")
    for kind in kinds:
        *_, (message, _) = CompareCallbacks(mock.Mock()).share(gr.EventData(None, {"kind": kind, "record": "a"}))
        assert "something unexpected" in message
