"""Simulated machines: races with a chosen true speedup, on a processor shared with other programs.

A step is an amount of work, and the machine's speed is a function of time alone. So a disturbance hits whichever side
happens to compute, as in a real race.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from specdemo.racing.race import SLICE_SECONDS
from specdemo.records import SIDES, Comparison, DraftToken, Round, Run, Side, Token, Trial, outcomes_from_counts
from specdemo.results import metrics
from tests.support.proposals import compared
from tests.support.scripted import ScriptedEngine


def ratio_of_seconds(comparison: Comparison) -> float:
    """Return plain / speculative seconds for the same number of new tokens."""
    tokens = metrics.common_tokens(comparison)
    return metrics.seconds_to(comparison.plain, tokens) / metrics.seconds_to(comparison.speculative, tokens)


GRID = 5e-4
DRIFT = 0.02  # random walk of the speed per second
COLD = 0.5  # extra time of a side's first step, since the other side's weights fill the caches
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Machine:
    """`load`: average share of other programs. `bursts`: mean seconds with and without another program, and the range
    of speeds meanwhile.
    """

    load: float = 0.0
    bursts: tuple[float, float, float, float] | None = None

    def speed(self, random: np.random.Generator, seconds: float) -> Floats:
        """Return the speed every `GRID` seconds; 1 if undisturbed."""
        number = int(seconds / GRID) + 1
        speed = np.exp(np.cumsum(random.normal(0, DRIFT * np.sqrt(GRID), number)))
        if self.bursts is not None:
            on, off, least, most = self.bursts
            at, busy = 0, random.random() < on / (on + off)
            while at < number:
                length = max(int(random.exponential(on if busy else off) / GRID), 1)
                if busy:
                    speed[at : at + length] *= random.uniform(least, most)
                at, busy = at + length, not busy
        return np.asarray(speed)


MACHINES = {
    "quiet": Machine(load=0.01),
    "bursts, a quarter": Machine(load=0.15, bursts=(0.1, 0.15, 0.5, 0.75)),
    "bursts, most of it": Machine(load=0.45, bursts=(0.3, 0.08, 0.3, 0.6)),
}


@dataclass
class _Clock:
    speed: Floats
    now: float = 0.0

    def __post_init__(self) -> None:
        self._done = np.concatenate([[0.0], np.cumsum(self.speed)]) * GRID
        self._times = np.arange(len(self._done)) * GRID

    def seconds(self, work: Floats) -> Floats:
        """Return the seconds of consecutive steps from now on; the first one is cold."""
        work = np.concatenate([work[:1] * (1 + COLD), work[1:]])
        ends = np.cumsum(work) + np.interp(self.now, self._times, self._done)
        return np.diff(np.interp(ends, self._done, self._times), prepend=self.now)


TOKEN = Token(id=7, text=" a")
TOKENS, LOOKAHEAD, ACCEPTANCE = 127, 3, 0.6  # decoded ones


@cache
def quiet_comparison() -> Comparison:
    return compared(ScriptedEngine())


def simulated(machine: Machine, truth: float, *, seed: int, step: float = 0.010, repeats: int = 4) -> Comparison:
    """Race with this speedup on an undisturbed machine."""
    random = np.random.default_rng(seed)
    accepted = _accepted(random, TOKENS)
    committed = np.array([count + 1 for _, count in accepted], float)
    shares = np.array([0.55 + 0.45 * proposed / LOOKAHEAD for proposed, _ in accepted])  # shorter rounds cost less
    works = {
        "plain": np.full(TOKENS, step),
        "speculative": step * committed.sum() / truth * shares / shares.sum(),
    }
    total = sum(work.sum() for work in works.values()) * (2 * repeats + 2)
    clock = _Clock(machine.speed(random, 4 * total + 1))

    def steps(side: Side) -> Floats:
        """Vary steps a little; one in a hundred takes much longer."""
        work = works[side]
        outlier = (random.random(len(work)) < 0.01) * random.exponential(0.5)
        return np.asarray(work * (np.exp(random.normal(0, 0.03, len(work))) + outlier))

    seconds = _raced({"plain": steps("plain"), "speculative": steps("speculative")}, clock)
    trials, before = list[Trial](), _alone(steps("plain"), clock) if repeats else []
    for _ in range(repeats):
        run, after = _alone(steps("speculative"), clock), _alone(steps("plain"), clock)
        trials.append(
            Trial(
                tokens=TOKENS,
                seconds=sum(run),
                plain_seconds=(sum(before) + sum(after)) / 2,
                identical=True,
                rounds=len(run),
                run_tokens=TOKENS,
                other_load=machine.load,
                plain_steps=(tuple(before), tuple(after)),
                round_steps=tuple(
                    (count + 1, proposed, seconds) for (proposed, count), seconds in zip(accepted, run, strict=True)
                ),
            )
        )
        before = after
    template, kinds = quiet_comparison(), {"plain": [(0, 0)] * TOKENS, "speculative": accepted}
    runs = {
        side: Run(
            prefill=template.plain.prefill,
            rounds=tuple(round_of(*kind, took) for kind, took in zip(kinds[side], seconds[side], strict=True)),
            finish_reason="length",
        )
        for side in SIDES
    }
    return template.model_copy(update=runs | {"repeats": tuple(trials), "other_load": machine.load})


def _accepted(random: np.random.Generator, tokens: int) -> list[tuple[int, int]]:
    """Return the proposed and accepted tokens of the rounds that decode this many tokens."""
    rounds = []
    while tokens > 0:
        proposed, accepted = min(LOOKAHEAD, tokens - 1), 0
        while accepted < proposed and random.random() < ACCEPTANCE:
            accepted += 1
        rounds.append((proposed, accepted))
        tokens -= accepted + 1
    return rounds


def _raced(works: dict[Side, Floats], clock: _Clock) -> dict[Side, list[float]]:
    """Take turns: the side that is behind computes for a slice, as in `specdemo.racing.race`."""
    done: dict[Side, list[float]] = {side: [] for side in works}
    clocks = dict.fromkeys(works, 0.0)
    while unfinished := [side for side in works if len(done[side]) < len(works[side])]:
        side = min(unfinished, key=lambda name: clocks[name])
        seconds = clock.seconds(works[side][len(done[side]) :])
        slice_ = seconds[: int(np.searchsorted(np.cumsum(seconds), SLICE_SECONDS)) + 1]
        done[side] += slice_.tolist()
        clocks[side] += slice_.sum()
        clock.now += slice_.sum()
    return done


def _alone(work: Floats, clock: _Clock) -> list[float]:
    seconds = clock.seconds(work)
    clock.now += seconds.sum()
    return [float(step) for step in seconds]


def round_of(proposed: int, accepted: int, seconds: float) -> Round:
    outcomes = outcomes_from_counts(proposed, accepted)
    return Round.model_construct(
        committed=(TOKEN,) * (accepted + 1),
        seconds=seconds,
        proposed=tuple(DraftToken.model_construct(id=7, text=" a", verdict=outcome) for outcome in outcomes),
        draft_seconds=None,
        verify_seconds=None,
    )
