"""The strategy that wins the bundled suite on this machine: the page starts with it."""

import json
from inspect import signature
from pathlib import Path
from typing import Any, cast

import gradio as gr
import pytest

from specdemo.cli import main
from specdemo.engines.scripted import ScriptedEngine
from specdemo.experiments.bench import BenchPlan
from specdemo.experiments.bench_result import Bench, winner
from specdemo.experiments.plan import run
from specdemo.experiments.suites import bundled_tasks
from specdemo.models import winner as winners
from specdemo.models.pairs import bundled_pair, initial_settings, start_settings
from specdemo.models.winner import winner_of
from specdemo.records import ModelPair
from specdemo.strategies import EngineName
from specdemo.ui.controls import default_values, engine_info, start_values
from specdemo.ui.page import restore
from specdemo.ui.registry import Registry
from specdemo.ui.session import Sessions, Visitors, initial_pair
from specdemo.ui.tabs.compare import CompareCallbacks
from specdemo.worker import Prepare

PAIR = bundled_pair()
CHAT = PAIR.model_copy(update={"target": PAIR.target.model_copy(update={"chat_template": True})})
METHODS = ("genai constant", "genai lookup", "traced constant")
LINKS = ({"engine": "traced"}, {"num_assistant_tokens": "7"}, {"engine": "genai", "policy": "constant"})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(winners, "own_cache", lambda: tmp_path)
    restart()
    return tmp_path


def restart() -> None:
    """Forget what this process read, as another one would."""
    winner_of.cache_clear()


def planned(
    pair: ModelPair = PAIR, prompts: int = 99, methods: tuple[str, ...] = METHODS, **chosen: Any
) -> BenchPlan:
    tasks = bundled_tasks(pair.target.prompts)[:prompts]
    return BenchPlan(pair, tasks, initial_settings(pair, **chosen), methods, repeats=1)


def measured(plan: BenchPlan, genai: float = 0.02) -> Bench:
    """Return a benchmark with this many seconds for a draft step on GenAI, and 0.001 on the traced engine."""
    return [*run(plan, lambda name: ScriptedEngine(draft=genai if name == "genai" else 0.001))][-1].result


def benchmark(pair: ModelPair = PAIR, genai: float = 0.02) -> str | None:
    """Measure, keep the winner and start anew; return what is said."""
    plan = planned(pair)
    said = plan.keep(measured(plan, genai))
    restart()
    return said


def test_the_page_starts_with_the_winner_and_says_so() -> None:
    assert start_settings(PAIR) == initial_settings(PAIR)
    assert engine_info(PAIR, "traced", "model", "constant") == "what runs the models"
    said = str(benchmark())
    assert said.startswith("In this machine's benchmark of 20")
    assert ", traced constant was the fastest of 3 methods: speedup " in said
    assert said.endswith(", outputs identical. The page will start with it.")
    start = start_values(PAIR)
    assert {name for name in start if start[name] != default_values(PAIR)[name]} == {"engine"}
    assert str(engine_info(PAIR, "traced", "model", "constant")) in said
    assert engine_info(PAIR, "genai", "model", "constant") == "what runs the models"


@pytest.mark.parametrize("pair", [PAIR, CHAT])
def test_its_engine_is_prepared_for_it(pair: ModelPair) -> None:
    benchmark(pair)
    assert Prepare("traced", initial_pair(pair))._initial() == start_settings(pair) != initial_settings(pair)
    assert Prepare("genai", initial_pair(pair))._initial() == initial_settings(pair)


def test_the_endpoint_and_the_terminal_keep_their_defaults() -> None:
    benchmark()
    endpoint = signature(CompareCallbacks(cast(Sessions, None)).api(PAIR)).parameters
    assert {name: endpoint[name].default for name in default_values(PAIR)} == default_values(PAIR)


def test_a_process_sees_one_winner() -> None:
    assert winner_of(PAIR) is None
    plan = planned()
    assert plan.keep(measured(plan)) is not None
    assert winner_of(PAIR) is None


def _opened(**named: str) -> dict[str, Any]:
    """Return the settings with which the page opens from a link."""
    start = start_values(PAIR)
    found = zip(start.items(), restore(Registry(PAIR, Visitors()), json.dumps(named)).controls, strict=True)
    return {name: value if new == gr.skip() else new for (name, value), new in found}


def test_links_with_a_strategy_mean_the_same_with_and_without_a_winner() -> None:
    before = [_opened(**link) for link in LINKS]
    assert _opened() == default_values(PAIR)
    benchmark()
    assert [_opened(**link) for link in LINKS] == before
    for named in ({}, {"prompt": "Once"}, {"max_new_tokens": "9"}):
        assert _opened(**named) == start_values(PAIR) | {name: 9 for name in named if name == "max_new_tokens"}
    assert start_values(PAIR) != default_values(PAIR)


def test_it_belongs_to_a_pair_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark()
    assert winner_of(PAIR) is not None
    assert winner_of(bundled_pair(inference_num_threads=1)) is None
    assert winner_of(PAIR.model_copy(update={"draft": None})) is None
    restart()
    monkeypatch.setattr(winners, "machine_name", lambda: "another")
    assert winner_of(PAIR) is None


def test_the_default_stays_unless_another_is_clearly_faster() -> None:
    benchmark()
    assert start_settings(PAIR).engine == "traced"
    assert "none of 3 methods clearly beat genai constant" in str(benchmark(genai=0.00101))
    assert start_settings(PAIR) == initial_settings(PAIR)


@pytest.mark.parametrize(
    "plan",
    [
        planned(prompts=6),
        planned(methods=METHODS[1:]),
        planned(methods=METHODS[:1]),
        planned(repetition_penalty=1.3),
        planned(num_assistant_tokens=2),
        planned(max_new_tokens=16),
    ],
)
def test_nothing_is_kept_of_another_measurement(plan: BenchPlan) -> None:
    assert plan.keep(measured(plan)) is None


def test_nothing_is_kept_of_servers_and_unfinished_runs() -> None:
    result = measured(planned())
    header, target = result.header, result.header.pair.target
    assert winner(result) is not None
    served = header.pair.model_copy(update={"target": target.model_copy(update={"server": "vllm"})})
    assert winner(result.model_copy(update={"header": header.model_copy(update={"pair": served})})) is None
    assert winner(result.model_copy(update={"rows": result.rows[:-1]})) is None


def test_a_damaged_or_outdated_winner_is_ignored(cache: Path) -> None:
    benchmark()
    (file,) = (cache / "winners").iterdir()
    for content in (file.read_text().replace('"constant"', '"unheard of"'), "{"):
        file.write_text(content)
        restart()
        assert start_settings(PAIR) == initial_settings(PAIR)


def _load(name: EngineName, pair: ModelPair = PAIR) -> ScriptedEngine:
    return ScriptedEngine(draft=0.02 if name == "genai" else 0.001)


COMMAND = ["bench", "--target", "story-pair/target", "--draft", "story-pair/draft", "--repeats", "1", "--no-hardware"]
COMMAND += ["--methods", ",".join(METHODS)]


def test_the_terminal_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMAND, load=_load) == 0
    assert "The page will start with it." in capsys.readouterr().err
    assert start_settings(PAIR).engine == "traced"


def test_a_result_is_not_lost_where_no_winner_can_be_kept(
    cache: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (cache / "winners").write_text("in the way")
    assert main([*COMMAND, "--json", str(tmp_path / "bench.json")], load=_load) == 0
    assert "The winner cannot be saved" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.glob("bench*")) == [
        f"bench.{kind}" for kind in ("csv", "html", "json", "md")
    ]
