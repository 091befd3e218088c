"""Read what Plotly drew on a page, and compare it with Python's figures."""

from typing import Any

import pytest
from playwright.sync_api import Page

from specdemo.records import Comparison
from specdemo.results.figures import RACE_CHARTS, chart

DATA = "name => document.querySelector(`.chart.${name} .js-plotly-plot`)?.data?.map(({ name, x, y }) => [name, x, y])"
MARKS = """name => {
    const { shapes = [], annotations = [] } = document.querySelector(`.chart.${name} .js-plotly-plot`).layout;
    return [shapes.map(({ x0 }) => x0), annotations.map(({ x, text }) => [x, text])];
}"""


def drawn(page: Page, name: str, points: int | None = None) -> list[Any]:
    """Return name, x and y of a race chart's traces, once it has this many points."""
    page.evaluate("name => document.querySelector(`.which [value=${name}]`)?.click()", name)
    enough = "points === null || traces?.reduce((sum, [, x]) => sum + x.length, 0) === points"
    page.wait_for_function(
        f"([name, points]) => {{ const traces = ({DATA})(name); return traces && ({enough}); }}", arg=[name, points]
    )
    traces: list[Any] = page.evaluate(DATA, name)
    return traces


def assert_drawn(page: Page, comparison: Comparison) -> None:
    """Check that the scripts fill charts with the same numbers as Python does."""
    for name in RACE_CHARTS:
        made = chart(comparison, name)
        traces = drawn(page, name, sum(len(trace.x) for trace in made.data))
        for (named, x, y), trace in zip(traces, made.data, strict=True):
            assert named == trace.name
            assert [x, y] == [pytest.approx([*values], rel=1e-9) for values in (trace.x, trace.y)]
        places, texts = page.evaluate(MARKS, name)
        assert places == pytest.approx([shape.x0 for shape in made.layout.shapes])
        if any(len(trace.x) for trace in made.data):  # else the page says why it is empty
            assert texts == [[pytest.approx(note.x), note.text] for note in made.layout.annotations]
        else:
            assert [text for _, text in texts] == ["Appears as the race goes on."]
