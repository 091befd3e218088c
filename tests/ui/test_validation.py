"""Every event of the page refuses, with a sentence, values that no widget could have sent."""

from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import pytest
from gradio.blocks import BlockFunction
from gradio.components.api_component import Api
from gradio.state_holder import SessionState

from specdemo.models.catalogue import bundled_pair
from specdemo.racing.worker import Worker
from specdemo.ui.compare import CompareCallbacks
from specdemo.ui.controls import start_values
from specdemo.ui.events import fits
from specdemo.ui.models import name_of
from specdemo.ui.page import build_page, restore
from specdemo.ui.registry import Registry
from specdemo.ui.session import Sessions, Visitors
from tests.support.visitors import apart

FORGED: dict[type[gr.components.Component], tuple[Any, ...]] = {
    gr.Textbox: (None, 1, ["a"], {"a": 1}),
    gr.Dropdown: (1, ["a"], {"a": 1}),
    gr.Radio: (None, 1, ["a"], {}, "no such choice" * 1000),
    gr.Checkbox: (None, 1, "yes", []),
    gr.CheckboxGroup: (None, "a", 1, [1], [["a"]], ["no such choice"]),
    gr.Slider: (None, "1", True, [1], float("nan"), float("inf"), -(10**9), 10**9),
    gr.Number: ("1", True, [1], float("nan"), -1, 10**12),
    Api: ({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, [{}]),
    gr.UploadButton: (
        *(1, "/etc/passwd", [], {}, {"path": "a"}, {"path": "/etc/passwd"}),
        *(
            {"path": path, "meta": {"_type": "gradio.FileData"}}
            for path in ("/etc/passwd", "a\0", "http://192.0.2.1/")
        ),
    ),
}


@pytest.fixture(scope="module")
def page() -> Iterator[gr.Blocks]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_ANALYTICS_ENABLED", "False")

        async def built() -> gr.Blocks:  # Gradio would make a loop and never close it
            return build_page(cast(Worker, SimpleNamespace()), bundled_pair())

        yield apart(built())


Take = Callable[[BlockFunction, list[Any]], Coroutine[Any, Any, object]]


@pytest.fixture(scope="module")
def taken(page: gr.Blocks) -> Take:
    state = SessionState(page)

    async def take(fn: BlockFunction, values: list[Any]) -> object:
        return await page.process_api(fn, values, state=state)

    return take


def events(page: gr.Blocks) -> list[BlockFunction]:
    return [fn for fn in page.fns.values() if fn.fn is not None]


def beginning(fn: BlockFunction) -> list[Any]:
    defaults: dict[type, Any] = {gr.Textbox: ""}
    return [defaults.get(type(block), getattr(block, "value", None)) for block in fn.inputs]


def test_every_event_refuses_values_that_its_widgets_cannot_send(page: gr.Blocks, taken: Take) -> None:
    tried = set()

    async def check(fn: BlockFunction, index: int, forged: Any) -> None:
        values = beginning(fn)
        values[index] = forged
        with pytest.raises(gr.Error) as refused:
            await taken(fn, values)
        assert not refused.value.print_exception, f"{fn.inputs[index]} {forged!r} leaves a traceback"
        assert len(str(refused.value)) < 200
        assert "etc" not in str(refused.value)
        tried.add(type(fn.inputs[index]))

    async def check_all() -> None:
        seen = set()
        for fn in events(page):
            assert all(fits(block, value) for block, value in zip(fn.inputs, beginning(fn), strict=True))
            for index, block in enumerate(fn.inputs):
                if isinstance(block, gr.State | gr.BrowserState):  # stored values are checked when they are read
                    continue
                values = FORGED[cast(Any, type(block))]
                for forged in values[:1] if block in seen else values:  # of a widget all, of every event each widget
                    await check(fn, index, forged)
                seen.add(block)

    apart(check_all())
    assert tried == set(FORGED)


def test_a_button_that_needs_the_engine_reports_the_wait_at_once(page: gr.Blocks) -> None:
    clicked: dict[tuple[int | None, str], list[BlockFunction]] = {}
    for fn in events(page):
        for target in fn.targets:
            clicked.setdefault(target, []).append(fn)
    engine = {target: fns for target, fns in clicked.items() if any(fn.concurrency_id == "engine" for fn in fns)}
    assert len(engine) > 4
    for target, fns in engine.items():
        assert [fn for fn in fns if not fn.queue and fn.outputs], page.blocks[cast(int, target[0])].elem_id


def test_too_few_values_and_browser_only_events_are_refused(page: gr.Blocks, taken: Take) -> None:
    async def check() -> None:
        for fn in page.fns.values():
            if fn.inputs or fn.fn is None:
                with pytest.raises(gr.Error, match="received something unexpected"):
                    await taken(fn, [])

    apart(check())


@pytest.mark.parametrize("data", [None, 1, "name", ["name"], {}, {"name": ["a"]}, {"_data": 1}], ids=str)
def test_a_forged_event_cannot_name_an_unlisted_entry(data: Any) -> None:
    assert name_of(gr.EventData(None, data)) in ("", "['a']")


@pytest.mark.parametrize("saved", ["null", "[1]", "{", '{"seed": 1}', '{"prompt": "\\ud800"}', "[" * 100_000])
def test_forged_start_values_are_ignored(saved: str) -> None:
    registry, built = Registry(bundled_pair(), Visitors()), start_values(bundled_pair())
    assert restore(registry, saved, built) == {}


@pytest.mark.parametrize("prompt", ["\ud800", None, ["a"]], ids=repr)
def test_the_endpoint_takes_text_only(prompt: Any) -> None:
    compare = CompareCallbacks(cast(Sessions, SimpleNamespace())).api(bundled_pair())
    with pytest.raises(gr.Error, match="The prompt is not text"):
        next(compare(prompt))


def test_only_a_list_with_a_search_field_can_be_emptied() -> None:
    for filterable in (True, False):
        assert fits(gr.Dropdown(["a"], filterable=filterable, render=False), None) == filterable
