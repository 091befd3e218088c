"""The engine's process, with the scripted engine; the page's tests use the real one."""

import math
import resource
import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Event, Thread, Timer
from time import perf_counter, sleep

import pytest

from specdemo.capabilities import EngineName
from specdemo.engines.base import THOROUGH
from specdemo.errors import EngineError, LoadError, PromptError
from specdemo.racing import worker as module
from specdemo.racing.race import race
from specdemo.racing.warm_up import steady_before
from specdemo.racing.worker import Preload, WithEngine, Worker, if_loaded
from specdemo.records import Comparison, ModelPair, Phase, Slice
from specdemo.settings import GenerationSettings
from tests.support.failing import limited, send_signal
from tests.support.scripted import ScriptedEngine

LONG = GenerationSettings(ignore_eos=True, max_new_tokens=2000)
SHORT = GenerationSettings(max_new_tokens=8)
STEP = 0.005
PAIR = ScriptedEngine().pair
OTHER, REFUSED, ENDLESS, HUNG, PUZZLED, SLOW, INSTANT = (
    PAIR.model_copy(update={"name": name})
    for name in ("other", "refused", "endless", "hung", "puzzled", "slow", "instant")
)


def fails(*_: object) -> None:
    raise ZeroDivisionError


def load(name: EngineName, pair: ModelPair) -> ScriptedEngine:
    if pair == REFUSED:
        raise LoadError("OpenVINO cannot load it; export it again.")
    if pair == ENDLESS:
        sleep(3600)
    if pair == SLOW:
        sleep(0.5)
    if pair == HUNG:
        return ScriptedEngine(on_request=lambda *_: sleep(3600))
    if pair == PUZZLED:
        return ScriptedEngine(on_request=fails)
    if pair == INSTANT:
        return ScriptedEngine()
    engine = ScriptedEngine(step=STEP, prefill=STEP, real_time=True)
    steady_before.setdefault(engine, {})  # needs no warm-up
    return engine


TICK = 0.1  # seconds between reports without news


@pytest.fixture(scope="module", autouse=True)
def short_waits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TICK_SECONDS", TICK)
        patch.setattr(module, "_LOADING_GRACE", 0.05)
        patch.setattr("specdemo.child._EXIT_SECONDS", 0.3)
        yield


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker(load)
    yield worker
    worker.close()


def compare(worker: Worker, pair: ModelPair = PAIR, settings: GenerationSettings = SHORT) -> Comparison:
    *_, comparison = worker.compare(pair, "Say", settings)
    assert isinstance(comparison, Comparison)
    return comparison


def test_a_race_in_the_child_is_the_race(worker: Worker) -> None:
    list(worker.run(Preload("genai", INSTANT)))  # measures step costs
    progress = list(worker.compare(INSTANT, "Say", SHORT))
    assert {type(item) for item in progress if item is not None} == {Phase, Slice, Comparison}
    comparison = progress[-1]
    assert isinstance(comparison, Comparison)
    assert comparison.plain.text == " the quick brown fox jumps over a lazy"
    assert comparison.costs is not None


def test_cancelling_ends_within_a_round(worker: Worker) -> None:
    cancelled = Event()
    seen = []
    for item in worker.compare(PAIR, "Say", LONG, cancelled):
        seen.append(item)
        if len([lap for lap in seen if isinstance(lap, Slice)]) == 3 and not cancelled.is_set():
            Timer(0.05, cancelled.set).start()
            began = perf_counter()
    assert isinstance(seen[-1], Comparison)
    assert seen[-1].plain.finish_reason == "cancelled"
    assert perf_counter() - began < 5  # the whole run takes 10 s
    assert compare(worker).plain.finish_reason == "length"


def test_idle_work_yields_to_other_jobs(worker: Worker) -> None:
    compare(worker)
    endless = WithEngine("genai", PAIR, partial(race, prompt="Say", settings=LONG))
    idle = worker.run_idle(partial(if_loaded, job=endless))
    next(idle)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(compare, worker)
        rest = list(idle)
        assert asked.result().plain.finish_reason == "length"
    assert not [item for item in rest if isinstance(item, Comparison) and item.plain.finish_reason == "length"]
    running = worker.compare(PAIR, "Say", LONG)
    assert isinstance(running, Generator)
    next(running)
    assert list(worker.run_idle(endless)) == []
    running.close()
    compare(worker)
    assert list(worker.run_idle(partial(if_loaded, job=Preload("genai", OTHER)))) == []


def test_an_error_in_the_child_is_raised_here_and_the_next_run_works(worker: Worker) -> None:
    before = worker._child.process.pid
    for pair, prompt, error, words in (
        (PAIR, " ", PromptError, "empty"),
        (REFUSED, "Say", LoadError, "export it again"),
        (REFUSED, "Say", LoadError, "export it again"),
        (PUZZLED, "Say", EngineError, "has been reset; run again"),
    ):
        with pytest.raises(error, match=words) as failed:
            list(worker.compare(pair, prompt, SHORT))
        assert compare(worker).plain.finish_reason == "length"
    assert failed.value.cause == "ZeroDivisionError"
    assert "in decoder" in failed.value.trace
    assert worker._child.process.pid == before


def test_a_dead_child_is_reported_with_its_signal_and_restarted(worker: Worker) -> None:
    with pytest.raises(EngineError, match=r"ended by SIGFPE \(.*division by zero.*\); run again"):  # noqa: PT012
        for item in worker.compare(PAIR, "Say", LONG):
            if isinstance(item, Slice):
                send_signal(worker, signal.SIGFPE)
    assert compare(worker).plain.finish_reason == "length"


def test_a_child_that_dies_between_two_jobs_costs_at_most_one_run(worker: Worker) -> None:
    compare(worker)
    send_signal(worker, signal.SIGKILL)
    with suppress(EngineError):
        compare(worker)
    assert compare(worker).plain.finish_reason == "length"


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="has no such signal")
def test_a_message_to_a_stopped_process_blocks_nobody(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.5)
    compare(worker)
    send_signal(worker, signal.SIGSTOP)
    cancelled, ticks = Event(), 0
    with pytest.raises(EngineError, match=r"did not stop within 0\.5 s and was ended"):  # noqa: PT012
        for item in worker.compare(PAIR, "word " * 90_000, SHORT, cancelled):  # exceeds a pipe's buffer
            assert item is None
            ticks += 1
            if ticks > 2:
                cancelled.set()
    assert compare(worker).plain.finish_reason == "length"


def test_a_process_that_cannot_start_is_an_error_with_its_cause_and_is_retried(worker: Worker) -> None:
    compare(worker)
    worker.close()
    cause = "cannot be started: this process can open no more files"
    with limited(resource.RLIMIT_NOFILE, 3), pytest.raises(EngineError, match=cause) as refused:
        compare(worker)
    assert "Too many open files" in refused.value.cause
    assert compare(worker).plain.finish_reason == "length"


def test_shared_memory_that_is_not_writable_is_not_taken_for_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("multiprocessing.synchronize._multiprocessing.SemLock", refused)
    with pytest.raises(EngineError, match="shared memory is not writable; make /dev/shm writable"):
        Worker(load)


def phases(worker: Worker, pair: ModelPair, engine: EngineName = "genai", policy: str = "constant") -> list[str]:
    """Return the phases of a run, each once."""
    settings = SHORT.model_copy(update={"engine": engine, "policy": policy})
    names = [item.name for item in worker.compare(pair, "Say", settings) if isinstance(item, Phase)]
    return list(dict.fromkeys(names))


def test_another_engine_or_pair_is_loaded_on_request_after_the_first_job() -> None:
    worker = Worker(load_thorough, Preload("genai", SLOW))
    assert phases(worker, SLOW)[0] == "loading"  # the first job's
    *_, comparison = worker.compare(SLOW, "Say", SHORT)
    assert isinstance(comparison, Comparison)
    assert comparison.costs is None, "whoever comes does not wait for step costs"
    assert phases(worker, SLOW) == ["warming up"]
    assert phases(worker, PAIR, "traced") == ["loading", "warming up"]
    assert phases(worker, OTHER, "traced", "auto") == ["loading", "calibrating", "warming up"]
    assert phases(worker, OTHER, "traced", "auto") == ["warming up"]
    assert phases(worker, PAIR, "traced") == ["loading", "warming up"]
    worker.close()


def load_thorough(name: EngineName, pair: ModelPair) -> ScriptedEngine:
    engine = load(name, pair)
    engine.thoroughness, engine.real_time = THOROUGH, pair == SLOW  # whose step costs then take a while to measure
    return engine


def test_loading_in_advance_is_finished_for_the_run_that_needs_it(worker: Worker) -> None:
    compare(worker, OTHER)
    prepared = worker.run_idle(Preload("genai", SLOW))
    assert next(filter(None, prepared)).name == "loading"
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(phases, worker, SLOW)
        list(prepared)
        assert asked.result() == ["loading", "warming up"]  # the first is the other's


def test_loading_is_reported_and_can_be_cancelled(worker: Worker) -> None:
    compare(worker)
    cancelled = Event()
    seen = []
    for phase in filter(None, worker.run(Preload("genai", ENDLESS), cancelled)):
        seen.append(phase)
        if len(seen) == 2:
            cancelled.set()
    assert [phase.name for phase in seen] == ["loading"] * len(seen)
    assert seen[1].seconds > seen[0].seconds == 0
    assert compare(worker).plain.finish_reason == "length"


def hanging(worker: Worker, cancelled: Event | None = None) -> Generator[Phase]:
    """Start a run and wait until it reaches the step that never ends."""
    job = WithEngine("genai", HUNG, partial(race, prompt="Say", settings=SHORT))
    running = worker.run(job, cancelled)
    assert isinstance(running, Generator)
    while (phase := next(running)) is None or phase.name == "loading" or phase.seconds < 0.1:
        pass
    return running


def test_a_hanging_engine_is_ended_after_a_stop_or_when_its_visitor_leaves(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.5)
    cancelled = Event()
    running = hanging(worker, cancelled)
    cancelled.set()
    with pytest.raises(EngineError, match=r"did not stop within 0\.5 s and was ended; run again"):
        list(running)
    monkeypatch.setattr(module, "GRACE", 1)
    running = hanging(worker)
    began = perf_counter()
    running.close()  # on the server's event loop
    assert perf_counter() - began < 1
    following = list(worker.compare(PAIR, "Say", SHORT))
    first = following[0]
    assert isinstance(first, Phase)
    assert first.name == "calibrating", "the other's, whose grace is not over yet"
    assert isinstance(following[-1], Comparison)


def test_a_late_update_does_not_reach_the_next_run(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A visitor's slider moves while their run ends and another visitor's begins."""
    cancelled, array = Event(), worker._live_settings
    deque(worker.compare(PAIR, "Say", SHORT, cancelled), maxlen=0)
    writing, reset, written = Event(), Event(), Event()

    class Slow:
        def __setitem__(self, key: slice, value: Sequence[float]) -> None:
            if all(map(math.isnan, value)):
                reset.set()
            else:
                writing.set()
                assert written.wait(10)
            array[key] = value

    monkeypatch.setattr(worker, "_live_settings", Slow())
    late = Thread(target=worker.update_settings, args=(cancelled, GenerationSettings(num_assistant_tokens=9)))
    late.start()
    assert writing.wait(10)
    following = Thread(target=compare, args=(worker,))
    following.start()
    reset.wait(0.2)  # without a lock, the next run's settings are reset now, and the late ones follow
    written.set()
    late.join()
    following.join()
    worker.update_settings(cancelled, GenerationSettings(num_assistant_tokens=9))
    assert all(map(math.isnan, array)), "their run is over"
