"""The Benchmark tab: every decoding strategy on suites of tasks, with reports to download."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from specdemo.bench.methods import available, widest
from specdemo.bench.plan import REPEATS, BenchPlan
from specdemo.bench.report import report_of
from specdemo.bench.run import bench, bench_and_hardware
from specdemo.bench.suites import chosen_tasks
from specdemo.errors import SpecdemoError
from specdemo.models.pairs import begun
from specdemo.records import ModelPair
from specdemo.ui.callbacks import check_known
from specdemo.ui.events import PRIVATE, Stop
from specdemo.ui.html.messages import alert, notice
from specdemo.ui.reports import Range, actions, amounts, journal_of, refused, reported, results
from specdemo.ui.session import Sessions
from specdemo.ui.views import heading
from specdemo.worker import WithLoader

_START = "Run the benchmark"
_FIRST = ("traced constant", "traced auto", "genai constant")


class Callbacks:
    """What the button that runs it calls: widget values in, updates out."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def bench(
        self,
        request: gr.Request,
        known: bool,
        pair: ModelPair,
        file: str | None,
        methods: list[str],
        limit: int,
        repeats: int,
        tokens: int,
        hardware: bool,
    ) -> Iterator[list[Any]]:
        """Benchmark; updates of message, board, files and buttons."""
        check_known(known)
        try:
            settings = begun(pair.target, engine=widest(pair), max_new_tokens=tokens)
            tasks = chosen_tasks(Path(file) if file else None, pair.target.prompts, int(limit))
            if not methods:
                yield refused(notice("Choose at least one method."), _START)
                return
            plan = BenchPlan(pair, tasks, settings, methods, int(repeats))
            ordered = tuple(sorted(methods))  # in whichever order they were ticked
            journal = journal_of(plan.header.model_copy(update={"methods": ordered}), "benchmarks")
        except SpecdemoError as error:
            yield refused(alert(error), _START)
            return
        work = partial(bench_and_hardware if hardware else bench, plan=plan, journal=journal)
        yield from reported(
            self._sessions,
            str(request.session_hash),
            "bench",
            WithLoader(pair, work),
            journal,
            report_of,
            start=_START,
            name="specdemo-benchmark",
        )


def bench_tab(
    sessions: Sessions, known: gr.State, pair: gr.State, first: ModelPair, stop: Callable[[str], Stop]
) -> None:
    """The tab's contents."""
    callbacks = Callbacks(sessions)
    with gr.Tab("Benchmark"):
        with gr.Column(elem_classes="sheet", elem_id="bench"):
            heading(
                "Every decoding strategy, on suites of tasks",
                "Each speculative run stands between two plain runs of its engine. A stopped benchmark keeps its "
                "finished rows and resumes from there.",
            )
            methods = gr.CheckboxGroup(_ways(first), value=_chosen(first), label="Methods", elem_id="methods")
            with gr.Row(elem_classes="controls"):
                numbers = amounts(
                    "bench",
                    prompts=Range(50, 5),
                    repeats=Range(10, REPEATS),
                    tokens=Range(512, 64),
                    of="run",
                    why="3 or more give a standard deviation",
                )
                hardware = gr.Checkbox(
                    False,
                    label="Memory and bandwidth",
                    info="loads each engine again, in separate processes",
                    elem_id="hardware",
                )
            act = actions("bench", _START)
        results(act, callbacks.bench, [known, pair, act.file, methods, *numbers, hardware], stop("bench"))
    pair.change(lambda used: gr.update(choices=_ways(used), value=_chosen(used)), pair, methods, **PRIVATE)


def _ways(pair: ModelPair) -> list[str]:
    return list(available(pair, begun(pair.target, engine=widest(pair))))


def _chosen(pair: ModelPair) -> list[str]:
    strategies = _ways(pair)
    return [strategy for strategy in _FIRST if strategy in strategies] or strategies[:1]
