"""The Benchmark tab: every way of decoding on suites of tasks, with reports to download."""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
from markupsafe import Markup

from specdemo.bench.files import write
from specdemo.bench.journal import Journal
from specdemo.bench.methods import available
from specdemo.bench.report import report_of
from specdemo.bench.results import Bench, Header
from specdemo.bench.run import REPEATS, bench, bench_and_hardware
from specdemo.bench.suites import Task, bundled_tasks, limited, read_tasks
from specdemo.errors import SpecdemoError
from specdemo.models.pairs import begun
from specdemo.models.places import own_cache, writable
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.ui.boards.benchmark import bench_board
from specdemo.ui.callbacks import check_known
from specdemo.ui.html.messages import alert, notice
from specdemo.ui.jobs import measured, working
from specdemo.ui.session import Sessions
from specdemo.ui.tabs.compare import ENGINE, PRIVATE, Stop
from specdemo.ui.views import heading, view
from specdemo.worker import WithLoader

_SUITE = Markup(
    "<p>Prompts: {}. Your own file holds one JSON object per line, in the format of Spec-Bench or HumanEval, or "
    "<code>{{&quot;prompt&quot;: …}}</code>.</p>"
)
_START = "Run the benchmark"
_JOURNALS = 50  # of benchmarks that were not finished; older ones are deleted
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
        limit: int,
        methods: list[str],
        repeats: int,
        tokens: int,
        hardware: bool,
    ) -> Iterator[list[Any]]:
        """Benchmark; updates of message, board, files and buttons."""
        check_known(known)
        idle, busy = working(_START, busy=False), working(_START, busy=True)
        try:
            settings = begun(pair.target, engine="traced", max_new_tokens=tokens)
            tasks = limited(read_tasks(Path(file)) if file else bundled_tasks(pair.target.prompts), int(limit))
            if not methods:
                yield [notice("Choose at least one method."), gr.skip(), gr.skip(), *idle]
                return
            journal = _journal(pair, settings, methods, tasks)
        except SpecdemoError as error:
            yield [alert(error), gr.skip(), gr.skip(), *idle]
            return
        run = bench_and_hardware if hardware else bench
        work = partial(
            run, pair=pair, tasks=tasks, settings=settings, methods=methods, repeats=int(repeats), journal=journal
        )
        yield [notice("Waiting for the machine …"), gr.skip(), gr.update(visible=False), *busy]
        state = None
        visitor, show = str(request.session_hash), (lambda progress: bench_board(progress.found))
        for update in measured(self._sessions, visitor, "bench", WithLoader(pair, work), show):
            state = update.state
            yield [update.message, update.board, gr.skip(), *busy]
        if state is None or not state.found.rows:
            yield [gr.skip(), gr.skip(), gr.skip(), *idle]
            return
        result: Bench = state.found
        try:
            with TemporaryDirectory() as folder:
                paths = write(report_of(result), Path(folder) / "specdemo-benchmark.json")
                if result.complete:
                    journal.delete()
                files = gr.update(value=list(map(str, paths)), visible=True)
                yield [gr.skip(), gr.skip(), files, *idle]  # Gradio copies them before it asks for more
        except SpecdemoError as error:
            yield [alert(error), gr.skip(), gr.skip(), *idle]


def _journal(pair: ModelPair, settings: GenerationSettings, methods: list[str], tasks: list[Task]) -> Journal:
    """Where finished rows of this benchmark are kept until it is complete, so that it can resume.

    Raises:
        SpecdemoError: nothing can be written there.
    """
    header = Header.of(pair, settings, sorted(methods), tasks).model_dump_json()
    folder = writable(own_cache() / "benchmarks", "Finished rows")
    for old in sorted(folder.glob("*.rows.jsonl"), key=_changed, reverse=True)[_JOURNALS:]:
        old.unlink(missing_ok=True)
    return Journal(folder / f"{hashlib.sha256(header.encode()).hexdigest()[:16]}.rows.jsonl")


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # finished meanwhile
        return 0


def bench_tab(
    sessions: Sessions, known: gr.State, pair: gr.State, first: ModelPair, stop: Callable[[str], Stop]
) -> None:
    """The tab's contents."""
    callbacks = Callbacks(sessions)
    with gr.Tab("Benchmark"):
        with gr.Column(elem_classes="sheet", elem_id="bench"):
            heading(
                "Every way of decoding, on suites of tasks",
                "Each speculative run stands between two plain runs of its engine. A stopped benchmark keeps its "
                "finished rows and resumes from there.",
            )
            methods = gr.CheckboxGroup(_ways(first), value=_chosen(first), label="Methods", elem_id="methods")
            with gr.Row(elem_classes="controls"):
                limit = gr.Slider(
                    1, 50, 5, step=1, label="Prompts", info="at most, taken from all tasks in turn", elem_id="limit"
                )
                repeats = gr.Slider(
                    1,
                    10,
                    REPEATS,
                    step=1,
                    label="Repeats",
                    info="3 or more give a standard deviation",
                    elem_id="bench-repeats",
                )
                tokens = gr.Slider(
                    8, 512, 64, step=8, label="New tokens", info="per run, at most", elem_id="bench-tokens"
                )
                hardware = gr.Checkbox(
                    False,
                    label="Memory and bandwidth",
                    info="loads each engine again, in separate processes",
                    elem_id="hardware",
                )
            with gr.Row(elem_classes="actions"):
                start = gr.Button(_START, variant="primary", elem_id="run-bench", scale=0, min_width=180)
                halt = gr.Button("Stop", variant="stop", elem_id="stop-bench", visible=False, scale=0)
                file = gr.UploadButton(
                    "Your own prompts", file_types=[".jsonl", ".json"], elem_id="suite", scale=0, min_width=220
                )
            suite = gr.HTML(_suite_name(None), elem_id="suite-name")
            message = gr.HTML(elem_id="bench-message", elem_classes="message")
        board = view("bench.html", "new Board(element)", elem_id="bench-board")
        files = gr.File(
            label="Reports: JSON, Markdown, CSV, and HTML that opens offline", visible=False, elem_id="reports"
        )
    start.click(
        callbacks.bench,
        [known, pair, file, limit, methods, repeats, tokens, hardware],
        [message, board, files, start, halt],
        show_progress="hidden",
        api_visibility="private",
        **ENGINE,
    )
    halt.click(stop("bench"), **PRIVATE)
    file.upload(_suite_name, file, suite, **PRIVATE)
    pair.change(lambda used: gr.update(choices=_ways(used), value=_chosen(used)), pair, methods, **PRIVATE)


def _suite_name(path: str | None) -> str:
    """Whose prompts are used."""
    return str(_SUITE.format(Path(path).name if path else "the bundled suite"))


def _ways(pair: ModelPair) -> list[str]:
    return list(available(pair, begun(pair.target, engine="traced")))


def _chosen(pair: ModelPair) -> list[str]:
    ways = _ways(pair)
    return [way for way in _FIRST if way in ways] or ways[:1]
