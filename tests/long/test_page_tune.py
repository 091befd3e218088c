"""The Tune, Benchmark and Load tabs as a visitor meets them, on scripted engines in headless Chromium."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from specdemo.measure.step_costs import MAX_LOOKAHEAD
from tests.support.browser import Visit, open_tab, run, set_slider

pytestmark = pytest.mark.browser
SHORT = "/#engine=traced&max_new_tokens=16&ignore_eos=true"


def rows(page: Page, board: str) -> Any:
    cells = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    return page.locator(f"#{board} tbody tr").evaluate_all(cells)


def points(page: Page, board: str, chart: str) -> Any:
    """Number of points of each of a chart's traces."""
    element = f"document.querySelector('#{board} .chart[data-place={chart}]')"
    page.wait_for_function(f"{element}?.data?.length")
    return page.evaluate(f"{element}.data.map(trace => trace.x.length)")


def widest(page: Page) -> Any:
    """The right edge of the page's content, in pixels."""
    edges = "parts => Math.max(...parts.map(part => part.getBoundingClientRect().right))"
    return page.locator(".card, .sheet, .sheet button").evaluate_all(edges)


def fits(page: Page, width: int) -> None:
    """Wait until the page's content ends there."""
    page.wait_for_function(
        """width => [...document.querySelectorAll('.card, .sheet, .sheet button')]
            .every(part => part.getBoundingClientRect().right <= width)""",
        arg=width,
    )


LEGENDS_ARE_ABOVE = """() => {
    const legends = [...document.querySelectorAll('#bench-board .chart .legend')];
    return legends.length > 1 && legends.every(legend => {
        const chart = legend.closest('.chart'), { bottom } = legend.getBoundingClientRect();
        return chart.clientWidth > 390 && bottom - chart.getBoundingClientRect().top <= chart._fullLayout._size.t;
    });
}"""


def test_a_sweep_a_stop_and_what_steps_cost(visit: Visit) -> None:
    page = visit(SHORT)
    open_tab(page, "Tune")
    page.fill("#sweep-prompts textarea", "Once upon a time")
    set_slider(page, "longest", 2)
    page.uncheck("#thresholds input")
    page.click("#sweep")
    tried = ["lookahead 1", "lookahead 2", "policy heuristic", "policy auto"]
    expect(page.locator("#sweep-board tbody td:last-child")).to_have_text(["3"] * len(tried))
    found = rows(page, "sweep-board")
    assert [row[0] for row in found] == tried
    assert [row[-2:] for row in found] == [["identical", "3"]] * len(tried)
    expect(page.locator("#sweep-board [data-place=opening]")).to_contain_text("identical")
    assert points(page, "sweep-board", "speedup") == [MAX_LOOKAHEAD, MAX_LOOKAHEAD, 2]

    open_tab(page, "Compare")
    set_slider(page, "max_new_tokens", 2000)
    open_tab(page, "Tune")
    page.click("#sweep")
    expect(page.locator("#sweep-message progress")).to_be_visible()
    page.click("#stop-sweep")
    expect(page.locator("#sweep-message")).to_contain_text("finished results are kept")
    expect(page.locator("#sweep")).to_be_enabled()

    with page.expect_response("**/run/**"):  # at the end the board is drawn once more
        page.click("#measure")
        expect(page.locator("#costs-board tbody tr")).to_have_count(3)  # the sweep knew of a single length
    expect(page.locator("#stop-costs")).to_be_hidden()
    assert points(page, "costs-board", "verify") == [MAX_LOOKAHEAD + 1] * 3
    set_slider(page, "alpha", 0)
    expect(page.locator("#costs-board [data-place=expectation]")).to_contain_text(
        "At an acceptance of 0.00 no lookahead is predicted"
    )
    page.set_viewport_size({"width": 390, "height": 1000})
    fits(page, 390)


def swept(page: Page, whose: str) -> list[str]:
    """Sweep; returns the headings of the board."""
    open_tab(page, "Tune")
    page.click("#sweep")
    expect(page.locator("#sweep-board [data-place=opening]")).to_contain_text(whose)
    expect(page.locator("#sweep")).to_have_text("Sweep")
    return page.locator("#sweep-board h2:visible").all_text_contents()


def choose_engine(page: Page, name: str) -> None:
    open_tab(page, "Compare")
    if not page.locator("#advanced").is_visible():
        page.click("#more button")
    page.click(f"#engine input[value={name}]")


def test_a_board_shows_one_sweep_and_says_whose_it_is(visit: Visit) -> None:
    page = visit(SHORT)
    lookaheads, others = ["Speedup by lookahead"], ["Thresholds and policies"]
    rest = ["Acceptance", "Where the time goes", "Every setting", "About these figures"]
    assert swept(page, "story-pair on scripted: draft model, traced engine") == [
        "Conclusion",
        *lookaheads,
        *others,
        *rest,
    ]

    expect(page.locator("#apply")).to_have_text("Use policy auto in Compare")
    choose_engine(page, "genai")
    expect(page.locator("#policy.no-auto")).to_be_visible()
    open_tab(page, "Tune")
    page.click("#apply")
    expect(page.locator("#policy:not(.genai)")).to_be_visible()
    expect(page.locator("#engine input[value=traced]")).to_be_checked()
    expect(page.locator("#policy input[value=auto]")).to_be_checked()
    run(page)

    choose_engine(page, "genai")
    open_tab(page, "Tune")
    page.uncheck("#thresholds input")
    assert swept(page, "story-pair on scripted: draft model, GenAI engine") == ["Conclusion", *lookaheads, *rest]
    expect(page.locator("#apply")).to_have_text("Use lookahead 7 in Compare")
    expect(page.locator("#costs-board [data-place=caption]")).to_have_text("story-pair · GenAI engine")


def test_step_costs_stay_until_another_pair_is_used(visit: Visit) -> None:
    page = visit(SHORT)
    open_tab(page, "Tune")
    page.click("#measure")
    expect(page.locator("#costs-board tbody tr")).to_have_count(3)
    expect(page.locator("#measure")).to_have_text("Measure step costs")
    steps = rows(page, "costs-board")
    assert [row[1:] for row in steps] == [["1.95 (1.95–1.95)", "0.49 (0.49–0.49)", "0.49 (0.49–0.49)", "0.25"]] * 3

    page.evaluate("document.querySelector('#costs-board tbody').marked = true")
    set_slider(page, "alpha", 0)
    expect(page.locator("#costs-board [data-place=expectation]")).to_contain_text(
        "At an acceptance of 0.00 no lookahead"
    )
    page.get_by_role("button", name="A draft twice as fast").click()
    expect(page.locator("#costs-board [data-place=expectation]")).to_contain_text("(measured 0.25)")
    page.get_by_role("button", name="As measured").click()
    expect(page.locator("#costs-board [data-place=expectation]")).not_to_contain_text("What if")
    assert page.evaluate("document.querySelector('#costs-board tbody').marked")  # nothing else was shown anew

    open_tab(page, "Compare")
    page.locator("#flavour input").click()
    page.get_by_role("option", name="OpenVINO Model Server").click()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy-code")
    expect(page.locator("#message pre")).to_contain_text("--model_name story-pair/target")
    code = page.locator("#message pre").text_content()
    page.wait_for_function("async code => await navigator.clipboard.readText() === code", arg=code)
    open_tab(page, "Tune")

    swept(page, "story-pair on scripted: draft model, traced engine")
    expect(page.locator("#costs-board [data-place=expectation]")).to_contain_text("At an acceptance of 1.00")
    assert rows(page, "costs-board") == steps  # and not the sweep's own, after a text of one length

    open_tab(page, "Models")
    page.click("#draft input")
    page.get_by_role("option", name="None: prompt lookup only").click()
    expect(page.locator("#report")).to_contain_text("docs/drafts.md")
    page.click("#use")
    expect(page.locator("#header")).to_contain_text("no draft")
    open_tab(page, "Tune")
    for board in ("sweep-board", "costs-board"):
        expect(page.locator(f"#{board} .card:visible")).to_have_count(0)
    expect(page.locator("#apply")).to_be_hidden()
    expect(page.locator("#alpha input[type=number]")).to_have_value("0.7")


def test_a_benchmark_and_its_reports(visit: Visit, tmp_path: Path) -> None:
    page = visit(width=390)
    open_tab(page, "Benchmark")
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps({"prompt": "Say"}) + "\n{}\n")
    with page.expect_file_chooser() as chooser:
        page.click("#bench-suite")
    chooser.value.set_files(broken)
    expect(page.locator("#bench-suite-name")).to_contain_text("broken.jsonl")
    page.click("#run-bench")
    expect(page.locator("#bench-message [role=alert]")).to_contain_text("ine 2")

    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"task_id": "mine", "prompt": "Once upon a time"}) + "\n")
    with page.expect_file_chooser() as chooser:
        page.click("#bench-suite")
    chooser.value.set_files(own)
    expect(page.locator("#bench-suite-name")).to_contain_text("own.jsonl")
    set_slider(page, "bench-tokens", 16)
    page.click("#run-bench")
    expect(page.locator("#bench-reports")).to_be_visible()
    expect(page.locator("#run-bench")).to_have_text("Run the benchmark")
    found = rows(page, "bench-board [data-place=table]")
    methods = {(row[3], row[4]) for row in found}
    assert methods == {("genai", "constant"), ("traced", "constant"), ("traced", "auto")}
    assert {row[6] for row in found} == {"identical"}
    assert {row[-1] for row in found} == {"3"}
    for kind in ("json", "md", "csv", "html"):
        expect(page.locator("#bench-reports")).to_contain_text(f".{kind}")
    assert widest(page) <= 390
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_function(LEGENDS_ARE_ABOVE)  # not on the bars, where more lines of them had been


def test_load_up_to_the_crossover_then_a_stop_that_keeps_what_is_finished(visit: Visit) -> None:
    page = visit()
    open_tab(page, "Load")
    for group, label, chosen in (
        ("concurrency", 2, False),
        ("concurrency", 4, False),
        ("concurrency", 32, True),
        ("lookaheads", 1, True),
    ):
        page.locator(f"#{group}").get_by_label(str(label), exact=True).set_checked(chosen)
    for name, value in (("limit", 2), ("repeats", 2), ("tokens", 96)):
        set_slider(page, f"load-{name}", value)
    page.click("#run-load")
    expect(page.locator("#load-reports")).to_be_visible()
    expect(page.locator("#run-load")).to_have_text("Measure under load")
    opening = page.locator("#load-board [data-place=opening]")
    expect(opening).to_contain_text(re.compile("Lookahead 4: .* pays up to 8 at once .*; at 32 it costs .* % of the"))
    levels, methods = ["1", "8", "32"], ["plain", "lookahead 1", "lookahead 4"]
    fastest, found = (rows(page, f"load-board [data-place={place}]") for place in ("best", "table"))
    assert [row[:2] for row in fastest] == [["1", "lookahead 4"], ["8", "lookahead 1"], ["32", "plain"]]
    assert [row[:2] for row in found] == [[level, method] for level in levels for method in methods]
    assert {row[-1] for row in found} == {"identical"}
    assert points(page, "load-board", "latency") == [3] * 3
    assert points(page, "load-board", "speedup") == [3] * 2
    marks = page.locator("#load-board [data-place=speedup] .annotation-text")
    expect(marks).to_have_text(["crossover", "crossover"])
    for kind in ("json", "md", "csv", "html"):
        expect(page.locator("#load-reports")).to_contain_text(f".{kind}")

    for level in (8, 32):
        page.locator("#concurrency").get_by_label(str(level), exact=True).uncheck()
    set_slider(page, "load-tokens", 208)  # long enough to be slept
    page.click("#run-load")
    expect(page.locator("#load-message progress")).to_have_attribute("value", re.compile("[1-9]"))
    page.click("#stop-load")
    expect(page.locator("#load-message")).to_contain_text("finished results are kept")
    expect(page.locator("#load-board [data-place=notes]")).to_contain_text("Unfinished: ")
    page.set_viewport_size({"width": 390, "height": 1000})
    fits(page, 390)
