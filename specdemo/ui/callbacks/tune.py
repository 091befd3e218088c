"""What the Tune tab's widgets call."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, get_args

import gradio as gr

from specdemo.analysis.predict import AS_MEASURED, Imagined
from specdemo.errors import SpecdemoError
from specdemo.experiments.sweep import LOOKAHEADS, THRESHOLDS, Sweep, candidates, sweep
from specdemo.measure.step_costs import contexts_task
from specdemo.models.pairs import bundled_prompts
from specdemo.progress import Progress
from specdemo.records import Costs, ModelPair, Prompts
from specdemo.ui.boards.report import board as board_of
from specdemo.ui.boards.report import result_board
from specdemo.ui.boards.step_costs import KnownCosts, costs_board, prediction_board
from specdemo.ui.callbacks import check_known
from specdemo.ui.controls import NAMES, settings_from
from specdemo.ui.html.parts import alert, notice
from specdemo.ui.jobs import measured, working
from specdemo.ui.session import Sessions
from specdemo.worker import WithEngine

SWEEP, COSTS = "Sweep", "Measure step costs"
ALPHA = 0.7  # until a sweep has measured it
_EMPTY = board_of({}, {})


class _Swept(NamedTuple):
    """Updates of what a sweep changes, except its buttons."""

    message: Any = gr.skip()
    board: Any = gr.skip()
    best: Any = gr.skip()
    use: Any = gr.skip()
    known: Any = gr.skip()
    alpha: Any = gr.skip()


class Callbacks:
    """What the buttons that measure call: widget values in, updates out."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def sweep(
        self,
        request: gr.Request,
        known_visitor: bool,
        pair: ModelPair,
        text: str,
        longest: int,
        thresholds: bool,
        repeats: int,
        known: KnownCosts | None,
        *values: Any,
    ) -> Iterator[list[Any]]:
        """Sweep; updates of message, board, recommendation, its button, costs, acceptance, and buttons."""
        check_known(known_visitor)
        idle, busy = working(SWEEP, busy=False), working(SWEEP, busy=True)
        prompts = [line.strip() for line in text.splitlines() if line.strip()]
        if not prompts:
            yield [*_Swept(notice("Enter at least one prompt, one per line.")), *idle]
            return
        try:
            settings = settings_from(pair, dict(zip(NAMES, values, strict=True)))
            tried = candidates(pair, settings, LOOKAHEADS[: int(longest)], THRESHOLDS if thresholds else ())
        except SpecdemoError as error:
            yield [*_Swept(alert(error)), *idle]
            return
        work = partial(sweep, prompts=prompts, settings=settings, tried=tried, repeats=int(repeats))
        # clears the figures of an earlier sweep with other settings
        yield [*_Swept(notice("Waiting for the machine …"), _EMPTY, None, gr.update(visible=False)), *busy]
        state = None
        for update in measured(
            self._sessions,
            str(request.session_hash),
            "sweep",
            WithEngine(settings.engine, pair, work),
            lambda progress: result_board(progress.found),
        ):
            state = update.state
            yield [*_Swept(update.message, update.board), *busy]
        yield [*(_Swept() if state is None else after_sweep(state.found, pair, known)), *idle]

    def costs(
        self, request: gr.Request, known_visitor: bool, pair: ModelPair, engine: Any, acceptance: float
    ) -> Iterator[list[Any]]:
        """Measure step costs; updates of message, board, costs, and buttons."""
        check_known(known_visitor)

        def show(progress: Progress[Costs | None]) -> Any:
            if progress.found is None:
                return gr.skip()
            return costs_board(KnownCosts(pair, engine, progress.found), acceptance)

        job = WithEngine(engine, pair, contexts_task)
        yield [notice("Waiting for the machine …"), gr.skip(), gr.skip(), *working(COSTS, busy=True)]
        state = None
        for update in measured(self._sessions, str(request.session_hash), "costs", job, show):
            state = update.state
            yield [update.message, update.board, gr.skip(), *working(COSTS, busy=True)]
        found = state.found if state is not None else None
        known = KnownCosts(pair, engine, found) if found is not None else gr.skip()
        yield [gr.skip(), gr.skip(), known, *working(COSTS, busy=False)]


def after_sweep(found: Sweep, pair: ModelPair, known: KnownCosts | None) -> _Swept:
    """What the rest of the tab learns from a sweep: its recommendation, and what predictions need."""
    best, costs, alpha = found.recommendation.candidate, None, None
    if found.costs is not None:
        costs = KnownCosts(pair, found.settings.engine, found.costs)
        costs = known if known is not None and known.richer_than(costs) else costs
    if found.acceptance is not None and found.settings.strategy.drafter.sources == (
        "model",
    ):  # predictions are for a draft
        alpha = round(found.acceptance, 2)
    return _Swept(
        best=best,
        use=gr.update(visible=best is not None, value=f"Use {best.name} in Compare" if best is not None else ""),
        known=gr.skip() if costs is None else costs,
        alpha=gr.skip() if alpha is None else alpha,
    )


def begun(pair: ModelPair, prompts: str) -> list[Any]:
    """For another pair: its own examples, unless the visitor wrote something; nothing else is known about it."""
    untouched = prompts in map(examples, get_args(Prompts))
    suited = examples(pair.target.prompts) if untouched else gr.skip()
    return [suited, "", _EMPTY, None, gr.update(visible=False), "", _EMPTY, None, ALPHA, *AS_MEASURED]


def examples(kind: Prompts) -> str:
    """Three examples of a kind, one per line."""
    return "\n".join(bundled_prompts(kind)[:3])


def predicted(known: KnownCosts | None, acceptance: float, draft: float, growth: float) -> Any:
    """The board's prediction alone, which follows the sliders."""
    return gr.skip() if known is None else prediction_board(known, acceptance, Imagined(draft, growth))


def all_costs(known: KnownCosts | None, acceptance: float, draft: float, growth: float) -> Any:
    """The whole board."""
    return gr.skip() if known is None else costs_board(known, acceptance, Imagined(draft, growth))
