"""The Tune tab: what steps cost here, what that predicts, and which setting is measured to be fastest."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gradio as gr

from specdemo.analysis.metrics import FORMULAS
from specdemo.analysis.predict import WHAT_IFS
from specdemo.experiments.sweep import LOOKAHEADS, REPEATS
from specdemo.records import ModelPair
from specdemo.ui.boards.report import report_template
from specdemo.ui.callbacks.tune import ALPHA, COSTS, SWEEP, Callbacks, all_costs, begun, examples, predicted
from specdemo.ui.events import ENGINE, PRIVATE, QUIET, Stop
from specdemo.ui.session import Sessions
from specdemo.ui.tabs.compare import APPLIED, CompareTab, applied
from specdemo.ui.views import heading, view

CHARTS = ("speedup", "policies", "acceptance", "shares")


class _Sweeping(NamedTuple):
    """What to sweep, the buttons, and what was found."""

    prompts: gr.Textbox
    longest: gr.Slider
    thresholds: gr.Checkbox
    repeats: gr.Slider
    start: gr.Button
    halt: gr.Button
    use: gr.Button
    message: gr.HTML
    board: gr.HTML


class _StepCosts(NamedTuple):
    """The buttons, what predictions assume, and the board."""

    measure: gr.Button
    halt: gr.Button
    message: gr.HTML
    alpha: gr.Slider
    draft: gr.Slider
    growth: gr.Slider
    presets: list[gr.Button]
    board: gr.HTML


def tune_tab(
    sessions: Sessions,
    known_visitor: gr.State,
    pair: gr.State,
    first: ModelPair,
    compare: CompareTab,
    stop: Callable[[str], Stop],
) -> None:
    """The tab's contents. Sweeps use the settings of the Compare tab, except for what they vary."""
    callbacks, controls = Callbacks(sessions), compare.controls
    with gr.Tab("Tune"):
        known, best = gr.State(None), gr.State(None)
        swept, costs = _sweeping(first), _step_costs()
    assumed = [known, costs.alpha, costs.draft, costs.growth]
    chosen = [swept.prompts, swept.longest, swept.thresholds, swept.repeats]
    sweeping = swept.start.click(
        callbacks.sweep,
        [known_visitor, pair, *chosen, known, *controls.values()],
        [swept.message, swept.board, best, swept.use, known, costs.alpha, swept.start, swept.halt],
        **QUIET,
        **ENGINE,
    )
    measuring = costs.measure.click(
        callbacks.costs,
        [known_visitor, pair, controls["engine"], costs.alpha],
        [costs.message, costs.board, known, costs.measure, costs.halt],
        **QUIET,
        **ENGINE,
    )
    for event in (sweeping, measuring):  # its own event, so that the board uses the acceptance of that moment
        event.then(all_costs, assumed, costs.board, **PRIVATE)
    swept.halt.click(stop("sweep"), **PRIVATE)
    costs.halt.click(stop("costs"), **PRIVATE)
    swept.use.click(applied, best, [controls[name] for name in APPLIED], **PRIVATE).then(
        None, js="() => document.querySelector('button[role=tab]').click()"
    )
    _connect_assumptions(costs, assumed)
    of_a_pair = [swept.prompts, swept.message, swept.board, best, swept.use, costs.message, costs.board, *assumed]
    pair.change(begun, [pair, swept.prompts], of_a_pair, **PRIVATE)


def _sweeping(first: ModelPair) -> _Sweeping:
    with gr.Column(elem_classes="sheet", elem_id="tune"):
        heading(
            "The fastest setting for your prompts on this machine",
            "Every setting runs between two plain runs, in random order. Engine, drafter, sampling and new "
            "tokens are taken from the Compare tab.",
        )
        prompts = gr.Textbox(
            examples(first.target.prompts), label="One prompt per line", lines=3, elem_id="sweep-prompts"
        )
        with gr.Row(elem_classes="controls"):
            longest = gr.Slider(1, LOOKAHEADS[-1], 8, step=1, label="Longest lookahead", elem_id="longest")
            repeats = gr.Slider(1, 10, REPEATS, step=1, label="Repeats", elem_id="repeats")
            thresholds = gr.Checkbox(True, label="Try confidence thresholds", elem_id="thresholds")
        with gr.Row(elem_classes="actions"):
            start = gr.Button(SWEEP, variant="primary", elem_id="sweep", scale=0, min_width=160)
            halt = gr.Button("Stop", variant="stop", elem_id="stop-sweep", visible=False, scale=0)
            use = gr.Button(elem_id="apply", visible=False, scale=0, min_width=260)
        message = gr.HTML(elem_id="sweep-message", elem_classes="message")
    board = view("board", markup=report_template(CHARTS, ("table",)), elem_id="sweep-board")
    return _Sweeping(prompts, longest, thresholds, repeats, start, halt, use, message, board)


def _step_costs() -> _StepCosts:
    with gr.Column(elem_classes="sheet", elem_id="costs"):
        heading(
            "Why: what each step costs on this machine",
            "A draft step costs c plain steps, and a target pass over n tokens costs v(n). Together with the "
            "share of judged proposals that are accepted, they predict the speedup of each lookahead.",
        )
        with gr.Row(elem_classes="actions"):
            measure = gr.Button(COSTS, elem_id="measure", scale=0, min_width=200)
            halt = gr.Button("Stop", variant="stop", elem_id="stop-costs", visible=False, scale=0)
        message = gr.HTML(elem_id="costs-message", elem_classes="message")
        alpha = gr.Slider(
            0,
            1,
            ALPHA,
            step=0.01,
            label="Acceptance per judged proposal",
            elem_id="alpha",
            info=f"{FORMULAS['token_acceptance']}; above α, which also counts discarded ones; set by a sweep",
        )
        draft, growth, presets = _what_if()
    board = view("board", "costs.html", elem_id="costs-board")
    return _StepCosts(measure, halt, message, alpha, draft, growth, presets, board)


def _connect_assumptions(costs: _StepCosts, assumed: list[Any]) -> None:
    """Predict again whenever something else is assumed."""
    moved = [slider.input for slider in (costs.alpha, costs.draft, costs.growth)]
    gr.on(moved, predicted, assumed, costs.board, trigger_mode="always_last", **PRIVATE)
    for button, what_if in zip(costs.presets, WHAT_IFS.values(), strict=True):
        chosen = button.click(partial(list, what_if), outputs=[costs.draft, costs.growth], **PRIVATE)
        chosen.then(predicted, assumed, costs.board, **PRIVATE)


def _what_if() -> tuple[gr.Slider, gr.Slider, list[gr.Button]]:
    """Sliders for step costs other than the measured ones, and buttons for what one may ask."""
    with gr.Row(elem_classes="controls"):
        draft = gr.Slider(
            0.1,
            4,
            1,
            step=0.05,
            label="What if: draft cost c",
            elem_id="what-if-draft",
            info="times the measured one",
        )
        growth = gr.Slider(
            0,
            4,
            1,
            step=0.05,
            label="What if: growth of v(n)",
            elem_id="what-if-growth",
            info="v(n) − 1, times the measured one; 0: passes over several tokens cost no more than those over one",
        )
    with gr.Row(elem_classes="actions"):
        presets = [gr.Button(name, size="sm", scale=0, min_width=220) for name in WHAT_IFS]
    return draft, growth, presets
