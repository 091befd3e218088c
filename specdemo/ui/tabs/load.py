"""The Load tab: both sides with several requests in flight, and where speculation stops paying."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from specdemo.bench.load.plan import LEVELS, REPEATS, LoadPlan, has_lookahead
from specdemo.bench.load.report import report_of
from specdemo.bench.load.run import load_and_memory, load_run
from specdemo.bench.suites import chosen_tasks
from specdemo.errors import SpecdemoError
from specdemo.models.pairs import begun
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import CONCURRENT
from specdemo.ui.callbacks import check_known
from specdemo.ui.controls import first_drafter
from specdemo.ui.events import PRIVATE, Stop
from specdemo.ui.html.messages import alert, notice
from specdemo.ui.reports import Range, actions, amounts, journal_of, refused, reported, results
from specdemo.ui.session import Sessions
from specdemo.ui.views import heading
from specdemo.worker import WithLoader

_START = "Measure under load"
_LOOKAHEADS = (1, 2, 3, 4, 5, 6, 8)
_FIRST_LEVELS = 4  # the lowest ones: eight at once takes a minute or two


class Callbacks:
    """What the button that runs it calls: widget values in, updates out."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def load(
        self,
        request: gr.Request,
        known: bool,
        pair: ModelPair,
        file: str | None,
        levels: list[str],
        lookaheads: list[str],
        limit: int,
        repeats: int,
        tokens: int,
        memory: bool,
    ) -> Iterator[list[Any]]:
        """Measure; updates of message, board, files and buttons."""
        check_known(known)
        try:
            settings = _settings(pair, max_new_tokens=int(tokens))
            if not levels or (has_lookahead(settings) and not lookaheads):
                yield refused(notice("Choose at least one number of requests and one lookahead."), _START)
                return
            plan = LoadPlan(
                pair,
                chosen_tasks(Path(file) if file else None, pair.target.prompts, int(limit)),
                settings,
                levels=sorted(map(int, levels)),
                lookaheads=sorted(map(int, lookaheads)) if has_lookahead(settings) else (),
                repeats=int(repeats),
            )
            journal = journal_of(plan.header, "loads")
        except SpecdemoError as error:
            yield refused(alert(error), _START)
            return
        work = partial(load_and_memory if memory else load_run, plan=plan, journal=journal)
        yield from reported(
            self._sessions,
            str(request.session_hash),
            "crowd",
            WithLoader(pair, work),
            journal,
            report_of,
            start=_START,
            name="specdemo-load",
        )


def load_tab(
    sessions: Sessions, known: gr.State, pair: gr.State, first: ModelPair, stop: Callable[[str], Stop]
) -> None:
    """The tab's contents."""
    callbacks = Callbacks(sessions)
    with gr.Tab("Load"):
        with gr.Column(elem_classes="sheet", elem_id="load"):
            heading(
                "Several requests at once",
                "The same requests, decoded plainly and speculatively with more and more of them in flight: "
                "speculation gains less the larger the batch, and at some size it costs throughput. A stopped run "
                "keeps its finished blocks and resumes from there.",
            )
            with gr.Row(elem_classes="controls"):
                levels = gr.CheckboxGroup(
                    list(map(str, LEVELS)),
                    value=list(map(str, LEVELS[:_FIRST_LEVELS])),
                    label="Requests in flight",
                    info="1 is always measured",
                    elem_id="levels",
                )
                lookaheads = gr.CheckboxGroup(
                    list(map(str, _LOOKAHEADS)),
                    value=_first_lookahead(first),
                    visible=has_lookahead(_settings(first)),
                    label="Lookaheads",
                    info="choose several to compare them",
                    elem_id="lookaheads",
                )
            with gr.Row(elem_classes="controls"):
                numbers = amounts(
                    "load",
                    prompts=Range(32, 8),
                    repeats=Range(12, REPEATS),
                    tokens=Range(256, 64),
                    of="request",
                    why="6 or more give an interval",
                )
                memory = gr.Checkbox(
                    False,
                    label="Memory",
                    info="loads each side again, in a separate process",
                    elem_id="load-memory",
                )
            act = actions("load", _START)
        results(
            act,
            callbacks.load,
            [known, pair, act.file, levels, lookaheads, *numbers, memory],
            stop("crowd"),
        )
    pair.change(
        lambda used: gr.update(value=_first_lookahead(used), visible=has_lookahead(_settings(used))),
        pair,
        lookaheads,
        **PRIVATE,
    )


def _settings(pair: ModelPair, **changes: Any) -> GenerationSettings:
    """The settings that the pair begins with, on an engine that serves several requests at once."""
    here = {} if pair.target.server is not None else {"engine": CONCURRENT[0], "policy": "constant"}
    return begun(pair.target, drafter=first_drafter(pair), **here | changes)


def _first_lookahead(pair: ModelPair) -> list[str]:
    begins = _settings(pair).num_assistant_tokens
    return [str(min(_LOOKAHEADS, key=lambda lookahead: abs(lookahead - begins)))]
