"""One button on the Compare tab: it sweeps the prompt at hand, sets what was fastest, and says what that gained."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import gradio as gr

from specdemo.errors import SpecdemoError
from specdemo.experiments.sweep import candidates, sweep
from specdemo.experiments.sweep_result import Candidate, Sweep, within_error
from specdemo.presentation.figures import percent
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.ui.controls import NAMES, settings_from
from specdemo.ui.events import ENGINE, PRIVATE, QUIET, Stop, check_session, job_buttons, job_updates
from specdemo.ui.parts import alert, notice
from specdemo.ui.session import Sessions, with_chat_cache
from specdemo.ui.tabs.compare import APPLIED, FIND, QUICK, CompareTab, apply_setting
from specdemo.worker import WithEngine

_LOOKAHEADS = (1, 2, 3, 4, 5, 6, 8, 10)
_THRESHOLDS = (0.3, 0.6)
_REPEATS = 2
_SECONDS = 30
_TOKENS = 64  # at most, of each run


class Outcome(NamedTuple):
    """The setting to apply, if another one than the present is clearly faster; and what to say."""

    candidate: Candidate | None
    sentence: str


class Finder:
    """What the button calls: widget values in, updates out."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def find(
        self, request: gr.Request, known: bool, pair: ModelPair, prompt: str, effort: str, *values: Any
    ) -> Iterator[list[Any]]:
        """Sweep the prompt, as long as the effort says; updates of message, both buttons, and the controls."""
        check_session(known)
        idle, busy = job_buttons(FIND, busy=False), job_buttons(FIND, busy=True)
        unchanged = apply_setting(None)
        try:
            settings = settings_from(pair, dict(zip(NAMES, values, strict=True)))
            shorter = settings.model_copy(update={"max_new_tokens": min(settings.max_new_tokens, _TOKENS)})
            tried = with_present(candidates(pair, shorter, _LOOKAHEADS, _THRESHOLDS), shorter)
        except SpecdemoError as error:
            yield [alert(error), *idle, *unchanged]
            return
        seconds = _SECONDS if effort == QUICK else None
        takes = f"Takes at most about {seconds} s" if seconds else f"Tries {len(tried)} settings; how long shows soon"
        yield [notice(f"{takes}. Waiting for the machine …"), *busy, *unchanged]
        repeats = 1 if seconds else _REPEATS
        work = partial(sweep, prompts=[prompt], settings=shorter, tried=tried, repeats=repeats, seconds=seconds)
        # as a run loads it, so that neither this nor the next run has to load it again
        job, visitor = WithEngine(settings.engine, with_chat_cache(pair, settings), work), str(request.session_hash)
        state = None
        updates = job_updates(self._sessions, visitor, "find", job, lambda progress: gr.skip(), "nothing was changed")
        for update in updates:
            state = update.state
            yield [update.message, *busy, *unchanged]
        if state is None or state.done < state.total:  # stopped, or failed: the message says so
            yield [gr.skip(), *idle, *unchanged]
            return
        candidate, sentence = outcome(state.result, shorter)
        yield [notice(sentence), *idle, *apply_setting(candidate)]


def with_present(tried: list[Candidate], settings: GenerationSettings) -> list[Candidate]:
    """These candidates, and the present setting if it is none of them."""
    if any(candidate.settings.strategy == settings.strategy for candidate in tried):
        return tried
    return [*tried, Candidate(kind="policy", name=settings.strategy.words, value=None, settings=settings)]


def outcome(found: Sweep, settings: GenerationSettings) -> Outcome:
    """What a finished sweep, which includes the present setting, says about that setting."""
    best, fresh = found.recommendation.candidate, found.fresh
    present = next((point for point in found.points if point.candidate.settings.strategy == settings.strategy), None)
    if best is None or fresh is None or fresh.speedup.low is None:
        return Outcome(None, f"{found.recommendation.sentence} Nothing was changed.")
    evidence = f"{best.name} reached {fresh.speedup} in {len(fresh.speedups)} fresh runs"
    if present is None:
        return Outcome(best, f"Set: {evidence}.")
    if best.name == present.candidate.name or within_error(present, fresh.speedup.low):
        return Outcome(None, f"Your setting is as good as any tried: {evidence}. Nothing was changed.")
    gain = fresh.speedup.middle / present.speedup.middle - 1
    return Outcome(
        best,
        f"Set: {evidence}. Before, {present.candidate.name} reached {present.speedup.middle:.2f}× in "
        f"{len(present.speedups)} runs, so decoding is about {percent(gain)} faster than with it.",
    )


def connect_find(
    sessions: Sessions, known: gr.State, pair: gr.State, compare: CompareTab, stop: Callable[[str], Stop]
) -> None:
    """Have the Compare tab's button find, and the one beside it stop that."""
    controls = compare.controls
    compare.find.start.click(
        Finder(sessions).find,
        [known, pair, compare.prompt, compare.find.effort, *controls.values()],
        [compare.message, compare.find.start, compare.find.stop, *(controls[name] for name in APPLIED)],
        **QUIET,
        **ENGINE,
    )
    compare.find.stop.click(stop("find"), **PRIVATE)
