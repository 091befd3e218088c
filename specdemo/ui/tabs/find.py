"""The Compare tab's search: it sweeps the current prompt, applies the fastest setting, and reports the gain."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import gradio as gr

from specdemo.errors import SpecdemoError
from specdemo.experiments import Candidate, Sweep, candidates, sweep, within_error
from specdemo.presentation.figures import percent
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.ui.controls import NAMES, settings_from
from specdemo.ui.events import PRIVATE, WAITING, Stop, check_session, job_buttons, job_updates, on_engine
from specdemo.ui.parts import alert, notice
from specdemo.ui.session import Sessions, with_chat_cache
from specdemo.ui.tabs.compare import APPLIED, FIND, QUICK, CompareTab, apply_setting
from specdemo.worker import WithEngine

_LOOKAHEADS = (1, 2, 3, 4, 5, 6, 8, 10)
_THRESHOLDS = (0.3, 0.6)
_REPEATS = 2
_SECONDS = 30
_TOKENS = 64  # maximum per run


class Outcome(NamedTuple):
    """Setting to apply, if one is clearly faster than the current setting, and a sentence about the result."""

    candidate: Candidate | None
    sentence: str


class Finder:
    """Callback of the button: widget values in, updates out."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def find(
        self, request: gr.Request, session_open: bool, pair: ModelPair, prompt: str, effort: str, *values: Any
    ) -> Iterator[list[Any]]:
        """Sweep the prompt within the effort's time; yield updates of message, both buttons, and the controls."""
        check_session(session_open)
        idle, busy = job_buttons(FIND, busy=False), job_buttons(FIND, busy=True)
        unchanged = apply_setting(None)
        try:
            settings = settings_from(pair, dict(zip(NAMES, values, strict=True)))
            shorter = settings.model_copy(update={"max_new_tokens": min(settings.max_new_tokens, _TOKENS)})
            tried = with_current(candidates(pair, shorter, _LOOKAHEADS, _THRESHOLDS), shorter)
        except SpecdemoError as error:
            yield [alert(error), *idle, *unchanged]
            return
        seconds = _SECONDS if effort == QUICK else None
        tries = f"Tries {len(tried)} settings; the time left appears after the first runs"
        takes = f"Takes at most about {seconds} s" if seconds else tries
        yield [notice(f"{takes}. {WAITING}"), *busy, *unchanged]
        repeats = 1 if seconds else _REPEATS
        work = partial(sweep, prompts=[prompt], settings=shorter, tried=tried, repeats=repeats, seconds=seconds)
        # loaded as for a run, so that neither this nor the next run has to load it again
        job, visitor = WithEngine(settings.engine, with_chat_cache(pair, settings), work), str(request.session_hash)
        state = None
        updates = job_updates(self._sessions, visitor, "find", job, lambda progress: gr.skip(), "nothing was changed")
        for update in updates:
            state = update.state
            yield [update.message, *busy, *unchanged]
        if state is None or state.done < state.total:  # stopped or failed, as the message says
            yield [gr.skip(), *idle, *unchanged]
            return
        candidate, sentence = outcome(state.result, shorter)
        yield [notice(sentence), *idle, *apply_setting(candidate)]


def with_current(tried: list[Candidate], settings: GenerationSettings) -> list[Candidate]:
    """Add the current setting to these candidates, unless it is among them."""
    if any(candidate.settings.strategy == settings.strategy for candidate in tried):
        return tried
    return [*tried, Candidate(kind="policy", name=settings.strategy.words, value=None, settings=settings)]


def outcome(found: Sweep, settings: GenerationSettings) -> Outcome:
    """Return the outcome of a finished sweep that includes the current setting."""
    best, fresh = found.recommendation.candidate, found.fresh
    current = next((point for point in found.points if point.candidate.settings.strategy == settings.strategy), None)
    if best is None or fresh is None or fresh.speedup.low is None:
        return Outcome(None, f"{found.recommendation.sentence} Nothing was changed.")
    evidence = f"{best.name} reached {fresh.speedup} in {len(fresh.speedups)} fresh runs"
    if current is None:
        return Outcome(best, f"Set: {evidence}.")
    if best.name == current.candidate.name or within_error(current, fresh.speedup.low):
        return Outcome(None, f"Your setting is as good as any tried: {evidence}. Nothing was changed.")
    gain = fresh.speedup.middle / current.speedup.middle - 1
    return Outcome(
        best,
        f"Set: {evidence}. Before, {current.candidate.name} reached {current.speedup.middle:.2f}× in "
        f"{len(current.speedups)} runs, so decoding is now about {percent(gain)} faster.",
    )


def connect_find(
    sessions: Sessions, session_open: gr.State, pair: gr.State, compare: CompareTab, stop: Callable[[str], Stop]
) -> None:
    """Connect the Compare tab's buttons that start and stop the search."""
    controls = compare.controls
    on_engine(
        compare.find.start,
        Finder(sessions).find,
        [session_open, pair, compare.prompt, compare.find.effort, *controls.values()],
        [compare.message, compare.find.start, compare.find.stop, *(controls[name] for name in APPLIED)],
    )
    compare.find.stop.click(stop("find"), **PRIVATE)
