"""specdemo from Python: what the terminal's commands measure, for scripts and notebooks.

A pair's engines run in a separate process: a crash there ends one measurement and not the notebook. Settings default
to the pair's own. Expected errors are `SpecdemoError`s whose message says what to do.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from specdemo.engines import load_engine
from specdemo.engines.base import Engine, check_prompt
from specdemo.errors import UsageError, quoted
from specdemo.experiments.plan import PRESETS, Axes
from specdemo.experiments.prompts import chosen_tasks, read_prompts
from specdemo.experiments.report import Report, build_report, write
from specdemo.experiments.rows import measure
from specdemo.exports import schema
from specdemo.exports.html import FILE_KINDS
from specdemo.files import json_file, read_bytes, write_bytes
from specdemo.models.catalogue import default_pair, default_runtime, pair_of, pair_settings, suggestion
from specdemo.models.library import draft_for, resolve
from specdemo.racing.trials import race_with_repeats
from specdemo.racing.worker import EngineFactory, Job, WithEngine, Worker, with_loader
from specdemo.records import Comparison, Costs, ModelPair, Progress, Request, Server, Servers, Slice, Turn
from specdemo.results import estimate, metrics
from specdemo.results.estimate import Speedup
from specdemo.results.figures import Figure, chart
from specdemo.results.summary import summarise
from specdemo.settings import GenerationSettings, require_effect

BEST_DRAFT = "best"  # of those on this machine, for the target
_MAX_BYTES = 2**26  # of a file with a comparison: the longest take about a tenth
_HEIGHT = 640  # pixels of a replay in a notebook


class Pair:
    """A target and its draft, and the process that runs them; `close`, or the end of a `with` block, frees both."""

    def __init__(self, models: ModelPair, *, engines: EngineFactory = load_engine) -> None:
        """`engines(name, pair)` loads an engine in the pair's process, and must be picklable."""
        self.models = models
        self._engines = engines
        self._worker: Worker | None = None

    def settings(self, **chosen: Any) -> GenerationSettings:
        """Return the pair's default settings, changed as given; without a draft, the drafter is prompt lookup."""
        return pair_settings(self.models, **chosen)

    def costs(self, on_event: Callable[[Any], None] = lambda event: None) -> Costs | None:
        """In seconds, in the default engine; None if they cannot be measured. `on_event`: see `compare`."""
        event = None
        for event in self.work(WithEngine(self.settings().engine, self.models, _costs)):
            on_event(event)
        return event if isinstance(event, Costs) else None

    def work(self, job: Job) -> Iterator[Any]:
        """Run a job in the pair's process and yield its events; closing the iterator ends it."""
        self._worker = self._worker or Worker(self._engines)
        yield from (message for message in self._worker.run(job) if message is not None)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Pair {self.models.name}>"


class Run:
    """A finished comparison of plain and speculative decoding. `comparison` is the complete record."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    @property
    def speedup(self) -> Speedup | None:
        """Plain seconds / speculative seconds for the same tokens; None if one is too short."""
        return estimate.of_comparison(self.comparison)

    @property
    def acceptance_rate(self) -> float | None:
        """α: accepted / proposed, over rounds whose proposals are known."""
        return metrics.acceptance_rate(self.comparison.speculative)

    @property
    def mean_acceptance_length(self) -> float | None:
        """τ: committed tokens / target passes."""
        return metrics.mean_acceptance_length(self.comparison.speculative)

    @property
    def identical(self) -> bool:
        return metrics.identical(self.comparison)

    def figure(self, name: str = "tokens") -> Figure:
        """Return a chart as a Plotly figure, to restyle, show or save; an unknown name's error lists all."""
        return chart(self.comparison, name)

    def to_dict(self) -> dict[str, Any]:
        return schema.to_json(self.comparison)

    def save(self, path: str | Path) -> Path:
        """Write the file that the suffix names: .json, or one to share, such as .html."""
        path = Path(path)
        kind = path.suffix.lower().removeprefix(".")
        if kind != "json" and kind not in FILE_KINDS:
            kinds = ", ".join(f".{kind}" for kind in ("json", *FILE_KINDS))
            raise UsageError(f"A run cannot be saved as {quoted(path.name)}; end the name in one of {kinds}.")
        write_bytes(json_file(self.to_dict()) if kind == "json" else FILE_KINDS[kind].make(self.comparison), path)
        return path

    def __repr__(self) -> str:
        return f"<Run: {summarise(self.comparison).headline}>"

    def _repr_html_(self) -> str:
        """Return the replay, in a frame of its own that sends no requests."""
        page = escape(FILE_KINDS["html"].make(self.comparison).decode())
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="width: 100%; height: {_HEIGHT}px"></iframe>'


def open_run(path: str | Path) -> Run:
    """Read a run from a JSON file written by the page, the terminal or `Run.save`."""
    text = read_bytes(Path(path), _MAX_BYTES, "a JSON file of a comparison")
    return Run(schema.from_text(text, "choose another file"))


def load(
    target: str | Path | None = None,
    draft: str | Path | None = BEST_DRAFT,
    *,
    models_dir: Path | None = None,
    url: str | None = None,
    plain_url: str | None = None,
    servers: Servers | None = None,
    **runtime: Any,
) -> Pair:
    """Return a pair by the names of its models, which are loaded when needed.

    A model is named as by `specdemo models list`, or by a folder or a GGUF file; a pair of the catalogue names its
    target. Default: the page's initial pair; a draft of None leaves prompt lookup. `url` and `plain_url`, or
    `servers`, take the models' place. `runtime` are runtime settings, such as `precision`.
    """
    if url is not None or plain_url is not None:
        plain, speculative = (Server(url=given) if given else None for given in (plain_url, url))
        servers = Servers(plain=plain, speculative=speculative)
    if servers is not None:
        if target is not None or draft not in (BEST_DRAFT, None):
            raise UsageError("Servers have their own models; leave target and draft out, or the servers.")
        from specdemo.engines.server.engine import server_pair  # httpx takes a quarter of a second to import

        return Pair(server_pair(servers))
    if target is None:
        return Pair(default_pair(**runtime))
    models = [resolve(target, models_dir)]
    if draft == BEST_DRAFT:
        fitting = draft_for(models[0], models_dir)
        models += [fitting] if fitting is not None else []
    elif draft is not None:
        models.append(resolve(draft, models_dir))
    return Pair(pair_of(*models, runtime=default_runtime(models[0], **runtime)))


def compare(
    pair: Pair,
    prompt: str,
    *,
    repeats: int | None = None,
    history: Sequence[Turn] = (),
    progress: bool | None = None,
    on_event: Callable[[Any], None] = lambda event: None,
    **settings: Any,
) -> Run:
    """Race plain against speculative decoding of a prompt, then repeat the race to measure the speedup.

    `repeats` narrow its interval, up to what differs between processes; None chooses their number as the page does.
    `history` holds a chat's earlier turns. `progress`: whether to show a bar; None: in terminals and notebooks.
    `on_event` is called with each `Phase`, such as loading, each `Slice` of decoded rounds, and the comparison after
    each repeat.
    """
    chosen = pair.settings(**settings)
    require_effect(settings, [chosen], _written)
    check_prompt(Request.of(prompt, chosen, tuple(history)))  # before loading, which takes a while
    work = partial(race_with_repeats, prompt=prompt, settings=chosen, history=tuple(history), number=repeats)
    last = None
    with _bar(progress, total=2 * chosen.max_new_tokens, unit="token") as bar:
        for event in pair.work(WithEngine(chosen.engine, pair.models, work, calibrate=False)):
            if isinstance(event, Comparison):
                last = event
                bar.set_description(f"measuring again, {len(event.repeats)} repeats so far")
            elif isinstance(event, Slice):
                bar.set_description("racing", refresh=False)
                bar.update(sum(len(step.committed) for step in event.rounds))
            else:
                bar.set_description(event.name)
            on_event(event)
    assert last is not None, "nobody stops the race"
    return Run(last)


def _bar(shown: bool | None, **options: Any) -> Any:
    shown = sys.stderr.isatty() or "ipykernel" in sys.modules if shown is None else shown
    return tqdm(disable=not shown, leave=False, **options)


def _written(name: str, value: Any = None) -> str:
    return name if value is None else f"{name}={value!r}"


def experiment(
    pair: Pair,
    prompts: str | Sequence[str] | Path | None = None,
    *,
    preset: str = "measure",
    limit: int | None = None,
    repeats: int | None = None,
    minutes: float | None = None,
    path: str | Path | None = None,
    progress: bool | None = None,
    on_progress: Callable[[Progress[Any]], None] = lambda state: None,
    **chosen: Any,
) -> Report:
    """Measure prompts × settings × repeats, as `specdemo measure` does, or a preset such as "tune" or "bench".

    `prompts` are texts, a `Path` to a file of prompts, or by default the bundled suite. At most `limit` of them are
    measured, and of a file never more than 10,000, from all its categories in turn; a warning names entries that are
    not prompts. `chosen` are settings, and what varies, such as `lookaheads=[2, 4]`. `path` is a .json
    file to write, with an HTML report next to it. `progress`: see `compare`. `on_progress` is called after every run.
    """
    if preset not in PRESETS:
        raise UsageError(f"There is no preset {quoted(preset)}; {suggestion(preset, [*PRESETS])}.")
    named = PRESETS[preset]
    axes = {name: tuple(chosen.pop(name)) for name in Axes.model_fields if name in chosen}
    settings = named.settings(pair.models, **chosen)
    source: Any = [prompts] if isinstance(prompts, str) else prompts
    if isinstance(source, Path):
        source = read_prompts(source)
        if source.bad:
            warnings.warn(f"Left out of {source.name}: {source.problems}.", stacklevel=2)
    tasks = chosen_tasks(source, pair.models.target.prompts, limit, named.limit)
    plan = named.plan(pair.models, tasks, settings, axes, repeats=repeats, minutes=minutes)
    require_effect(chosen, [variant.settings for variant in plan.variants.values()], _written)
    last = None
    job = partial(with_loader, pair=pair.models, work=partial(measure, plan))
    with _bar(progress, unit="run") as bar:
        for state in pair.work(job):
            if isinstance(state, Progress):
                last = state
                bar.total, bar.n = state.total, state.done
                on_progress(state)
            bar.set_description(state.doing if isinstance(state, Progress) else state.name)
    assert last is not None, "an experiment begins with a state"
    finished = build_report(last.result)
    if path is not None:
        write(finished, Path(path))
    return finished


def _costs(engine: Engine, *, stop: Callable[[], bool], costs: Costs | None) -> Iterator[Costs | None]:
    yield costs
