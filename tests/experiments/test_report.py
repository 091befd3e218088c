import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, expect

from specdemo.experiments.plan import Axes, Plan, grid
from specdemo.experiments.prompts import Task
from specdemo.experiments.report import Part, _choose, _where, build_report, conclude, options_of, to_html, write
from specdemo.experiments.rows import Point, Result, measure, points
from specdemo.results.estimate import Speedup
from specdemo.settings import GenerationSettings
from tests.support.scripted import ScriptedEngine

PAIR = ScriptedEngine().pair
SETTINGS = GenerationSettings(engine="traced", ignore_eos=True, max_new_tokens=61)
HOSTILE = "=cmd|'/c calc'!A1 <img src=x onerror=alert(1)> | [x](javascript:1)"
TASKS = [Task(name=f"{task} {n}", task=task, prompt=f"Say {n}") for task in ("tales", HOSTILE) for n in (1, 2)]


def measured(engine: ScriptedEngine | None = None, tasks: list[Task] = TASKS, **axes: Any) -> Result:
    used = engine or ScriptedEngine(wrong=(7, 20), extra=0.0005)
    plan = Plan(PAIR, tasks, SETTINGS, grid(PAIR, SETTINGS, Axes(**axes)), repeats=2)
    *_, last = measure(plan, lambda *_: used)
    return last.result


def point(name: str, middle: float, spread: float = 0.1) -> Point:
    return Point(
        variant=name,
        speedup=Speedup(ratio=middle, low=middle - spread, high=middle + spread),
        runs=6,
        identical_runs=6,
        tokens_per_second=1,
        plain_tokens_per_second=1,
        mean_acceptance_length=1,
        acceptance_rate=1,
    )


def cells_of(table: Part) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


SOME = "Not enough time: 1 of 3 settings tried. "


@pytest.mark.parametrize(
    ("found", "tried", "best", "words"),
    [
        ([("a", 1.5, 0.1), ("b", 1.2, 0.1)], "", "a", "Choose a: 1.50× (95 % interval 1.40–1.60) in 6 runs"),
        ([("a", 1.5, 0.1), ("b", 1.45, 0.1)], "", "a", "A is faster: 1.50×"),
        ([("a", 1.5001, 0.1), ("b", 1.5004, 0.1)], "", "a", "A is faster: 1.50×"),
        ([(name, 1.5, 0.1) for name in "abcdef"], "", "a", "Not clearly slower: b, c, d, e and 1 more."),
        ([("a", 1.6, 0.8), ("b", 1.5, 0.1)], "", "b", "outputs identical. Not clearly slower: a."),
        ([("a", 1.5, 0.1)], SOME, "a", f"{SOME}Choose a: 1.50×"),
        ([("a", 0.9, 0.02), ("b", 0.8, 0.02)], "", None, "No setting beats plain decoding here: the best, a"),
        ([("a", 0.9, 0.02), ("b", 0.88, 0.4)], "", None, "No clear winner: the fastest, a"),
        ([("a", 0.9, 0.02)], SOME, None, f"{SOME}Of these none beats plain decoding here"),
        ([("a", 2.0, 1.9)], SOME, None, f"{SOME}No clear winner: the fastest, a"),
    ],
)
def test_one_conclusion_names_the_setting_to_choose(found: Any, tried: str, best: str | None, words: str) -> None:
    concluded = _choose([point(*each) for each in found], tried)
    assert concluded.best == best
    assert words in concluded.sentence


def test_an_experiment_that_is_not_over_says_what_is_missing() -> None:
    result = measured(lookaheads=(1, 6))
    assert conclude(result, []).sentence == "Nothing has been measured yet."
    first = result.model_copy(update={"rows": tuple(row for row in result.rows if row.variant == "lookahead 1")})
    over = first.model_copy(update={"total": len(first.rows)})
    for made, start in ((first, "Unfinished: 1 of 2"), (over, "Not enough time: 1 of 2")):
        assert conclude(made, points(made)).sentence.startswith(f"{start} settings tried. ")
    assert [build_report(made).notes[0][:12] for made in (first, over)] == ["Unfinished: ", "Not tried fo"]
    for busy, advice in ((None, "Measure longer."), (0.5, "Measure longer, or close other programs.")):
        speedup = Speedup(ratio=1.1, low=0.9, high=1.3, width_from="runs", other_load=busy)
        sentence = _choose([point("a", 1.1).model_copy(update={"speedup": speedup})]).sentence
        assert sentence.endswith(f"in 6 runs. {advice}")


def test_conclusion_table_and_chart_have_one_number_for_a_setting() -> None:
    made = build_report(measured(lookaheads=(1, 4, 8)))
    best = made.conclusion.best
    assert best is not None
    (row,) = [row for row in made.tables[0].rows if row[0] == best]
    assert row[1] in made.conclusion.sentence
    (shown,) = made.figures["speedup"].data
    drawn = dict(zip(shown.x, shown.y, strict=True))[int(best.removeprefix("lookahead "))]
    assert row[1].startswith(f"{drawn:.2f}×")


def test_sampled_outputs_are_not_called_different() -> None:
    made = build_report(measured(temperatures=(0.0, 0.8)))
    assert [row["outputs"] for row in cells_of(made.tables[0])] == ["identical", "sampled"]


def test_under_several_conditions_the_conclusion_says_where_speculation_pays() -> None:
    found = [point(f"concurrency {n}", middle, 0.03) for n, middle in ((1, 1.4), (4, 1.2), (8, 1.0), (16, 0.8))]
    assert _where(found) == (
        "Speculation is faster at concurrency 1 (1.40×) and concurrency 4 (1.20×); neither clearly faster nor slower "
        "at concurrency 8 (1.00×); slower at concurrency 16 (0.80×)."
    )


def test_the_best_setting_of_each_condition_counts() -> None:
    result = measured(lookaheads=(1, 6), temperatures=(0.0, 0.8))
    sentence = conclude(result, points(result)).sentence
    assert "lookahead 6, temperature 0 " in sentence
    assert "lookahead 6, temperature 0.8 " in sentence
    assert "lookahead 1" not in sentence


def test_a_report_has_the_scripted_speedups() -> None:
    result = measured(lookaheads=(1, 4, 8), thresholds=(0.3,))
    made = build_report(result)
    assert [table.title for table in made.tables] == ["Every variant", "By task"]
    cells = cells_of(made.tables[0])
    assert [row["variant"] for row in cells] == ["lookahead 1", "lookahead 4", "lookahead 8", "threshold 0.3"]
    assert {row["outputs"] for row in cells} == {"identical"}
    assert [row["runs"] for row in cells] == ["8"] * 4
    (chosen,) = [note for note in made.notes if note.startswith("To use")]
    assert chosen.endswith(options_of(result, conclude(result, points(result)).best or ""))
    assert "--num-assistant-tokens" in chosen
    data = json.loads(json.dumps(made.data()))
    assert (data["choose"], data["conclusion"]) == conclude(result, points(result))
    assert [note[:8] for note in made.notes] == ["To use l", "Speedup:", "In brack", "α: accep"]
    assert (data["schema"], made.charts["speedup"].title) == (3, "Speedup by lookahead")
    assert [each["variant"] for each in data["points"]] == [each["variant"] for each in cells]


def test_charts_have_numbers_along_an_axis_and_others_as_bars() -> None:
    figures = build_report(measured(lookaheads=(1, 4, 8), thresholds=(0.3,), strategies=("same",))).figures
    (shown,) = figures["speedup"].data
    assert [*shown.x] == [1, 4, 8]
    assert all(0 < down < y for down, y in zip(shown.error_y.arrayminus, shown.y, strict=True))
    (lengths,) = figures["length"].data
    assert len(lengths.y) == 3
    assert [trace.name for trace in figures["others"].data] == ["threshold 0.3", "policy auto"]


def test_foreign_text_is_no_markup() -> None:
    made = build_report(measured(lookaheads=(2,)))
    assert HOSTILE in str(made.tables)
    assert [(name, part.title) for name, part in made.charts.items()] == [("others", "Speedup by task")]
    assert "<img" not in to_html(replace(made, opening=[HOSTILE], notes=[HOSTILE]))


@pytest.mark.browser
def test_the_html_opens_offline_and_draws_its_charts(browser: BrowserContext, tmp_path: Path) -> None:
    (*_, page_path) = write(build_report(measured(lookaheads=(1, 4), thresholds=(0.3,))), tmp_path / "run.json")
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    local = ("file:", "data:")
    page.on("request", lambda request: None if request.url.startswith(local) else errors.append(request.url))
    page.goto(page_path.as_uri())
    expect(page.locator("h1")).to_contain_text("Measurement of")
    expect(page.locator(".chart")).to_have_count(3)
    for chart in page.locator(".chart").all():
        expect(chart.locator(".main-svg").first).to_be_visible()
    bars = page.locator(".xtick").all_text_contents()
    assert HOSTILE in bars, "foreign text is shown as it is"
    assert page.locator(".chart :is(a, img)").count() == 0
    assert errors == []
