"""The engine's process. The scripted engine keeps these tests quick; the page's tests use the real one."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from threading import Event, Timer
from time import perf_counter, sleep

import psutil
import pytest

from specdemo.engines import load_engine
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import EngineError, LoadError, PromptError
from specdemo.measure.race import Lap, race
from specdemo.models.pairs import bundled_pair
from specdemo.progress import Phase
from specdemo.records import Comparison, ModelPair
from specdemo.settings import GenerationSettings
from specdemo.worker import WithEngine, Worker

LONG = GenerationSettings(ignore_eos=True, max_new_tokens=2000)
SHORT = GenerationSettings(max_new_tokens=8)
STEP = 0.005
PAIR = ScriptedEngine().pair
OTHER = PAIR.model_copy(update={"name": "other"})


def scripted(name: str, pair: ModelPair) -> ScriptedEngine:
    return ScriptedEngine(step=STEP, real_time=True)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker(scripted)
    yield worker
    worker.close()


def compare(worker: Worker, settings: GenerationSettings = SHORT) -> Comparison:
    *_, comparison = worker.compare(PAIR, "Say", settings)
    assert isinstance(comparison, Comparison)
    return comparison


def test_a_race_in_the_child_is_the_race(worker: Worker) -> None:
    progress = list(worker.compare(PAIR, "Say", SHORT))
    assert {type(item) for item in progress} == {Phase, Lap, Comparison}
    comparison = progress[-1]
    assert isinstance(comparison, Comparison)
    assert comparison.plain.text == " the quick brown fox jumps over a lazy"
    assert comparison.costs is not None


def test_cancelling_ends_within_a_round(worker: Worker) -> None:
    cancelled = Event()
    seen = []
    for item in worker.compare(PAIR, "Say", LONG, cancelled):
        seen.append(item)
        if len([lap for lap in seen if isinstance(lap, Lap)]) == 3 and not cancelled.is_set():
            Timer(0.05, cancelled.set).start()
            began = perf_counter()
    assert isinstance(seen[-1], Comparison)
    assert seen[-1].plain.finish_reason == "cancelled"
    assert perf_counter() - began < 5  # the whole run takes 10 s
    assert compare(worker).plain.finish_reason == "length"


def test_leaving_frees_the_engine(worker: Worker) -> None:
    progress = worker.compare(PAIR, "Say", LONG)
    while not isinstance(next(progress), Lap):
        pass
    progress.close()
    assert compare(worker).plain.finish_reason == "length"


def test_an_error_in_the_child_is_raised_here_and_the_next_run_works(worker: Worker) -> None:
    with pytest.raises(PromptError, match="empty"):
        list(worker.compare(PAIR, " ", SHORT))
    assert compare(worker).plain.finish_reason == "length"


def test_a_child_that_dies_is_reported_and_started_anew(worker: Worker) -> None:
    with pytest.raises(EngineError, match="process died, perhaps for lack of memory; run again"):  # noqa: PT012
        for item in worker.compare(PAIR, "Say", LONG):
            if isinstance(item, Lap):
                os.kill(worker.process_id, signal.SIGKILL)
    assert compare(worker).plain.finish_reason == "length"


def refuses_to_load(name: str, pair: ModelPair) -> ScriptedEngine:
    raise LoadError("OpenVINO cannot load it; export it again.")


def test_a_pair_that_cannot_be_loaded_is_reported_with_every_run() -> None:
    worker = Worker(refuses_to_load)
    for _ in range(2):
        with pytest.raises(LoadError, match="export it again"):
            list(worker.compare(PAIR, "Say", SHORT))
    worker.close()


class Puzzled(ScriptedEngine):
    """An engine with a fault that nobody thought of."""

    def decoder(self, request, costs=None):
        if self.fails_at is not None:
            raise ZeroDivisionError
        return super().decoder(request, costs)


def puzzled(name: str, pair: ModelPair) -> Puzzled:
    return Puzzled(fails_at=0 if name == "traced" else None)


def test_an_unforeseen_error_ends_the_run_and_not_the_process() -> None:
    worker = Worker(puzzled)
    before = worker.process_id
    with pytest.raises(EngineError, match="has been reset; run again"):
        list(worker.compare(PAIR, "Say", GenerationSettings(engine="traced")))
    assert compare(worker).plain.finish_reason == "length"
    assert worker.process_id == before
    worker.close()


def phases(worker: Worker, pair: ModelPair, engine: str = "genai") -> list[str]:
    """The phases of a run, each once."""
    settings = SHORT.model_copy(update={"engine": engine})
    names = [item.name for item in worker.compare(pair, "Say", settings) if isinstance(item, Phase)]
    return list(dict.fromkeys(names))


def test_another_engine_or_pair_is_loaded_when_it_is_asked_for() -> None:
    worker = Worker(scripted, WithEngine("genai", PAIR))
    compare(worker)
    assert phases(worker, PAIR) == ["warming up"]
    assert phases(worker, PAIR, "traced") == ["loading", "calibrating", "warming up"]
    assert phases(worker, OTHER, "traced") == ["loading", "calibrating", "warming up"]
    assert phases(worker, OTHER, "traced") == ["warming up"]
    assert phases(worker, PAIR, "traced") == ["loading", "warming up"]  # what its steps cost is known
    worker.close()


def loads_only_the_first(name: str, pair: ModelPair) -> ScriptedEngine:
    if pair == OTHER:
        raise LoadError("OpenVINO cannot load it; export it again.")
    return ScriptedEngine()


def test_a_failed_load_leaves_the_pair_before_usable() -> None:
    worker = Worker(loads_only_the_first, WithEngine("genai", PAIR))
    before = worker.process_id
    with pytest.raises(LoadError, match="export it again"):
        list(worker.run(WithEngine("genai", OTHER)))
    assert compare(worker).plain.finish_reason == "length"
    assert worker.process_id == before
    worker.close()


def loads_the_other_for_ever(name: str, pair: ModelPair) -> ScriptedEngine:
    if pair == OTHER:
        sleep(3600)
    return ScriptedEngine()


def test_loading_is_reported_and_can_be_broken_off() -> None:
    worker = Worker(loads_the_other_for_ever, WithEngine("genai", PAIR))
    compare(worker)
    cancelled = Event()
    seen = []
    for phase in worker.run(WithEngine("genai", OTHER), cancelled):
        seen.append(phase)
        if len(seen) == 2:
            cancelled.set()
    assert [phase.name for phase in seen] == ["loading"] * len(seen)
    assert seen[1].seconds > seen[0].seconds == 0
    assert compare(worker).plain.finish_reason == "length"
    worker.close()


def test_leaving_while_a_pair_loads_breaks_the_load_off() -> None:
    worker = Worker(loads_the_other_for_ever, WithEngine("genai", PAIR))
    compare(worker)
    progress = worker.run(WithEngine("genai", OTHER))
    assert next(progress) == Phase("loading")
    began = perf_counter()
    progress.close()
    assert compare(worker).plain.finish_reason == "length"
    assert perf_counter() - began < 20
    worker.close()


class Hung(ScriptedEngine):
    """An engine that never gets its first step done."""

    def decoder(self, request, costs=None):
        sleep(3600)
        return super().decoder(request, costs)


def hangs(name: str, pair: ModelPair) -> ScriptedEngine:
    return Hung() if pair == OTHER else ScriptedEngine()


def test_an_engine_that_hangs_is_ended_after_a_stop() -> None:
    worker = Worker(hangs, grace_seconds=0.5)
    cancelled = Event()
    with pytest.raises(EngineError, match="did not stop and its process was ended; run again"):  # noqa: PT012
        for phase in worker.run(WithEngine("genai", OTHER, partial(race, prompt="Say", settings=SHORT)), cancelled):
            if phase.name != "loading" and phase.seconds >= 1:
                cancelled.set()
    assert compare(worker).plain.finish_reason == "length"
    worker.close()


def test_leaving_an_engine_that_hangs_returns_at_once_and_the_engine_is_ended() -> None:
    worker = Worker(hangs, grace_seconds=3)
    hung = worker.run(WithEngine("genai", OTHER, partial(race, prompt="Say", settings=SHORT)))
    while (phase := next(hung)).name == "loading" or phase.seconds < 1:
        pass
    began = perf_counter()
    hung.close()  # on the server's event loop
    assert perf_counter() - began < 1
    following = list(worker.compare(PAIR, "Say", SHORT))
    assert following[0] is None  # waiting for the grace to be over
    assert isinstance(following[-1], Comparison)
    worker.close()


def silent_work(engine, *, stop, costs):
    sleep(2.5)
    yield "done"


def test_silent_seconds_are_told_so_that_a_caller_can_be_closed(worker: Worker) -> None:
    compare(worker)
    assert list(worker.run(WithEngine("genai", PAIR, silent_work))) == [None, None, "done"]


@pytest.mark.openvino
def test_memory_does_not_grow_over_twenty_switches() -> None:
    pairs = [
        bundled_pair(inference_num_threads=threads) for threads in (1, 2)
    ]  # 50 MB of weights, so that a leak would show
    worker = Worker(load_engine)
    resident = []
    for switch in range(24):
        list(worker.run(WithEngine("genai", pairs[switch % 2])))
        resident.append(psutil.Process(worker.process_id).memory_info().rss)
    assert phases(worker, pairs[1]) == ["warming up"]
    assert resident[-1] - resident[3] < 100e6, [size // 10**6 for size in resident]
    worker.close()
