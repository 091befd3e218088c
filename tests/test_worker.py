"""The engine's process. The scripted engine keeps these tests quick; the page's tests use the real one."""

import os
import signal
from collections.abc import Iterator
from threading import Event, Timer
from time import perf_counter

import pytest

from specdemo.compare import Lap, Phase
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import EngineError, LoadError, PromptError
from specdemo.records import Comparison
from specdemo.settings import GenerationSettings
from specdemo.worker import Worker

LONG = GenerationSettings(ignore_eos=True, max_new_tokens=2000)
SHORT = GenerationSettings(max_new_tokens=8)
STEP = 0.005


def scripted(name: str) -> ScriptedEngine:
    return ScriptedEngine(step=STEP, real_time=True)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker(scripted)
    yield worker
    worker.close()


def compare(worker: Worker, settings: GenerationSettings = SHORT) -> Comparison:
    *_, comparison = worker.compare("Say", settings)
    assert isinstance(comparison, Comparison)
    return comparison


def test_a_race_in_the_child_is_the_race(worker: Worker) -> None:
    progress = list(worker.compare("Say", SHORT))
    assert {type(item) for item in progress} == {Phase, Lap, Comparison}
    comparison = progress[-1]
    assert isinstance(comparison, Comparison)
    assert comparison.plain.text == " the quick brown fox jumps over a lazy"
    assert comparison.costs is not None


def test_cancelling_ends_within_a_round(worker: Worker) -> None:
    cancelled = Event()
    seen = []
    for item in worker.compare("Say", LONG, cancelled):
        seen.append(item)
        if len([lap for lap in seen if isinstance(lap, Lap)]) == 3 and not cancelled.is_set():
            Timer(0.05, cancelled.set).start()
            began = perf_counter()
    assert isinstance(seen[-1], Comparison)
    assert seen[-1].plain.finish_reason == "cancelled"
    assert perf_counter() - began < 5  # the whole run takes 10 s
    assert compare(worker).plain.finish_reason == "length"


def test_leaving_frees_the_engine(worker: Worker) -> None:
    progress = worker.compare("Say", LONG)
    while not isinstance(next(progress), Lap):
        pass
    progress.close()
    assert compare(worker).plain.finish_reason == "length"


def test_an_error_in_the_child_is_raised_here_and_the_next_run_works(worker: Worker) -> None:
    with pytest.raises(PromptError, match="empty"):
        list(worker.compare(" ", SHORT))
    assert compare(worker).plain.finish_reason == "length"


def test_a_child_that_dies_is_reported_and_started_anew(worker: Worker) -> None:
    with pytest.raises(EngineError, match="process ended, perhaps for lack of memory; run again"):  # noqa: PT012
        for item in worker.compare("Say", LONG):
            if isinstance(item, Lap):
                os.kill(worker.process_id, signal.SIGKILL)
    assert compare(worker).plain.finish_reason == "length"


def refuses_to_load(name: str) -> ScriptedEngine:
    raise LoadError("OpenVINO cannot load it; export it again.")


def test_a_pair_that_cannot_be_loaded_is_reported_with_every_run() -> None:
    worker = Worker(refuses_to_load)
    for _ in range(2):
        with pytest.raises(LoadError, match="export it again"):
            list(worker.compare("Say", SHORT))
    worker.close()


class Puzzled(ScriptedEngine):
    """An engine with a fault that nobody thought of."""

    def plain(self):
        if self.fails_at is not None:
            raise ZeroDivisionError
        return super().plain()


def puzzled(name: str) -> Puzzled:
    return Puzzled(fails_at=0 if name == "traced" else None)


def test_an_unforeseen_error_ends_the_run_and_not_the_process() -> None:
    worker = Worker(puzzled)
    before = worker.process_id
    with pytest.raises(EngineError, match="has been reset, run again"):
        list(worker.compare("Say", GenerationSettings(engine="traced")))
    assert compare(worker).plain.finish_reason == "length"
    assert worker.process_id == before
    worker.close()


def test_another_engine_is_loaded_when_it_is_asked_for() -> None:
    worker = Worker(scripted)
    compare(worker)
    phases = [
        item.name for item in worker.compare("Say", GenerationSettings(engine="traced")) if isinstance(item, Phase)
    ]
    assert phases == ["loading", "calibrating", "warming up"]
    phases = [
        item.name for item in worker.compare("Say", GenerationSettings(engine="traced")) if isinstance(item, Phase)
    ]
    assert phases == ["warming up"]
    worker.close()
