"""What holds for every kind of experiment, shown by a kind that is defined here and nowhere else."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from specdemo.cli import experiments as command
from specdemo.cli.commands import Parser
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import FileError, SettingsError
from specdemo.experiments import KINDS, report
from specdemo.experiments.checkpoint import Checkpoint, EngineFacts
from specdemo.experiments.plan import Kind, Option, run
from specdemo.experiments.suites import Task
from specdemo.experiments.trials import TrialPlan, TrialRow
from specdemo.experiments.variants import PrecisionPlan, TemperaturePlan, Temperatures, Variants, ratio
from specdemo.metrics import FORMULAS
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.ui.boards import report_template, result_board
from specdemo.ui.tabs.experiments import ExperimentCallbacks, given

SETTINGS = GenerationSettings(engine="traced", ignore_eos=True, max_new_tokens=41)
TASKS = [Task(name=f"tales {n}", task="tales", prompt=f"Say {n}") for n in (1, 2, 3)]
PAIR = ScriptedEngine().pair
ROOT = Path(__file__).parents[2]


class Lengths(Variants):
    """Answers of several lengths."""

    axis: ClassVar[str] = "length"
    title: ClassVar[str] = "Answers of several lengths"


@dataclass(frozen=True)
class LengthPlan(TrialPlan[Lengths]):
    """Every prompt with answers of each length."""

    lengths: Sequence[int] = (16, 32)

    @cached_property
    def variants(self) -> dict[str, GenerationSettings]:
        each = {length: self.settings.model_copy(update={"max_new_tokens": length}) for length in self.lengths}
        return {f"{settings.engine} {length}": settings for length, settings in each.items()}

    def result(self, facts: Mapping[str, EngineFacts], rows: Sequence[TrialRow]) -> Lengths:
        return Lengths(**self.common(facts, rows), variants=self.variants)


KIND = Kind(
    name="lengths",
    tab="Experiments",
    title="Longer answers",
    explanation="The same prompts with longer and longer answers.",
    help="measure longer and longer answers",
    start="Vary the length",
    plan=LengthPlan,
    options=(Option("lengths", "Lengths", "such as 16,32", "integers", (16, 32), choices=lambda pair: (16, 32, 64)),),
    charts=("speedup", "acceptance", "length"),
)


def load(name: EngineName, pair: ModelPair | None = None) -> ScriptedEngine:
    return ScriptedEngine(wrong=range(7, 4000, 5))


def lengths(checkpoint: Checkpoint | None = None, stop: Any = lambda: False, **options: Any) -> Lengths:
    plan = LengthPlan(PAIR, TASKS, SETTINGS, **{"repeats": 2, **options})
    return list(run(plan, load, checkpoint=checkpoint, stop=stop))[-1].result


def test_a_new_kind_runs() -> None:
    found = lengths()
    assert found.complete
    assert [point.value for point in found.points] == ["16", "32"]
    assert {row.method for row in found.rows} == {"16", "32"}
    assert all(point.cell.speedup.middle > 1 for point in found.points)
    assert Lengths.model_validate_json(found.model_dump_json()) == found


def test_a_new_kind_resumes(tmp_path: Path) -> None:
    checkpoint, asked = Checkpoint(tmp_path / "lengths.rows.jsonl"), count()
    cut = lengths(checkpoint, stop=lambda: next(asked) > 200)
    assert 0 < len(cut.rows) < 12
    resumed = lengths(checkpoint)
    assert resumed.complete
    assert resumed.rows[: len(cut.rows)] == cut.rows
    with pytest.raises(FileError, match="other methods"):
        lengths(checkpoint, lengths=(16, 64))


def test_a_new_kind_has_reports_and_a_board(tmp_path: Path) -> None:
    found = lengths(repeats=3)
    paths = report.write(found.report(), tmp_path / "lengths.json")
    data, markdown = json.loads(paths[0].read_text()), paths[1].read_text()
    assert data["headline"]["speedups"].keys() == {"16", "32"}
    assert markdown.startswith("# Answers of several lengths of scripted")
    assert "speculation clearly pays at 16 and 32" in markdown
    board = json.loads(result_board(found))
    assert set(board["charts"]) == set(KIND.charts)
    template = report_template(KIND.charts, KIND.tables)
    assert all(f'data-place="{place}"' in template for place in (*board["html"], *board["charts"]))
    bars = board["charts"]["speedup"]["data"][0]["error_y"]
    assert len(bars["array"]) == 2  # nine runs each are enough for an interval


def test_a_new_kind_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser()
    command.add_kind(parser.add_subparsers(), KIND)
    out = tmp_path / "lengths.json"
    options = parser.parse_args(
        ["lengths", "--lengths", "8,16", "--repeats", "1", "--limit", "2", "--json", str(out)]
    )
    options.load_engine = load
    options.command(options)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["complete"]
    assert [point["value"] for point in json.loads(out.read_text())["points"]] == ["8", "16"]
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_new_kind_is_a_part_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    class Sessions:
        def measure(self, visitor: str, what: str, job: Any) -> Any:
            yield from job.work(load, stop=lambda: False)

    visitor: Any = SimpleNamespace(session_hash="visitor")
    callbacks = ExperimentCallbacks(Sessions(), KIND)  # type: ignore[arg-type]
    updates = list(callbacks.measure(visitor, True, PAIR, None, None, 2, 1, 16, False, ["16", "64"]))
    *_, (message, board, _, _, _), (_, _, files, _, _) = updates
    assert message == ""
    assert "Length 16 is fastest, 1." in json.loads(board)["html"]["opening"]
    assert [Path(path).suffix for path in files["value"]] == [".json", ".md", ".csv", ".html"]
    (nothing,) = callbacks.measure(visitor, True, PAIR, None, None, 2, 1, 16, False, [])
    assert "Choose at least one of lengths" in nothing[0]


def test_what_is_ticked_is_taken_in_the_order_in_which_it_is_offered() -> None:
    assert given(KIND.options[0], PAIR, ["64", "16"]) == [16, 64]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_offers_what_its_plan_takes(kind: Kind) -> None:
    assert {option.name for option in kind.options} <= set(kind.plan.__dict__["__dataclass_fields__"])
    for option in kind.options:
        if option.choices is not None and option.first is not None:
            assert set(option.first(PAIR)) <= {*option.choices(PAIR), *option.first(PAIR)}


def test_temperatures_sample_with_a_seed_for_each_repeat() -> None:
    seen: list[tuple[bool, float, int]] = []

    class Watched(ScriptedEngine):
        def decoder(self, request: Any, costs: Any = None) -> Any:
            seen.append((request.sampling.do_sample, request.sampling.temperature, request.sampling.seed))
            return super().decoder(request, costs)

    plan = TemperaturePlan(PAIR, TASKS[:1], SETTINGS, (0.8, 0), repeats=2)
    *_, last = run(plan, lambda name: Watched())
    found = last.result
    assert isinstance(found, Temperatures)
    assert [point.value for point in found.points] == [0, 0.8]
    assert [point.comparable for point in found.points] == [True, False]
    assert {seed for sampled, _, seed in seen if sampled} == {0, 1}
    assert {temperature for sampled, temperature, _ in seen if sampled} == {0.8}
    assert [row[4] for row in found.report().tables["table"].rows] == ["identical", "sampled"]
    assert not any("greedy" in sentence or "sampling" in sentence for sentence in found.report().opening)
    with pytest.raises(SettingsError, match="Temperature"):
        next(run(TemperaturePlan(PAIR, TASKS, SETTINGS, (3.0,)), load))


def test_precisions_are_loaded_one_after_the_other() -> None:
    loaded: list[str] = []

    def watched(name: EngineName, pair: ModelPair = PAIR) -> ScriptedEngine:
        loaded.append(f"{pair.runtime.precision} {pair.runtime.draft_precision} {pair.runtime.kv_cache_precision}")
        return ScriptedEngine()

    chosen = ("as loaded", "target bf16", "draft f32", "cache u8 + target f32")
    *_, last = run(PrecisionPlan(PAIR, TASKS, SETTINGS, chosen, repeats=1), watched)
    assert loaded == [
        "default default default",
        "bf16 default default",
        "default f32 default",
        "f32 default u8",
    ]
    assert last.result.complete
    assert list(last.result.engines) == [f"traced {name}" for name in chosen]
    for wrong, message in (("weights u4", "not a precision of target, draft, cache"), ("cache u3", "KV-cache")):
        with pytest.raises(SettingsError, match=message):
            next(run(PrecisionPlan(PAIR, TASKS, SETTINGS, (wrong,)), load))


def test_formulas_stand_in_one_table() -> None:
    """Whatever a board, a report or a tab says of a figure's formula is `metrics.FORMULAS`."""
    hidden = [formula for formula in FORMULAS.values() if " / " in formula]
    for path in (*ROOT.glob("assets/page/*.html"), *ROOT.glob("specdemo/[eu]*/**/*.py"), ROOT / "assets/report.html"):
        text = path.read_text()
        assert not [formula for formula in hidden if formula in text], path.name
    assert FORMULAS["speedup"] in " ".join(chart.remark for chart in lengths().report().charts.values()).lower()


def test_a_ratio_has_an_interval_from_enough_prompts_on_which_repeats_do_not_narrow() -> None:
    counts = [("a", 3, 4), ("b", 1, 4), ("c", 2, 4), ("d", 3, 4), ("e", 2, 4), ("f", 1, 4)]
    few, many = ratio([("a", 3, 4)] * 20), ratio(counts)
    assert few is not None
    assert many is not None
    assert (few.middle, few.low) == (0.75, None)
    assert many.low is not None
    assert many.high is not None
    assert many.low < many.middle == 0.5 < many.high
    assert ratio(counts * 9) == many
    assert ratio([("a", 1, 2), ("a", None, 2)]) is None
    assert ratio([("a", 0, 0)]) is None
    assert ratio([]) is None


def test_later_turns_follow_the_targets_own_answers() -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    class Watched(ScriptedEngine):
        def decoder(self, request: Any, costs: Any = None) -> Any:
            asked.append((request.prompt, tuple(turn.answer for turn in request.history)))
            return super().decoder(request, costs)

    second = Task(name="1, turn 2", task="chats", prompt="Shorten it.", before=("Write a tale.",))
    short = SETTINGS.model_copy(update={"max_new_tokens": 4})
    plan = LengthPlan(PAIR, [second], short, (4, 8), repeats=2)
    *_, last = run(plan, lambda name: Watched())
    assert last.result.complete
    assert asked.count(("Write a tale.", ())) == 1  # decoded once, off the clock
    assert {history for prompt, history in asked if prompt == "Shorten it."} == {("the quick brown fox",)}
