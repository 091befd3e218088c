"""Load on scripted batches, whose clock is only counted, and what is said of it; one test on real pipelines."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest

from specdemo.engines.base import Arrival
from specdemo.engines.genai import GenAIEngine
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import EngineError, FileError, PairError, SettingsError
from specdemo.estimate import Interval
from specdemo.experiments import load as load_runs
from specdemo.experiments import report as files
from specdemo.experiments.checkpoint import Checkpoint
from specdemo.experiments.load import LoadPlan
from specdemo.experiments.load_points import (
    PLAIN,
    LoadRow,
    Percentiles,
    Point,
    best,
    conclusion,
    crossover_words,
    crossovers,
    fastest_words,
    schedule,
)
from specdemo.experiments.load_result import COLUMNS, Load, headline, opening, position_table, report_of
from specdemo.experiments.plan import run as load_run
from specdemo.experiments.plan import run_with_extras
from specdemo.experiments.suites import Task
from specdemo.measure.closed_loop import NamedRequest, decode_at_once, serve, shuffled
from specdemo.records import Progress, Request, Server, Servers
from specdemo.records.run import Block
from specdemo.settings import GenerationSettings
from specdemo.strategies import Constant, EngineName, Plain, Strategy
from tests.conftest import PROMPTS

SETTINGS = GenerationSettings(engine="genai", num_assistant_tokens=4, max_new_tokens=41, ignore_eos=True)
TASKS = [Task(name=f"tales {n}", task="tales", prompt=f"Say {n}") for n in (1, 2, 3)]
PAIR = ScriptedEngine().pair
LEVELS = (1, 4)
WRONG = range(7, 4000, 5)


def engine(name: EngineName = "genai", **options: Any) -> ScriptedEngine:
    return ScriptedEngine(wrong=WRONG, extra=0.002, prefill=0.01, **options)


def states(
    load: Callable[[EngineName], ScriptedEngine] = engine,
    checkpoint: Checkpoint | None = None,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> list[Progress[Load]]:
    plan = LoadPlan(PAIR, TASKS, SETTINGS, **{"concurrency": LEVELS, "repeats": 2, **options})
    return list(load_run(plan, load, checkpoint=checkpoint, stop=stop))


def run(**options: Any) -> Load:
    return states(**options)[-1].result


def block(strategy: Strategy, level: int, number: int, tokens: int = 41) -> Block:
    request = Request("Say", strategy, max_new_tokens=tokens, ignore_eos=True)
    with closing(engine().batch(strategy)) as batch:
        found = serve(batch, repeat(NamedRequest("Say", request)), level, number)
    assert found is not None
    return found


def test_plain_requests_share_their_passes() -> None:
    found = block(Plain(), 4, 8)
    passes = 2 * 40  # after a prefill each, in two waves
    assert found.seconds == pytest.approx(passes * (0.01 + 3 * 0.002) + 8 * 0.01)
    assert (found.tokens, len(found.served)) == (8 * 41, 8)
    assert found.accepted == (8 * 40,)  # rounds with nothing accepted
    assert found.batch == 4
    first, later = found.served[0], found.served[4]
    assert first.first == pytest.approx(0.04)  # the prefills of all four
    assert first.last == pytest.approx(0.04 + 40 * 0.016)
    assert later.first == pytest.approx(0.04)
    assert later.tokens_per_second == pytest.approx(1 / 0.016)


def test_as_many_are_in_flight_to_the_end() -> None:
    found = block(Constant(4), 3, 4)
    assert len(found.served) == 4
    assert found.batch == 3  # though the fourth alone would have been the last
    assert found.tokens > 4 * 41


def test_rounds_are_counted() -> None:
    found = block(Constant(4), 1, 1)
    assert found.accepted is not None
    assert sum((k + 1) * rounds for k, rounds in enumerate(found.accepted)) == 40
    assert found.judged is not None
    accepted, proposed = found.judged
    assert accepted == sum(k * rounds for k, rounds in enumerate(found.accepted))
    assert 0 < accepted < proposed <= 4 * sum(found.accepted)


class Distant:
    """A batch as of a server that tells nothing but text, in pieces of its own choosing, one second apart."""

    in_passes = False

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces
        self._flying: dict[int, int] = {}
        self._clock = 0

    def now(self) -> float:
        return self._clock

    def submit(self, number: int, request: Request) -> None:
        self._flying[number] = 0

    def receive(self) -> list[Arrival]:
        self._clock += 1
        if self._clock % 3 == 0:
            return []
        number = min(self._flying, key=lambda each: self._flying[each])
        piece = self._pieces[self._flying[number]]
        self._flying[number] += 1
        ended = self._flying[number] == len(self._pieces)
        if ended:
            del self._flying[number]
        return [Arrival(number, self.now(), len(piece.split()), piece, None, "stop" if ended else None)]

    def cache_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        self._flying = {}


def test_where_only_text_arrives_the_rest_is_unknown() -> None:
    requests = repeat(NamedRequest("Say", Request("Say", Plain())))
    whole, pieces = (serve(Distant(*told), requests, 2, 3) for told in (("a b c d",), ("a b", " c d")))
    assert whole is not None
    assert pieces is not None
    assert {served.output for served in (*whole.served, *pieces.served)} == {whole.served[0].output}
    assert (pieces.accepted, pieces.judged, pieces.batch, pieces.cache_bytes) == (None, None, None, None)
    assert whole.served[0].tokens_per_second is None  # all of it came at once
    assert [(served.first, served.last) for served in pieces.served] == [(1, 4), (2, 7), (1, 6)]


def test_every_prompt_comes_before_any_comes_again() -> None:
    names = shuffled(["a", "b", "c"], "seed")
    first, second = ([next(names) for _ in range(3)] for _ in range(2))
    assert sorted(first) == sorted(second) == ["a", "b", "c"]


def test_a_run_measures_every_side_at_every_level_on_the_same_requests() -> None:
    done = states()
    result = done[-1].result
    assert result.complete
    assert (done[-1].done, done[-1].total, done[-1].seconds_left) == (8, 8, 0)
    assert Load.model_validate_json(result.model_dump_json()) == result
    blocks = {row.key: row.block for row in result.rows}
    for repeat_ in range(2):
        for level in LEVELS:
            plain, speculative = (blocks[repeat_, level, method] for method in result.header.methods)
            assert [each.prompt for each in plain.served] == [each.prompt for each in speculative.served]
            assert len(plain.served) == max(3, 2 * level)
    order = [row.method for row in result.rows if row.block.level == 4]
    assert order[:2] == order[3:1:-1]  # so that neither is always the first


def test_figures_are_what_the_script_says() -> None:
    found = {(point.method, point.level): point for point in run().points}
    alone, crowd = found[PLAIN, 1], found[PLAIN, 4]
    assert alone.tokens_per_second.middle == pytest.approx(41 / 0.41)
    assert crowd.tokens_per_second.middle == pytest.approx(4 * 41 / (40 * 0.016 + 4 * 0.01))
    assert crowd.user_tokens_per_second == pytest.approx(1 / 0.016)
    assert (alone.mean_accepted_length, alone.per_position, alone.speedup) == (1, (), None)
    speculative = found["lookahead 4", 1]
    assert speculative.speedup is not None
    assert speculative.speedup.middle == pytest.approx(
        speculative.tokens_per_second.middle / alone.tokens_per_second.middle
    )
    assert speculative.per_position == tuple(sorted(speculative.per_position, reverse=True))
    assert speculative.mean_accepted_length == pytest.approx(1 + sum(speculative.per_position))
    assert all(point.identical == point.requests for point in found.values())


def test_positions_that_were_never_accepted_are_zero() -> None:
    every_second = ScriptedEngine(wrong=range(0, 4000, 2), extra=0.002, prefill=0.01)
    table = position_table(run(load=lambda name: every_second, repeats=1, concurrency=(1,)))
    assert [row[-2:] for row in table.rows] == [("0 %", "0 %")]
    assert table.columns[-1] == "4"


def test_outputs_that_change_under_load_are_counted() -> None:
    class Crowded(ScriptedEngine):
        """Whose draft is believed now and then."""

    result = run(load=lambda name: Crowded(diverges_at=5), repeats=1, concurrency=(2,))
    by_method = {(point.method, point.level): point for point in result.points}
    assert by_method[PLAIN, 2].identical == by_method[PLAIN, 2].requests
    assert by_method["lookahead 4", 2].identical == 0
    (row,) = (row for row in report_of(result).tables["table"].rows if row[:2] == ("2", "lookahead 4"))
    assert row[COLUMNS.index("outputs")] == "0 of 4"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "load.rows.jsonl")


def test_a_stopped_run_goes_on_in_the_orders_it_would_have_had(checkpoint: Checkpoint) -> None:
    asked = count()
    whole, cut = run(), run(checkpoint=checkpoint, stop=lambda: next(asked) > 300)
    assert 0 < len(cut.rows) < 8
    resumed = run(checkpoint=checkpoint)
    assert resumed.complete
    measured = [[row.key for row in each.rows] for each in (whole, cut, resumed)]
    assert measured[0] == measured[2]
    assert measured[1] == measured[0][: len(cut.rows)]
    seconds = [[row.block.seconds for row in each.rows] for each in (whole, resumed)]
    assert seconds[0] == pytest.approx(seconds[1])
    loads: list[str] = []
    assert run(checkpoint=checkpoint, load=loads.append).complete  # nothing is left to load an engine for
    assert loads == []


def test_rows_of_another_run_are_not_mixed_in(checkpoint: Checkpoint) -> None:
    run(checkpoint=checkpoint, repeats=1)
    with pytest.raises(FileError, match="other numbers of concurrent requests"):
        run(checkpoint=checkpoint, concurrency=(1, 2))
    with pytest.raises(FileError, match="other numbers of requests per block"):
        run(checkpoint=checkpoint, requests=20)
    with pytest.raises(FileError, match="other methods"):
        run(checkpoint=checkpoint, lookaheads=(2, 4))
    with pytest.raises(FileError, match="with another random order;"):
        run(checkpoint=checkpoint, seed=1)


def test_rows_of_other_servers_are_not_mixed_in(checkpoint: Checkpoint) -> None:
    def opened(**servers: Any) -> list[LoadRow]:
        pair = PAIR.model_copy(update={"servers": Servers(**servers)})
        return checkpoint.open(LoadPlan(pair, TASKS, SETTINGS, LEVELS).header, LoadRow).rows

    one, other = Server(url="http://127.0.0.1:8080"), Server(url="http://127.0.0.1:8081")
    assert opened(plain=one, speculative=other) == opened(plain=one, speculative=other) == []
    named = other.model_copy(update={"model": "tiny"})
    for sides in ((other, one), (one, None), (one, named)):
        with pytest.raises(FileError, match="a run with other servers;"):
            opened(plain=sides[0], speculative=sides[1])
    assert "127.0.0.1" not in checkpoint.path.read_text()


def test_a_crash_loses_no_finished_block(checkpoint: Checkpoint) -> None:
    failing = count()

    def load(name: EngineName) -> ScriptedEngine:
        return engine(fails_at=30 if next(failing) == 0 else None)

    with pytest.raises(EngineError):
        run(checkpoint=checkpoint, load=load)
    assert run(checkpoint=checkpoint, load=load).complete


@pytest.mark.parametrize(
    ("changes", "levels", "message"),
    [
        ({"engine": "traced"}, LEVELS, "one request at a time"),
        ({"do_sample": True}, LEVELS, "must be greedy"),
        ({}, (0, 1), "from 1 to 256"),
        ({}, (300,), "from 1 to 256"),
        ({}, (), "from 1 to 256"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_loaded(
    changes: dict[str, Any], levels: Sequence[int], message: str
) -> None:
    settings = GenerationSettings.checked(**dict(SETTINGS) | changes)
    with pytest.raises(SettingsError, match=message):
        next(load_run(LoadPlan(PAIR, TASKS, settings, levels), pytest.fail))


def test_a_pair_that_cannot_be_decoded_so_is_refused_before_anything_is_loaded() -> None:
    alone = PAIR.model_copy(update={"draft": None})
    with pytest.raises(PairError, match="draft"):
        next(load_run(LoadPlan(alone, TASKS, SETTINGS), pytest.fail))


def test_only_a_constant_lookahead_can_be_varied() -> None:
    assert list(LoadPlan(PAIR, TASKS, SETTINGS, lookaheads=(2, 6)).variants) == ["lookahead 2", "lookahead 6"]
    settings = SETTINGS.model_copy(update={"policy": "confidence"})
    with pytest.raises(SettingsError, match="constant policy"):
        _ = LoadPlan(PAIR, TASKS, settings, lookaheads=(2, 6)).variants


def point(level: int, *speedup: float, method: str = "lookahead 4") -> Point:
    middle, low, high = (*speedup, None, None)[:3]
    assert middle is not None
    seconds = Percentiles(median=1, p99=1)
    return Point(
        method=method,
        level=level,
        blocks=6,
        requests=9,
        tokens_per_second=Interval(middle=100),
        user_tokens_per_second=None,
        first=seconds,
        last=seconds,
        mean_accepted_length=None,
        acceptance_rate=None,
        batch=None,
        cache_bytes=None,
        speedup=Interval(middle=middle, low=low, high=high),
        speedups=(middle,),
        identical=None,
        other_load=None,
    )


PAYS, UNCLEAR, COSTS = (1.5, 1.4, 1.6), (1.01, 0.9, 1.1), (0.78, 0.7, 0.8)


@pytest.mark.parametrize(
    ("speedups", "sentence"),
    [
        ([PAYS, PAYS], "Speculation pays at every load measured, up to 2 at once (1.50×, 95 % interval 1.40–1.60)."),
        (
            [PAYS, PAYS, UNCLEAR, COSTS],
            "Speculation pays up to 2 at once (1.50×, 95 % interval 1.40–1.60); at 4 there is no clear difference; "
            "at 8 it costs 22 % of the throughput.",
        ),
        (
            [COSTS, COSTS],
            "Speculation clearly pays at none of the loads measured; at 2 it costs 22 % of the throughput.",
        ),
        (
            [UNCLEAR, UNCLEAR, UNCLEAR],
            "Speculation clearly pays at none of the loads measured; at 1, 2 and 4 there is no clear difference.",
        ),
        ([COSTS, PAYS], "Speculation pays only at 2; at 1 it costs 22 % of the throughput."),
        (
            [(1.2,), (0.9,)],
            "Too few repeats to be sure: speculation pays with one request at a time (1.20×); at 2 it costs 10 % of "
            "the throughput.",
        ),
        ([], ""),
    ],
)  # fmt: skip
def test_the_conclusion_is_what_the_intervals_allow(speedups: list[tuple[float, ...]], sentence: str) -> None:
    assert conclusion([point(2**power, *speedup) for power, speedup in enumerate(speedups)]) == sentence


def test_the_crossover_lies_between_two_levels() -> None:
    (crossover,) = crossovers([point(1, 1.8), point(4, 1.5), point(16, 0.5)])
    assert (crossover.above, crossover.below) == (4, 16)
    assert crossover.at == pytest.approx(8)
    assert crossovers([point(1, 0.9), point(4, 0.8)]) == crossovers([point(1, 1.9), point(4, 1.1)]) == []


def test_a_crossover_without_intervals_is_not_interpolated() -> None:
    (sure,), (unsure,) = (crossover_words([point(1, *PAYS), point(4, *last)]) for last in (COSTS, COSTS[:1]))
    assert "interpolated at" in sure
    assert unsure.endswith("between 1 and 4 at once, but too few repeats to be sure.")


def test_the_best_lookahead_by_load_names_its_rivals() -> None:
    found = [
        point(1, 1.8, 1.7, 1.9), point(1, 1.75, 1.6, 1.8, method="lookahead 2"),
        point(8, 0.9, 0.8, 1.1), point(8, 1.2, 1.1, 1.3, method="lookahead 2"),
        point(16, 0.7, 0.6, 0.8), point(16, 0.9, 0.8, 1.1, method="lookahead 2"),
    ]  # fmt: skip
    assert [(each.level, each.method, each.equals) for each in best(found)] == [
        (1, "lookahead 4", ("lookahead 2",)),
        (8, "lookahead 2", ("lookahead 4",)),
        (16, PLAIN, ("lookahead 2",)),
    ]


def test_the_fastest_ways_are_told_by_ranges_of_levels() -> None:
    found = [point(1, 1.8), point(2, 1.5), point(4, 0.9), point(4, 1.2, method="lookahead 2"), point(8, 0.7)]
    assert fastest_words(best(found)) == (
        "Fastest, by the medians: lookahead 4 with 1 to 2 at once, lookahead 2 with 4, plain with 8."
    )


def test_the_best_lookahead_by_load_is_a_schedule_for_servers() -> None:
    found = [
        *(point(level, 1.8) for level in (1, 2)), point(4, 1.2, method="lookahead 2"), point(8, 0.7), point(16, 0.6),
    ]  # fmt: skip
    constant = {f"lookahead {n}": GenerationSettings(num_assistant_tokens=n) for n in (2, 4)}
    assert schedule(best(found), constant) == [[1, 3, 4], [4, 7, 2], [8, 16, 0]]
    assert schedule(best([point(1, 0.8)]), constant) is None
    lookup = {"prompt lookup": GenerationSettings(drafter="lookup")}
    assert schedule(best([point(1, 1.8, method="prompt lookup")]), lookup) is None


def test_reports_agree_with_the_figures(tmp_path: Path) -> None:
    result = run(lookaheads=(2, 4), repeats=6)
    paths = files.write(report_of(result), tmp_path / "load.json")
    data = json.loads(paths[0].read_text())
    assert [Point.model_validate(each) for each in data["points"]] == list(result.points)
    assert data["headline"]["conclusion"] == next(opening(result))
    rows = list(csv.DictReader(io.StringIO(paths[2].read_text())))
    assert [(row["method"], int(row["level"])) for row in rows] == [
        (each.method, each.level) for each in result.points
    ]
    markdown, html = paths[1].read_text(), paths[3].read_text()
    for text in (markdown, html):
        assert "Fastest by concurrency" in text
        assert "at most 41 tokens" in text
    positions = report_of(result).tables["positions"]
    assert positions.columns == ("concurrency", "method", "1", "2", "3", "4")
    assert [row[4:] == ("", "") for row in positions.rows] == [True, False] * 2  # at lookaheads 2 and 4
    charts = report_of(result).charts
    assert [trace.name for trace in charts["latency"].figure.data] == [PLAIN, "lookahead 2", "lookahead 4"]
    latency = charts["latency"].figure.data[0]
    assert list(latency.y) == sorted(latency.y)  # plain throughput grows with the level
    assert len(charts["speedup"].figure.layout.annotations) == len(crossovers(result.points))


def test_an_unfinished_run_says_so_and_shows_nothing_false() -> None:
    begun, *_, last = states(repeats=1)
    unknown = last.result.model_copy(update={"rows": [row for row in last.result.rows if row.block.level == 4]})
    assert [each["identical"] for each in headline(unknown)["speedups"].values()] == [None]
    assert all(each["identical"] for each in headline(last.result)["speedups"].values())
    assert report_of(begun.result).tables["table"].rows == []
    assert next(opening(begun.result)) == "Nothing could be compared yet."
    complete = report_of(last.result)
    cut = last.result.model_copy(update={"rows": last.result.rows[:1]})
    assert len(complete.tables["table"].rows) == 4
    assert len(report_of(cut).tables["table"].rows) == 1
    assert "Unfinished: 1 of 4 blocks." in report_of(cut).notes
    assert "speedup" not in report_of(cut).charts


def test_memory_is_measured_with_the_most_requests_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(*arguments: Any, work: partial[None], at_once: int) -> None:
        asked.append((arguments[3], at_once))
        work(engine(), Request("Say", Plain(), max_new_tokens=4))

    monkeypatch.setattr(load_runs, "measure_memory", measured)
    plan = LoadPlan(PAIR, TASKS, SETTINGS, LEVELS, repeats=1)
    last = list(run_with_extras(plan, engine))
    assert asked == [("plain", 4), ("speculative", 4)]
    assert (last[-2].doing, last[-1].result.complete) == ("measuring memory", True)


@pytest.mark.openvino
def test_requests_in_flight_decode_as_they_do_alone(engine: GenAIEngine) -> None:
    tasks = [Task(name=prompt, task="tales", prompt=prompt) for prompt in PROMPTS]
    settings = SETTINGS.model_copy(update={"max_new_tokens": 24})
    *_, last = load_run(LoadPlan(engine.pair, tasks, settings, concurrency=(3,), repeats=1), lambda name: engine)
    found = {(point.method, point.level): point for point in last.result.points}
    for (method, level), each in found.items():
        assert each.identical == each.requests
        assert each.batch == pytest.approx(level)
        assert each.cache_bytes
        assert each.first.median < each.last.median
        if method != PLAIN:
            assert each.mean_accepted_length is not None
            assert 1 < each.mean_accepted_length <= 5
            assert len(each.per_position) <= 4
    assert found[PLAIN, 3].mean_accepted_length == 1
    assert not engine.pipelines.get("model").has_non_finished_requests()  # what was dropped is gone
    decode_at_once(engine, Request(PROMPTS[0], Constant(2), max_new_tokens=8), 2)
