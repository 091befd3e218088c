"""The Tune tab: measured step costs, the speedups they predict, and a sweep for the fastest setting."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, get_args

import gradio as gr

from specdemo.errors import SpecdemoError
from specdemo.experiments import LOOKAHEADS, REPEATS, THRESHOLDS, Sweep, candidates, sweep
from specdemo.measure import contexts_task
from specdemo.metrics import AS_MEASURED, FORMULAS, WHAT_IFS, WhatIf
from specdemo.models.pairs import bundled_prompts
from specdemo.records import Costs, ModelPair, Progress, Prompts
from specdemo.ui.boards import PairCosts, costs_board, prediction_board, report_template, result_board
from specdemo.ui.boards import board as board_of
from specdemo.ui.controls import NAMES, settings_from
from specdemo.ui.events import PRIVATE, WAITING, Stop, check_session, job_buttons, job_updates, on_engine
from specdemo.ui.parts import alert, notice
from specdemo.ui.session import Sessions
from specdemo.ui.tabs.compare import APPLIED, CompareTab, apply_setting
from specdemo.ui.views import heading, script, view
from specdemo.worker import WithEngine

SWEEP, COSTS = "Sweep", "Measure step costs"
ALPHA = 0.7  # until measured by a sweep
_EMPTY = board_of({}, {})


class _SweepUpdate(NamedTuple):
    """Updates of everything that a sweep changes, except its buttons."""

    message: Any = gr.skip()
    board: Any = gr.skip()
    best: Any = gr.skip()
    use: Any = gr.skip()
    measured: Any = gr.skip()
    alpha: Any = gr.skip()


class TuneCallbacks:
    """Callbacks that measure: widget values in, updates out."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def sweep(
        self,
        request: gr.Request,
        session_open: bool,
        pair: ModelPair,
        text: str,
        longest: int,
        thresholds: bool,
        repeats: int,
        measured: PairCosts | None,
        *values: Any,
    ) -> Iterator[list[Any]]:
        """Sweep; yield updates of message, board, recommendation, its button, costs, acceptance, and buttons."""
        check_session(session_open)
        idle, busy = job_buttons(SWEEP, busy=False), job_buttons(SWEEP, busy=True)
        prompts = [line.strip() for line in text.splitlines() if line.strip()]
        if not prompts:
            yield [*_SweepUpdate(notice("Enter at least one prompt, one per line.")), *idle]
            return
        try:
            settings = settings_from(pair, dict(zip(NAMES, values, strict=True)))
            tried = candidates(pair, settings, LOOKAHEADS[: int(longest)], THRESHOLDS if thresholds else ())
        except SpecdemoError as error:
            yield [*_SweepUpdate(alert(error)), *idle]
            return
        work = partial(sweep, prompts=prompts, settings=settings, tried=tried, repeats=int(repeats))
        # clear the figures of an earlier sweep with other settings
        yield [*_SweepUpdate(notice(WAITING), _EMPTY, None, gr.update(visible=False)), *busy]
        state = None
        for update in job_updates(
            self._sessions,
            str(request.session_hash),
            "sweep",
            WithEngine(settings.engine, pair, work),
            lambda progress: result_board(progress.result),
        ):
            state = update.state
            yield [*_SweepUpdate(update.message, update.board), *busy]
        yield [*(_SweepUpdate() if state is None else after_sweep(state.result, pair, measured)), *idle]

    def costs(
        self, request: gr.Request, session_open: bool, pair: ModelPair, engine: Any, acceptance: float
    ) -> Iterator[list[Any]]:
        """Measure step costs; yield updates of message, board, costs, and buttons."""
        check_session(session_open)

        def show(progress: Progress[Costs | None]) -> Any:
            if progress.result is None:
                return gr.skip()
            return costs_board(PairCosts(pair, engine, progress.result), acceptance)

        job = WithEngine(engine, pair, contexts_task)
        yield [notice(WAITING), gr.skip(), gr.skip(), *job_buttons(COSTS, busy=True)]
        state = None
        for update in job_updates(self._sessions, str(request.session_hash), "costs", job, show):
            state = update.state
            yield [update.message, update.board, gr.skip(), *job_buttons(COSTS, busy=True)]
        found = state.result if state is not None else None
        measured = PairCosts(pair, engine, found) if found is not None else gr.skip()
        yield [gr.skip(), gr.skip(), measured, *job_buttons(COSTS, busy=False)]


def after_sweep(found: Sweep, pair: ModelPair, measured: PairCosts | None) -> _SweepUpdate:
    """Return updates after a sweep: its recommendation, and the costs and acceptance that predictions need."""
    best, costs, alpha = found.recommendation.candidate, None, None
    if found.costs is not None:
        costs = PairCosts(pair, found.settings.engine, found.costs)
        costs = measured if measured is not None and measured.richer_than(costs) else costs
    if found.acceptance is not None and found.settings.strategy.drafter.sources == (
        "model",
    ):  # predictions are for a draft model
        alpha = round(found.acceptance, 2)
    return _SweepUpdate(
        best=best,
        use=gr.update(visible=best is not None, value=f"Use {best.name} in Compare" if best is not None else ""),
        measured=gr.skip() if costs is None else costs,
        alpha=gr.skip() if alpha is None else alpha,
    )


def reset_for(pair: ModelPair, prompts: str) -> list[Any]:
    """Return updates for another pair: its own examples, unless the visitor wrote prompts; all else is cleared."""
    untouched = prompts in map(examples, get_args(Prompts))
    suited = examples(pair.target.prompts) if untouched else gr.skip()
    return [suited, "", _EMPTY, None, gr.update(visible=False), "", _EMPTY, None, ALPHA, *AS_MEASURED]


def examples(kind: Prompts) -> str:
    """Return three examples of a kind, one per line."""
    return "\n".join(bundled_prompts(kind)[:3])


def update_prediction(measured: PairCosts | None, acceptance: float, draft: float, growth: float) -> Any:
    """Return the board's prediction alone, which follows the sliders."""
    return gr.skip() if measured is None else prediction_board(measured, acceptance, WhatIf(draft, growth))


def update_costs(measured: PairCosts | None, acceptance: float, draft: float, growth: float) -> Any:
    """Return the whole board: measured costs and their predictions."""
    return gr.skip() if measured is None else costs_board(measured, acceptance, WhatIf(draft, growth))


CHARTS = ("speedup", "policies", "acceptance", "shares")


class _Sweeping(NamedTuple):
    """Options, buttons and board of the sweep."""

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
    """Buttons and board of the step costs, and the assumptions of predictions."""

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
    session_open: gr.State,
    pair: gr.State,
    first: ModelPair,
    compare: CompareTab,
    stop: Callable[[str], Stop],
) -> None:
    """Build the tab. A sweep uses the Compare tab's settings, except those that it varies."""
    callbacks, controls = TuneCallbacks(sessions), compare.controls
    with gr.Tab("Tune"):
        measured, best = gr.State(None), gr.State(None)
        swept, costs = _sweeping(first), _step_costs()
    assumed = [measured, costs.alpha, costs.draft, costs.growth]
    chosen = [swept.prompts, swept.longest, swept.thresholds, swept.repeats]
    sweeping = on_engine(
        swept.start,
        callbacks.sweep,
        [session_open, pair, *chosen, measured, *controls.values()],
        [swept.message, swept.board, best, swept.use, measured, costs.alpha, swept.start, swept.halt],
    )
    measuring = on_engine(
        costs.measure,
        callbacks.costs,
        [session_open, pair, controls["engine"], costs.alpha],
        [costs.message, costs.board, measured, costs.measure, costs.halt],
    )
    for event in (sweeping, measuring):  # a separate event, so that the board uses the acceptance at that moment
        event.then(update_costs, assumed, costs.board, **PRIVATE)
    swept.halt.click(stop("sweep"), **PRIVATE)
    costs.halt.click(stop("costs"), **PRIVATE)
    swept.use.click(apply_setting, best, [controls[name] for name in APPLIED], **PRIVATE).then(
        None, js=script("main.js", "openCompare")
    )
    _connect_assumptions(costs, assumed)
    of_a_pair = [swept.prompts, swept.message, swept.board, best, swept.use, costs.message, costs.board, *assumed]
    pair.change(reset_for, [pair, swept.prompts], of_a_pair, **PRIVATE)


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
    """Predict again when an assumption changes."""
    moved = [slider.input for slider in (costs.alpha, costs.draft, costs.growth)]
    gr.on(moved, update_prediction, assumed, costs.board, trigger_mode="always_last", **PRIVATE)
    for button, what_if in zip(costs.presets, WHAT_IFS.values(), strict=True):
        chosen = button.click(partial(list, what_if), outputs=[costs.draft, costs.growth], **PRIVATE)
        chosen.then(update_prediction, assumed, costs.board, **PRIVATE)


def _what_if() -> tuple[gr.Slider, gr.Slider, list[gr.Button]]:
    """Build sliders for what-if step costs, and buttons that preset them."""
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
