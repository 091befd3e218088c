"""A simulator without a model: the speedup by lookahead at a chosen acceptance and step costs, beside a run's own."""

import json
from typing import Any

import gradio as gr

from specdemo.results.figures import ChartPoint, as_data, xy_chart
from specdemo.results.simulation import Assumptions
from specdemo.ui.events import NO_QUEUE
from specdemo.ui.parts import html, notice
from specdemo.ui.session import FinishedRun
from specdemo.ui.views import BOARD, view

_LIMITS = Assumptions(acceptance=1, draft_step=1, slope=0.5)  # beyond these, no draft pays off
_NO_VALUES = "Run a comparison first, one that shows its proposals and what they cost."


def simulator(finished: gr.State) -> None:
    labels = (
        "Acceptance α of a proposal after accepted ones",
        "Draft cost c, in plain steps",
        "Verify cost of each further token, in plain steps",
    )
    with gr.Row(elem_id="simulator", equal_height=False):
        with gr.Column(elem_classes="controls"):
            gr.HTML(html("simulator"))
            sliders = [
                gr.Slider(0, limit, start, step=0.01, label=label)
                for limit, start, label in zip(_LIMITS, Assumptions(), labels, strict=True)
            ]
            use = gr.Button("Set to the last run", size="sm")
            message = gr.HTML(elem_classes="message")
        with gr.Column():
            board = view("board", BOARD, value=_board(None, *Assumptions()))
    changed = [finished.change, *(slider.change for slider in sliders)]
    gr.on(changed, _board, [finished, *sliders], board, trigger_mode="always_last", **NO_QUEUE)
    use.click(_last, finished, [message, *sliders], **NO_QUEUE)


def _last(finished: FinishedRun | None) -> list[Any]:
    if finished is None or finished.measured is None:
        return [notice(_NO_VALUES), *[gr.skip()] * len(_LIMITS)]
    values = zip(finished.measured.values, _LIMITS, strict=True)
    return ["", *(round(min(value, limit), 2) for value, limit in values)]


def _board(finished: FinishedRun | None, *values: float) -> str:
    groups = {"these values": _spots(Assumptions(*values))}
    if finished is not None and (last := finished.measured) is not None:
        groups["the last run's values"] = _spots(last.values)
        speedup, at = last.speedup, round(last.lookahead, 1)
        words = f"mean lookahead {at}: {speedup}"
        groups["measured in the last run"] = [(at, speedup.ratio, speedup.low, speedup.high, words)]
    chart = xy_chart("lookahead", "speedup", groups)
    return json.dumps([{"figure": as_data(chart)}], ensure_ascii=False)


def _spots(assumed: Assumptions) -> list[ChartPoint]:
    return [
        (lookahead, value, None, None, f"lookahead {lookahead}: {value:.2f}×")
        for lookahead, value in enumerate(assumed.speedups, 1)
    ]
