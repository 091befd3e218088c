"""The Tune tab: what steps cost here, what that lets one expect, and which setting is fastest by measurement."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gradio as gr

from specdemo.costs import contexts_task
from specdemo.errors import SpecdemoError
from specdemo.models.pairs import bundled_prompts
from specdemo.recommendation import Candidate
from specdemo.records import Costs, ModelPair
from specdemo.sweep import LOOKAHEADS, REPEATS, THRESHOLDS, candidates, sweep
from specdemo.ui.compare_tab import ENGINE, PRIVATE, CompareTab, Stop
from specdemo.ui.controls import NAMES, settings_from
from specdemo.ui.measuring import measured, working
from specdemo.ui.session import Sessions, alert, notice
from specdemo.ui.tune import costs_board, prediction_board, sweep_board
from specdemo.ui.views import heading, view
from specdemo.worker import Job

_SWEEP, _COSTS = "Sweep", "Measure step costs"
_ALPHA = 0.7  # to begin with, until a sweep has measured it


class _Callbacks:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def sweep(
        self,
        request: gr.Request,
        pair: ModelPair,
        text: str,
        longest: int,
        thresholds: bool,
        repeats: int,
        *values: Any,
    ) -> Iterator[list[Any]]:
        """Sweep; updates of message, board, recommendation, its button, costs, acceptance, and buttons."""
        skips = [gr.skip()] * 4
        try:
            settings = settings_from(pair, dict(zip(NAMES, values, strict=True)))
            prompts = [line.strip() for line in text.splitlines() if line.strip()]
            if not prompts:
                yield [
                    notice("Type at least one prompt, a line each."),
                    gr.skip(),
                    *skips,
                    *working(_SWEEP, busy=False),
                ]
                return
            tried = candidates(settings, LOOKAHEADS[: int(longest)], THRESHOLDS if thresholds else ())
        except SpecdemoError as error:
            yield [alert(error), gr.skip(), *skips, *working(_SWEEP, busy=False)]
            return
        task = partial(sweep, prompts=prompts, settings=settings, tried=tried, repeats=int(repeats))
        yield [notice("Waiting for the machine …"), gr.skip(), *skips, *working(_SWEEP, busy=True)]
        state = None
        for update in measured(
            self._sessions,
            str(request.session_hash),
            "sweep",
            Job(settings.engine, pair, task),
            lambda progress: sweep_board(progress.sweep),
        ):
            state = update.state
            yield [update.message, update.board, *skips, *working(_SWEEP, busy=True)]
        if state is None:
            yield [gr.skip(), gr.skip(), *skips, *working(_SWEEP, busy=False)]
            return
        found = state.sweep
        best = found.recommendation.candidate
        use = gr.update(visible=best is not None, value=f"Use {best.name} in Compare" if best is not None else "")
        alpha = gr.skip() if found.acceptance is None else round(found.acceptance, 2)
        yield [gr.skip(), gr.skip(), best, use, found.costs or gr.skip(), alpha, *working(_SWEEP, busy=False)]

    def costs(self, request: gr.Request, pair: ModelPair, engine: Any, acceptance: float) -> Iterator[list[Any]]:
        """Measure step costs; updates of message, board, costs, and buttons."""

        def show(progress: Any) -> Any:
            return (
                costs_board(progress.costs, acceptance, _drafter(pair)) if progress.costs is not None else gr.skip()
            )

        job = Job("genai" if pair.eagle3 else engine, pair, contexts_task)
        yield [notice("Waiting for the machine …"), gr.skip(), gr.skip(), *working(_COSTS, busy=True)]
        state = None
        for update in measured(self._sessions, str(request.session_hash), "costs", job, show):
            state = update.state
            yield [update.message, update.board, gr.skip(), *working(_COSTS, busy=True)]
        known = state.costs if state is not None and state.costs is not None else gr.skip()
        yield [gr.skip(), gr.skip(), known, *working(_COSTS, busy=False)]


def tune_tab(sessions: Sessions, pair: gr.State, compare: CompareTab, stop: Callable[[str], Stop]) -> None:
    """The tab's contents. Sweeps use the settings of the Compare tab, but for what they try."""
    callbacks, controls = _Callbacks(sessions), compare.controls
    with gr.Tab("Tune"):
        known, best = gr.State(None), gr.State(None)
        with gr.Column(elem_classes="sheet", elem_id="tune"):
            heading(
                "The fastest setting for your prompts, here",
                "Every setting runs between two plain runs, in shuffled order. Engine, drafter, sampling and new "
                "tokens are those of the Compare tab.",
            )
            prompts = gr.Textbox(
                "\n".join(bundled_prompts()[:3]), label="Prompts, one a line", lines=3, elem_id="sweep-prompts"
            )
            with gr.Row(elem_classes="controls"):
                longest = gr.Slider(1, LOOKAHEADS[-1], 8, step=1, label="Longest lookahead", elem_id="longest")
                repeats = gr.Slider(1, 10, REPEATS, step=1, label="Repeats", elem_id="repeats")
                thresholds = gr.Checkbox(True, label="Try confidence thresholds", elem_id="thresholds")
            with gr.Row(elem_classes="actions"):
                start = gr.Button(_SWEEP, variant="primary", elem_id="sweep", scale=0, min_width=160)
                halt = gr.Button("Stop", variant="stop", elem_id="stop-sweep", visible=False, scale=0)
                use = gr.Button(elem_id="apply", visible=False, scale=0, min_width=260)
            message = gr.HTML(elem_id="sweep-message", elem_classes="message")
        board = view("tune.html", "new Board(element)", elem_id="sweep-board")
        with gr.Column(elem_classes="sheet", elem_id="costs"):
            heading(
                "Why: what steps cost on this machine",
                "A draft step costs c plain steps, a pass over n tokens v(n). With the acceptance rate α they tell "
                "what to expect of each lookahead.",
            )
            with gr.Row(elem_classes="actions"):
                measure = gr.Button(_COSTS, elem_id="measure", scale=0, min_width=200)
                halt_costs = gr.Button("Stop", variant="stop", elem_id="stop-costs", visible=False, scale=0)
            costs_message = gr.HTML(elem_id="costs-message", elem_classes="message")
            alpha = gr.Slider(
                0,
                1,
                _ALPHA,
                step=0.01,
                label="Acceptance rate α",
                elem_id="alpha",
                info="of a proposal by itself: accepted / (accepted + rejected); a sweep sets it to what it found",
            )
        costs_view = view("costs.html", "new Board(element)", elem_id="costs-board")

    busy: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", **ENGINE}
    start.click(
        callbacks.sweep,
        [pair, prompts, longest, thresholds, repeats, *controls.values()],
        [message, board, best, use, known, alpha, start, halt],
        **busy,
    )
    halt.click(stop("sweep"), **PRIVATE)
    measure.click(
        callbacks.costs,
        [pair, controls["engine"], alpha],
        [costs_message, costs_view, known, measure, halt_costs],
        **busy,
    )
    halt_costs.click(stop("costs"), **PRIVATE)
    alpha.change(_predicted, [pair, known, alpha], costs_view, trigger_mode="always_last", **PRIVATE)
    known.change(_all_costs, [pair, known, alpha], costs_view, **PRIVATE)
    chosen = [controls[name] for name in _APPLIED]
    use.click(_applied, best, chosen, **PRIVATE).then(
        None, js="() => document.querySelector('button[role=tab]').click()"
    )
    pair.change(_forgotten, outputs=[best, use, known], **PRIVATE)


_APPLIED = ("policy", "num_assistant_tokens", "assistant_confidence_threshold")


def _applied(best: Candidate | None) -> list[Any]:
    """Values of the Compare tab's controls for the recommended setting."""
    return [gr.skip() if best is None else getattr(best.settings, name) for name in _APPLIED]


def _forgotten() -> list[Any]:
    """Another pair: nothing is known of it."""
    return [None, gr.update(visible=False), None]


def _drafter(pair: ModelPair) -> Any:
    return "model" if pair.draft is not None else "lookup"


def _predicted(pair: ModelPair, costs: Costs | None, acceptance: float) -> Any:
    return gr.skip() if costs is None else prediction_board(costs, acceptance, _drafter(pair))


def _all_costs(pair: ModelPair, costs: Costs | None, acceptance: float) -> Any:
    return gr.skip() if costs is None else costs_board(costs, acceptance, _drafter(pair))
