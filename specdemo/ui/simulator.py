"""A simulator without a model: the speedup by lookahead at a chosen acceptance and step costs, beside a run's own."""

import json
from typing import Any, NamedTuple

import gradio as gr

from specdemo.records import Comparison, Costs
from specdemo.results import estimate, metrics
from specdemo.results.figures import Spot, as_data, compared
from specdemo.ui.events import AT_ONCE
from specdemo.ui.parts import html
from specdemo.ui.session import FinishedRun
from specdemo.ui.views import BOARD, view

_LONGEST = 16  # lookahead


class Assumed(NamedTuple):
    """`acceptance`: of a proposal after accepted ones. In plain steps: `draft_step`, and what each token more adds to
    a pass of the target, so v(n) = 1 + `slope` · (n − 1).
    """

    acceptance: float = 0.7
    draft_step: float = 0.2
    slope: float = 0.05

    @property
    def speedups(self) -> tuple[float, ...]:
        lookaheads = range(_LONGEST + 1)
        drafting = tuple(self.draft_step * lookahead for lookahead in lookaheads)
        verify = tuple(1 + self.slope * lookahead for lookahead in lookaheads)
        return metrics.expected_speedups(Costs(drafting=drafting, verify=verify), self.acceptance)


def simulator(finished: gr.State) -> None:
    """`finished`: the visitor's last run."""
    start = Assumed()
    with gr.Row(elem_id="simulator", equal_height=False):
        with gr.Column(elem_classes="controls"):
            gr.HTML(html("simulator"))
            sliders = [
                gr.Slider(0, 1, start.acceptance, step=0.01, label="Acceptance α of a proposal after accepted ones"),
                gr.Slider(0, 1, start.draft_step, step=0.01, label="Draft cost c, in plain steps"),
                gr.Slider(0, 0.5, start.slope, step=0.01, label="Verify cost of each further token, in plain steps"),
            ]
            use = gr.Button("Set to the last run", size="sm")
        with gr.Column():
            board = view("board", BOARD, value=_board(None, *start))
    changed = [finished.change, *(slider.change for slider in sliders)]
    gr.on(changed, _board, [finished, *sliders], board, trigger_mode="always_last", **AT_ONCE)
    use.click(_last, finished, sliders, **AT_ONCE)


def _last(finished: FinishedRun | None) -> list[Any]:
    """Return updates of the sliders."""
    found = None if finished is None else measured(finished.comparison)
    return [gr.skip()] * 3 if found is None else [round(value, 2) for value in found.values]


class Measured(NamedTuple):
    values: Assumed
    lookahead: float  # mean of the rounds
    speedup: estimate.Speedup


def measured(comparison: Comparison) -> Measured | None:
    """Return what a run was like; None without known proposals or costs."""
    run, speedup = comparison.speculative, estimate.of_comparison(comparison)
    acceptance = metrics.judged_acceptance(run)
    if acceptance is None or speedup is None:
        return None
    lookahead = sum(len(step.proposed or ()) for step in run.rounds) / len(run.rounds)
    costs = metrics.round_costs(comparison, speedup.plain_steps_per_round)
    if costs is None or costs.verify is None:
        return None
    values = Assumed(acceptance, costs.draft_step or 0.0, max(costs.verify - 1, 0.0) / lookahead)
    return Measured(values, lookahead, speedup)


def _board(finished: FinishedRun | None, *values: float) -> str:
    groups = {"these values": _spots(Assumed(*values))}
    if finished is not None and (last := measured(finished.comparison)) is not None:
        groups["the last run's values"] = _spots(last.values)
        speedup, at = last.speedup, round(last.lookahead, 1)
        words = f"mean lookahead {at}: {speedup}"
        groups["measured in the last run"] = [(at, speedup.ratio, speedup.low, speedup.high, words)]
    chart = compared("lookahead", "speedup", groups)
    return json.dumps([{"figure": as_data(chart)}], ensure_ascii=False)


def _spots(assumed: Assumed) -> list[Spot]:
    return [
        (lookahead, value, None, None, f"lookahead {lookahead}: {value:.2f}×")
        for lookahead, value in enumerate(assumed.speedups, 1)
    ]
