"""The Measure tab: prompts, variants and time; and the search for the best setting in the Compare tab."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import gradio as gr

from specdemo.engines.base import Engine
from specdemo.errors import SettingsError, SpecdemoError, capitalised
from specdemo.experiments.plan import PRESETS, Plan, Variant
from specdemo.experiments.prompts import Task, chosen_tasks, read_prompts, typed_tasks
from specdemo.experiments.report import Part, build_report, conclude, write
from specdemo.experiments.rows import Result, measure, points
from specdemo.racing.worker import WithEngine, with_loader
from specdemo.records import Costs, ModelPair, Progress
from specdemo.settings import GenerationSettings
from specdemo.text import counted, percent, printable
from specdemo.ui import events
from specdemo.ui.compare import APPLIED_SETTINGS, FIND, FIND_HELP, SEARCH_MINUTES, CompareTab, apply_setting
from specdemo.ui.controls import settings_from
from specdemo.ui.parts import alert, html, notice
from specdemo.ui.registry import Shared
from specdemo.ui.session import Sessions, with_chat_cache
from specdemo.ui.views import BOARD, channel, script, view

_FILES = [".txt", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet"]
_BY_TITLE = {preset.title: name for name, preset in PRESETS.items() if name != "measure"}
START = "Measure"
EMPTY_BOARD = "[]"


def board(progress: Progress[Result]) -> str:
    if not progress.result.measured:
        return EMPTY_BOARD
    return json.dumps(build_report(progress.result).board(), ensure_ascii=False)


def variant_choices(preset: str, pair: ModelPair, **values: Any) -> dict[str, Any]:
    try:
        plan = _plan(preset, pair, [Task(name="", task="", prompt="")], 64, values)
    except SpecdemoError as error:
        return gr.update(choices=[], value=[], info=str(error))
    variants, info = [*plan.variants], capitalised(PRESETS[_BY_TITLE[preset]].help)
    return gr.update(choices=variants, value=variants, info=info)


def _plan(
    preset: str, pair: ModelPair, tasks: Sequence[Task], tokens: int, values: dict[str, Any], **options: Any
) -> Plan:
    """Plan a measurement. The search for the fastest setting keeps the other settings of the Compare tab."""
    chosen = PRESETS[_BY_TITLE[preset]]
    if chosen.name == "tune":
        settings = settings_from(pair, values | {"max_new_tokens": tokens})
    else:
        settings = chosen.settings(pair, max_new_tokens=tokens)
    return chosen.plan(pair, tasks, settings, **options)


class MeasureCallbacks:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def measure(
        self,
        request: gr.Request,
        session_open: bool,
        pair: ModelPair,
        file: str | None,
        preset: str,
        ticked: list[str],
        text: str,
        limit: int,
        tokens: int,
        minutes: float,
        **values: Any,
    ) -> Iterator[list[Any]]:
        """Yield updates of message, board, files, the fastest setting and its button, and both buttons."""
        events.check_session(session_open)
        idle, busy = events.job_buttons(START, busy=False), events.job_buttons(START, busy=True)
        unchanged = [gr.skip()] * 4
        typed = [line.strip() for line in text.splitlines() if line.strip()]
        waiting = [notice("Reading the prompts …"), *unchanged, *busy]
        reading: dict[str, Any] = {"waiting": waiting, **_READ_FAILURE}
        try:
            source: Any = typed or None
            if file is not None:
                source = yield from events.run_in_child(read_prompts, Path(file), **reading)
            tasks = chosen_tasks(source, pair.target.prompts, int(limit))
            plan = _plan(preset, pair, tasks, int(tokens), values, minutes=minutes)
            variants = {name: variant for name, variant in plan.variants.items() if name in ticked}
            if not variants:
                raise SettingsError("Choose at least one variant.")
            plan = replace(plan, variants=variants)
        except SpecdemoError as error:
            yield [alert(error), *unchanged, *idle]
            return
        size = f"{counted(len(variants), 'variant')}, {counted(len(tasks), 'prompt')}"
        started = notice(f"{size}, {minutes:g} min with loading. {events.WAITING}")
        yield [started, EMPTY_BOARD, gr.update(visible=False), None, gr.update(visible=False), *busy]
        job = partial(with_loader, pair=pair, work=partial(measure, plan, began=perf_counter()))
        steps = self._sessions.measure(str(request.session_hash), "measure", job)
        state = yield from events.job_updates(
            steps, lambda message, parts: [message, parts, *unchanged[1:], *busy], board
        )
        if state is None or not state.result.measured:
            yield [gr.skip(), *unchanged, *idle]
            return
        finished = build_report(state.result)
        best = finished.conclusion.best
        use = gr.update(visible=best is not None, value=f"Use {best} in Compare")
        setting = None if best is None else state.result.variants[best].settings
        try:
            with TemporaryDirectory() as folder:
                paths = write(finished, Path(folder) / "specdemo-measurement.json")
                files = gr.update(value=list(map(str, paths)), visible=True)
                yield [gr.skip(), gr.skip(), files, setting, use, *idle]  # Gradio copies the files before it returns
        except SpecdemoError as error:
            yield [alert(error), gr.skip(), gr.skip(), setting, use, *idle]

    def find(
        self, request: gr.Request, session_open: bool, pair: ModelPair, prompt: str, effort: str, **values: Any
    ) -> Iterator[list[Any]]:
        """Yield updates of message, result card, both buttons, and the controls."""
        events.check_session(session_open)
        idle, busy = events.job_buttons(FIND, busy=False), events.job_buttons(FIND, busy=True)
        unchanged = apply_setting(None)
        minutes = SEARCH_MINUTES[effort]
        try:
            settings = settings_from(pair, values)
            shorter = settings.model_copy(update={"max_new_tokens": min(settings.max_new_tokens, _MAX_TOKENS)})
            plan = PRESETS["tune"].plan(pair, typed_tasks([prompt]), shorter, minutes=minutes)
            plan = replace(plan, variants=with_current(plan, shorter))
        except SpecdemoError as error:
            yield [alert(error), "", *idle, *unchanged]
            return
        started = notice(f"{len(plan.variants)} settings, {60 * minutes:.0f} s with loading. {events.WAITING}")
        yield [started, "", *busy, *unchanged]
        # load the pair as for a run, so that neither this search nor the next run loads it again
        work = partial(_run_loaded, plan=plan, began=perf_counter())
        job = WithEngine(settings.engine, with_chat_cache(pair, settings), work, calibrate=False)
        steps = self._sessions.measure(str(request.session_hash), "find", job)
        state = yield from events.job_updates(
            steps, lambda message, _: [message, "", *busy, *unchanged], after_stop="nothing was changed"
        )
        if state is None or not state.result.complete:  # stopped or failed, as the message says
            yield [gr.skip(), "", *idle, *unchanged]
            return
        chosen, part = search_result(state.result, shorter)
        yield [FIND_HELP, json.dumps([part.data()], ensure_ascii=False), *idle, *apply_setting(chosen)]


_MAX_TOKENS = 64  # of a run; `measure` shortens them until every setting is tried


def _run_loaded(
    engine: Engine, *, stop: Callable[[], bool], costs: Costs | None, plan: Plan, began: float
) -> Iterator[Progress[Result]]:
    yield from measure(plan, lambda *_: engine, keep=True, stop=stop, began=began, known=costs)


def with_current(plan: Plan, settings: GenerationSettings) -> dict[str, Variant]:
    variants = dict(plan.variants)
    if all(variant.settings.strategy != settings.strategy for variant in variants.values()):
        name = settings.strategy.description
        variants[name] = Variant(name=name, values={"strategy": name}, settings=settings)
    return variants


def search_result(result: Result, settings: GenerationSettings) -> tuple[GenerationSettings | None, Part]:
    """Return the settings to apply, if they are clearly faster than these, and a part of the page that says so."""
    measured = points(result)
    conclusion = conclude(result, measured)
    by_name = {point.variant: point for point in measured}
    best = by_name.get(conclusion.best or "")
    now = next((name for name, each in result.variants.items() if each.settings.strategy == settings.strategy), "")
    current = by_name.get(now)
    title, chosen = f"Kept: {settings.strategy.description}", None
    if best is None:
        sentence = conclusion.sentence
    elif current is None:
        sentence = "There was no time to measure your setting."
    elif current is best:
        sentence = "Nothing that was tried is faster."
    elif current.speedup.high >= best.speedup.low:
        sentence = f"{capitalised(best.variant)} is not clearly faster."
    else:
        title, chosen = f"Set: {best.variant}", result.variants[best.variant].settings
        sentence = f"Decoding is now about {percent(best.speedup.ratio / current.speedup.ratio - 1)} faster."
    ranked = sorted(measured, key=lambda point: -point.speedup.ratio)
    rows = [
        (f"{point.variant}, yours before" if point is current else point.variant, str(point.speedup))
        for point in [point for point in ranked if point in (best, current)] or ranked[:2]
    ]
    remark = f"Runs of at most {result.settings.max_new_tokens} tokens with this prompt."
    missing = len(result.variants) - len(measured)
    if missing and best is not None:  # else the sentence says so
        remark += f" There was no time for {missing} of {len(result.variants)} settings."
    return chosen, Part(title, [sentence], ("setting", "speedup"), rows, remark=remark)


_PROMPTS_HINT = html("paragraph", "Prompts from the bundled suite, unless you type some or choose a file.")
_READ_FAILURE = {"what": "This file cannot be read", "otherwise": "choose one with fewer prompts"}


def preview(path: str | None) -> Iterator[list[str]]:
    if path is None:
        yield [_PROMPTS_HINT]
        return
    waiting = [notice("Reading the prompts …")]
    try:
        prompts = yield from events.run_in_child(read_prompts, Path(path), waiting=waiting, **_READ_FAILURE)
        lines = (html("paragraph", printable(line, lines=True)) for line in (*prompts.about(), *prompts.first()))
        yield ["".join(lines)]
    except SpecdemoError as error:
        yield [alert(error)]


def measure_tab(shared: Shared, compare: CompareTab) -> None:
    callbacks, controls = MeasureCallbacks(shared.sessions), compare.controls
    session_open, pair, titles = shared.session_open, shared.pair, [*_BY_TITLE]
    values = {name: control.value for name, control in controls.items()}
    at_first = variant_choices(titles[0], shared.registry.default, **values)
    with gr.Tab("Measure", id="measure"):
        with gr.Column(elem_classes="sheet", elem_id="measure-form"):
            gr.HTML("<h2>Measure</h2><p>Each speculative run stands between two plain ones; the order is random.</p>")
            preset = gr.Radio(titles, value=titles[0], label="Goal", elem_id="measure-preset")
            ticked = gr.CheckboxGroup(
                at_first["choices"],
                value=at_first["value"],
                info=at_first["info"],
                label="Variants",
                elem_id="measure-variants",
            )
            text = gr.Textbox(label="Prompts, one per line", lines=2, elem_id="measure-prompts")
            with gr.Row(elem_classes="controls"):
                limit = gr.Slider(1, 80, 3, step=1, label="Prompts of a suite", elem_id="measure-limit", buttons=[])
                tokens = gr.Slider(8, 512, 64, step=8, label="New tokens", elem_id="measure-tokens", buttons=[])
                minutes = gr.Slider(1, 60, 2, step=1, label="Minutes", elem_id="measure-minutes", buttons=[])
            with gr.Row(elem_classes="actions"):
                start = gr.Button(START, variant="primary", elem_id="measure-start", scale=0, min_width=220)
                stop_button = gr.Button("Stop", variant="stop", elem_id="measure-stop", visible=False, scale=0)
                use = gr.Button(elem_id="measure-use", visible=False, scale=0, min_width=260)
                file = gr.UploadButton(
                    "Upload prompts", file_types=_FILES, elem_id="measure-suite", scale=0, min_width=220
                )
            suite = gr.HTML(_PROMPTS_HINT, elem_id="measure-suite-name")
            message = gr.HTML(elem_id="measure-message", elem_classes="message")
        board = view("board", BOARD, elem_id="measure-board")
        files = gr.File(label="Report: JSON, and HTML that opens offline", visible=False, elem_id="measure-reports")
        best, card = gr.State(None), channel()  # not beside tabs, where Gradio miscounts them
    inputs = [session_open, pair, file, preset, ticked, text, limit, tokens, minutes]
    outputs = [message, board, files, best, use, start, stop_button]
    events.queue_for_engine(start, callbacks.measure, inputs, outputs, inputs_kwargs=controls)
    events.stop_on(stop_button.click, shared.sessions, "measure")
    file.upload(preview, file, suite, **events.PRIVATE, **events.FILES)
    gr.on(
        [preset.change, pair.change, controls["engine"].change, controls["drafter"].change],
        variant_choices,
        [preset, pair],
        ticked,
        inputs_kwargs=controls,
        **events.NO_QUEUE,
    )
    applied = [controls[name] for name in APPLIED_SETTINGS]
    used = use.click(apply_setting, best, applied, **events.NO_QUEUE)
    used.then(None, js=script("gradio.js", "openTab", '"compare"'))
    events.queue_for_engine(
        compare.find_start,
        callbacks.find,
        [session_open, pair, compare.prompt, compare.find_effort],
        [compare.find_message, card, compare.find_start, compare.find_stop, *applied],
        inputs_kwargs=controls,
    ).then(None, card, js=script("main.js", "showSearchResult"))
    events.stop_on(compare.find_stop.click, shared.sessions, "find")
