"""The tabs of experiments: options, a board that fills while one runs, and reports to download."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
from markupsafe import Markup

from specdemo.errors import SpecdemoError
from specdemo.experiments import (
    KINDS,
    Checkpoint,
    Extras,
    Header,
    Kind,
    Option,
    Report,
    Result,
    report_against,
    run,
    run_with_extras,
    write,
)
from specdemo.models.places import own_cache, writable
from specdemo.records import ModelPair, Progress
from specdemo.ui.boards import EMPTY, report_board, report_template
from specdemo.ui.events import PRIVATE, WAITING, Stop, check_session, job_buttons, job_updates, on_engine
from specdemo.ui.parts import alert, notice
from specdemo.ui.session import Sessions
from specdemo.ui.uploads import benchmark_apart, meanwhile, tasks_apart
from specdemo.ui.views import heading, view
from specdemo.worker import WithLoader

_SUITE = Markup(
    "<p>Prompts: {}. Your own file holds one JSON object per line, in the format of Spec-Bench, SPEED-Bench or "
    "HumanEval, or <code>{{&quot;prompt&quot;: …}}</code>.</p>"
)
_CHECKPOINTS = 50  # unfinished runs to keep; older ones are deleted


class ExperimentCallbacks:
    """Callback that runs an experiment: widget values in, updates out."""

    def __init__(self, sessions: Sessions, kind: Kind) -> None:
        self._sessions, self._kind = sessions, kind

    def measure(
        self,
        request: gr.Request,
        session_open: bool,
        pair: ModelPair,
        file: str | None,
        other: str | None,
        limit: int,
        repeats: int,
        tokens: int,
        extras: bool,
        *values: Any,
    ) -> Iterator[list[Any]]:
        """Measure; yield updates of message, board, files and buttons."""
        check_session(session_open)
        kind, idle = self._kind, job_buttons(self._kind.start, busy=False)
        options = [option for option in kind.options if option.choices is not None]
        try:
            chosen = {option.name: given(option, pair, value) for option, value in zip(options, values, strict=True)}
            empty = [option.title.lower() for option in options if chosen[option.name] == []]
            if empty:
                message = notice(f"Choose at least one of {' and '.join(empty)}.")
                yield [message, gr.skip(), gr.skip(), *idle]
                return
            settings = kind.begin(pair, max_new_tokens=int(tokens))
            waiting = [
                notice("Reading the prompts …"),
                *[gr.skip()] * 4,
            ]
            tasks = yield from meanwhile(
                tasks_apart(file, pair.target.prompts, int(limit), turns=kind.turns), waiting
            )
            baseline = None if other is None else (yield from meanwhile(benchmark_apart(other), waiting))
            plan = kind.plan(pair, tasks, settings, repeats=int(repeats), **chosen)
            plan.check()
            checkpoint = checkpoint_of(plan.header, kind.name)
        except SpecdemoError as error:
            yield [alert(error), gr.skip(), gr.skip(), *idle]
            return
        work = partial(run_with_extras if extras else run, plan, checkpoint=checkpoint)
        visitor, job = str(request.session_hash), WithLoader(pair, work)
        busy = job_buttons(kind.start, busy=True)
        yield [notice(WAITING), gr.skip(), gr.update(visible=False), *busy]
        report_of = partial(report_against, there=None if baseline is None else (baseline, Path(other or "").name))
        state = None
        for update in job_updates(self._sessions, visitor, kind.name, job, partial(_shown, report_of=report_of)):
            state = update.state
            yield [update.message, update.board, gr.skip(), *busy]
        if state is None or not state.result.measured:
            yield [gr.skip(), gr.skip(), gr.skip(), *idle]
            return
        try:
            with TemporaryDirectory() as folder:
                paths = write(report_of(state.result), Path(folder) / f"specdemo-{kind.name}.json")
                if state.result.complete:
                    checkpoint.delete()
                files = gr.update(value=list(map(str, paths)), visible=True)
                yield [gr.skip(), gr.skip(), files, *idle]  # Gradio copies them before it asks for more
        except SpecdemoError as error:
            yield [alert(error), gr.skip(), gr.skip(), *idle]


def _shown(progress: Progress[Any], report_of: Callable[[Result], Report]) -> str:
    return report_board(report_of(progress.result)) if progress.result.measured else EMPTY


def given(option: Option, pair: ModelPair, values: Sequence[str]) -> list[Any]:
    """Return the ticked values as the plan expects them, in the order of the choices."""
    offered = option.choices(pair) if option.choices is not None else ()
    return [value for value in offered if str(value) in values] or ([] if offered else list(option.default))


def checkpoint_of(header: Header, folder: str) -> Checkpoint:
    """Return the checkpoint that keeps this run's finished rows until it is complete, so that it can resume.

    Raises:
        SpecdemoError: nothing can be written there.
    """
    place = writable(own_cache() / "experiments" / folder, "Finished rows")
    for old in sorted(place.glob("*.rows.jsonl"), key=_changed, reverse=True)[_CHECKPOINTS:]:
        old.unlink(missing_ok=True)
    header = header.model_copy(update={"methods": tuple(sorted(header.methods))})  # regardless of tick order
    return Checkpoint(place / f"{hashlib.sha256(header.model_dump_json().encode()).hexdigest()[:16]}.rows.jsonl")


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # finished in the meantime
        return 0


def experiment_tabs(
    sessions: Sessions, session_open: gr.State, pair: gr.State, first: ModelPair, stop: Callable[[str], Stop]
) -> None:
    """Build the tabs, one for each kind; kinds with the same label share one."""
    for label, kinds in groupby(KINDS, lambda kind: kind.tab):
        with gr.Tab(label):
            for kind in kinds:
                experiment(kind, sessions, session_open, pair, first, stop)


def experiment(
    kind: Kind,
    sessions: Sessions,
    session_open: gr.State,
    pair: gr.State,
    first: ModelPair,
    stop: Callable[[str], Stop],
) -> None:
    """Build the widgets of one kind, its board and its files."""
    name = kind.name
    with gr.Column(elem_classes="sheet", elem_id=name):
        heading(kind.title, kind.explanation)
        options = [option for option in kind.options if option.choices is not None]
        with gr.Row(elem_classes="controls"):
            groups = [gr.CheckboxGroup(elem_id=option.name, **_offered(option, first)) for option in options]
        with gr.Row(elem_classes="controls"):
            numbers = _amounts(kind)
            extras = gr.Checkbox(False, elem_id=f"{name}-extras", **_labels(kind.extras))
        with gr.Row(elem_classes="actions"):
            start = gr.Button(kind.start, variant="primary", elem_id=f"run-{name}", scale=0, min_width=200)
            halt = gr.Button("Stop", variant="stop", elem_id=f"stop-{name}", visible=False, scale=0)
            file = gr.UploadButton(
                "Your own prompts", file_types=[".jsonl", ".json"], elem_id=f"{name}-suite", scale=0, min_width=220
            )
            other = gr.UploadButton(
                "Compare with",
                file_types=[".json"],
                elem_id=f"{name}-against",
                scale=0,
                min_width=160,
                visible=kind.compares,
            )
        suite = gr.HTML(suite_name(None), elem_id=f"{name}-suite-name")
        against = gr.HTML(elem_id=f"{name}-against-name", visible=kind.compares)
        message = gr.HTML(elem_id=f"{name}-message", elem_classes="message")
    board = view("board", markup=report_template(kind.charts, kind.tables), elem_id=f"{name}-board")
    files = gr.File(
        label="Reports: JSON, Markdown, CSV, and HTML that opens offline", visible=False, elem_id=f"{name}-reports"
    )
    file.upload(suite_name, file, suite, **PRIVATE)
    other.upload(other_name, other, against, **PRIVATE)
    inputs = [session_open, pair, file, other, *numbers, extras, *groups]
    outputs = [message, board, files, start, halt]
    on_engine(start, ExperimentCallbacks(sessions, kind).measure, inputs, outputs)
    halt.click(stop(name), **PRIVATE)
    if groups:
        pair.change(lambda used: [gr.update(**_offered(option, used)) for option in options], pair, groups, **PRIVATE)


def _offered(option: Option, pair: ModelPair) -> Mapping[str, Any]:
    choices = option.choices(pair) if option.choices is not None else ()
    first = option.first(pair) if option.first is not None else choices
    return {
        "choices": list(map(str, choices)),
        "value": list(map(str, first)),
        "label": option.title,
        "info": option.help,
        "visible": bool(choices),
    }


def _labels(extras: Extras | None) -> dict[str, Any]:
    return {"visible": False} if extras is None else {"label": extras.title, "info": extras.info}


def _amounts(kind: Kind) -> list[gr.Slider]:
    """Build sliders for numbers of prompts, repeats and new tokens."""
    name = kind.name
    return [
        gr.Slider(
            1,
            *kind.prompts,
            step=1,
            label="Prompts",
            info="at most, taken from all tasks in turn",
            elem_id=f"{name}-limit",
        ),
        gr.Slider(1, *kind.repeats, step=1, label="Repeats", info=kind.why, elem_id=f"{name}-repeats"),
        gr.Slider(8, *kind.tokens, step=8, label="New tokens", info="of each run, at most", elem_id=f"{name}-tokens"),
    ]


def other_name(path: str | None) -> str:
    """Return the name of the benchmark to compare with, as HTML; empty without one."""
    return str(Markup("<p>Compared with: {}.</p>").format(Path(path).name)) if path else ""


def suite_name(path: str | None) -> str:
    """Return the name of the suite in use, as HTML."""
    return str(_SUITE.format(Path(path).name if path else "the bundled suite"))
