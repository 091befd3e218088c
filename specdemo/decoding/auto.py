"""The automatic lookahead: chooses in every round which source proposes, and how many tokens.

A round may propose what a text index found (free, by its counts), what the draft generates, token by token, or
nothing. Time has a price: ρ tokens per second, the rate of recent rounds or of plain decoding, whichever is higher. A
round is worth its expected tokens minus ρ times its seconds, as in any renewal process that maximizes its reward per
unit of time:

    copying k tokens   1 + r₁ + … + rₖ − ρ · pass(k + 1),   rᵢ the probability that the first i are all right
    drafting           tokens of the draft's recent rounds − ρ · their seconds
    nothing            1 − ρ · pass(1)

While the draft proposes, a round with k proposals, all accepted with probability R, can add m more. That takes m
draft steps and a longer pass, and commits R · (a + a² + … + aᵐ) more tokens, where a is the acceptance of further
proposals. So another proposal pays off if, for some m,

    R · (a + … + aᵐ) > ρ · (m · draft + pass(k + 1 + m) − pass(k + 1))

where m above 1 looks past a cliff in the cost of passes. R is the product of the probabilities of the proposals so
far.

Probabilities are learnt: for the draft, from its own probability and the outcomes; for copies, from counts, matched
tokens and what was committed, whichever source proposed it. All estimates are discounted, so that a change in the
text is noticed. A request starts with what was learnt while steps were timed, or with the `Experience` of earlier
requests. Without either, rounds start short and grow with each accepted proposal, since a draft can be confident and
wrong.

Passes keep their length where a shape change would cost more than padding (see `steps`), so up to that length another
proposal costs only a draft step. Whether to draft at all is therefore not decided round by round: drafting is
compared with plain decoding as if it continued, and starts if it soon earns back two shape changes. While rounds are
plain, the draft occasionally reads what was written, and is asked what it would have proposed: that teaches as much
as proposing, and changes no pass. A sampling draft cannot be asked; instead there are probes of one proposal, and one
that loses time is followed by enough plain rounds to keep probing a small share of the time.

Step costs were measured within seconds, and drift by a tenth within seconds, so measured rounds correct them, where
reported (see `CostDrift`). They are not reported when sampling, where the choice of source affects which random
numbers are drawn: this way a seed reproduces a run. Where drafting gains or loses less than the costs may be off, a
few plain rounds in between show which it is.

The constants were tuned on simulated costs with the bundled draft's proposals, as a compromise between what good
pairs lose until they are trusted and what useless ones lose until they are not.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import exp, log
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from specdemo.decoding.indexes import NO_MATCH, Match
from specdemo.decoding.steps import CostDrift, Steps, seconds_of_more, seconds_of_passes
from specdemo.records import Costs
from specdemo.strategies import Strategy

_TRUSTED = 1  # proposals per round before any was accepted; each accepted one allows two more
_ROUND_MEMORY = 0.95  # discount of a round's tokens and seconds
_PROBING = 0.015  # share of the time spent on probes, on asking the draft, and on looks at plain rounds
_STAY = 24  # rounds that drafting is assumed to last once started
_LOOK = 8  # tokens the draft is asked about at once
_REST, _LONGEST_REST = 24, 96  # plain rounds in between
_EVERY = 8  # rounds between recomputations of the prices, which take time
_DRAFT_GAIN = 1.5  # prior gain of the draft's rounds over plain decoding
_UNCOUNTED = 0.5  # a token's share of counts where nothing is counted
_SUREST = 0.95  # cap on a share of counts: few occurrences are often unanimous
_LOOK_AT_PLAIN, _ENDS = 4, 16  # plain rounds that a look times, and rounds after which it ends without them
_SOON = 8  # rounds until the first look at plain ones
_EARLIER = 10.0  # weight of earlier requests' experience, in outcomes
# offset and slope of a copy's probability over the log-odds of its share of counts: for its first token after one,
# two, and more matched tokens, and for later ones; fitted on answers of SmolLM2-135M-Instruct
_COUNTED = ((-1.4, 0.3), (-1.2, 0.6), (-0.5, 0.5), (-0.9, 0.7))
_NOT_COUNTED = ((-1.7, 0.5), (-0.6, 0.5), (0.2, 0.5), (1.4, 0.5))


_OFFSET, _SLOPE = 0.5, 0.5  # log-odds of acceptance: offset + slope · log-odds of the draft's probability
_OFFSET_VARIANCE, _SLOPE_VARIANCE = 1.0, 0.1  # initial and largest values
_DRIFT = 1.01  # growth of the variances per outcome
_SURE, _UNSURE = 0.999, 0.01  # clipping bounds of the draft's probabilities
_NO_NEWS = 0.02  # an outcome this close to the expected one teaches nothing
MEMORY = 0.98  # share of an outcome's weight that remains after the next one


@dataclass
class DiscountedMean:
    """A discounted ratio of sums, such as accepted / judged."""

    above: float
    below: float
    memory: float = MEMORY

    @property
    def value(self) -> float:
        return self.above / self.below

    def add(self, above: float, below: float) -> None:
        """Add a term, discounting all older ones."""
        self.above = above + self.memory * self.above
        self.below = below + self.memory * self.below

    def forget(self, most: float) -> None:
        """Limit the total weight to `most`."""
        share = min(most / self.below, 1.0)
        self.above, self.below = self.above * share, self.below * share

    def add_run(self, right: int, *, failed: bool) -> None:
        """Add a run of `right` successes, followed by a failure if `failed`."""
        kept = self.memory**right
        added = (1 - kept) / (1 - self.memory)
        self.above, self.below = added + kept * self.above, added + kept * self.below
        if failed:
            self.add(0, 1)


@dataclass
class OnlineLogistic:
    """An online logistic model: probability of acceptance from the log-odds of the draft's probability.

    Its line, offset + slope · log-odds, is learnt outcome by outcome with a Kalman filter.
    """

    offset: float = _OFFSET
    slope: float = _SLOPE
    var_offset: float = _OFFSET_VARIANCE
    var_slope: float = _SLOPE_VARIANCE
    covariance: float = 0.0

    def forget(self) -> None:
        """Reset the variances, keeping the curve."""
        self.var_offset, self.var_slope, self.covariance = _OFFSET_VARIANCE, _SLOPE_VARIANCE, 0.0

    def of(self, confidence: float) -> float:
        """Return the probability of acceptance at this confidence, in log-odds."""
        return 1 / (1 + exp(-(self.offset + self.slope * confidence)))

    def learn(self, confidence: float, accepted: bool) -> None:
        """Learn from the outcome on a proposal with this confidence."""
        chance = self.of(confidence)
        if abs(accepted - chance) < _NO_NEWS:  # nearly always the case with a good draft, and saves time
            return
        self._correct(confidence, accepted - chance, chance * (1 - chance))
        self.var_offset = min(self.var_offset * _DRIFT, _OFFSET_VARIANCE)
        self.var_slope = min(self.var_slope * _DRIFT, _SLOPE_VARIANCE)
        limit = 0.99 * (self.var_offset * self.var_slope) ** 0.5  # as the variances are limited, so is the covariance
        self.covariance = max(min(self.covariance * _DRIFT, limit), -limit)

    def _correct(self, x: float, gradient: float, precision: float) -> None:
        """Take a Newton step; `gradient` and `precision` are the log-likelihood's derivatives by the line's value."""
        offset = self.var_offset + self.covariance * x
        slope = self.covariance + self.var_slope * x
        gain = 1 / (1 + precision * (offset + slope * x))
        self.offset += gain * offset * gradient
        self.slope += gain * slope * gradient
        self.var_offset -= gain * precision * offset**2
        self.var_slope -= gain * precision * slope**2
        self.covariance -= gain * precision * offset * slope


def log_odds(probability: float) -> float:
    """Return the log-odds of a probability, clipped to be finite."""
    bounded = min(max(probability, _UNSURE), _SURE)
    return log(bounded / (1 - bounded))


class Timing(NamedTuple):
    """Measured seconds of a round's drafting and of its target pass."""

    draft: float
    verify: float


def needed_chances(more: npt.NDArray[np.float64], learnt: "Experience") -> list[float]:
    """Return, for each number of proposals k, the probability of all being accepted above which more pay off.

    `more` comes from `seconds_of_more`, in plain steps. Above 1, more never pays off.
    """
    gains = (learnt.later.value ** np.arange(len(more))).cumsum()
    needed = (more / gains).min(axis=1) * max(learnt.earned.value, 1)
    first, *others = needed.tolist()
    return [first / learnt.first.value, *(chance / learnt.later.value for chance in others)]


@dataclass
class Experience:
    """Learnt estimates: how likely proposals are accepted, and how many tokens rounds earn.

    Seconds are in plain steps, so estimates stay valid when the machine is slower.
    """

    chance: OnlineLogistic = field(default_factory=OnlineLogistic)
    first: DiscountedMean = field(default_factory=lambda: DiscountedMean(1.4, 2))
    later: DiscountedMean = field(default_factory=lambda: DiscountedMean(3.2, 4))
    earned: DiscountedMean = field(default_factory=lambda: DiscountedMean(1, 1, _ROUND_MEMORY))
    drafted: DiscountedMean = field(default_factory=lambda: DiscountedMean(_DRAFT_GAIN, 1, _ROUND_MEMORY))
    round_: DiscountedMean = field(default_factory=lambda: DiscountedMean(_DRAFT_GAIN, 1, _ROUND_MEMORY))
    copied: dict[str, list[OnlineLogistic]] = field(default_factory=dict)
    trusted: int = _TRUSTED

    def outcomes(self, confidences: Sequence[float], proposed: int, accepted: int) -> None:
        """Learn from a round's outcomes, up to the first rejection; confidences are log-odds."""
        for index, confidence in enumerate(confidences[: accepted + 1]):
            self.chance.learn(confidence, index < accepted)
        self.first.add(min(accepted, 1), 1)
        self.later.add_run(max(accepted - 1, 0), failed=0 < accepted < proposed)
        self.trusted += 2 * accepted

    def chances(self, match: Match) -> npt.NDArray[np.float64]:
        """Return, for each prefix of a copy, the probability that all its tokens are right."""
        found, reach = list[float](), 1.0
        for chance, confidence in zip(self._of(match), _confidences(match), strict=True):
            reach *= chance.of(confidence)
            found.append(reach)
        return np.array(found)

    def judged(self, match: Match, committed: Sequence[int]) -> None:
        """Learn from what followed a match, whichever source proposed it."""
        tokens = zip(self._of(match), _confidences(match), match.tokens, committed, strict=False)
        for chance, confidence, copied, token in tokens:
            chance.learn(confidence, copied == token)
            if copied != token:
                return

    def _of(self, match: Match) -> list[OnlineLogistic]:
        """Return the model for each token of a match: for the first, by matched tokens; one for all later ones."""
        if match.source not in self.copied:
            self.copied[match.source] = [
                OnlineLogistic(*prior) for prior in (_COUNTED if match.chances else _NOT_COUNTED)
            ]
        *first, later = self.copied[match.source]
        return [first[min(match.size, len(first)) - 1], *[later] * (len(match.tokens) - 1)]

    def to_dict(self) -> dict[str, Any]:
        """Return the values to store as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Restore stored values, with less weight, since the next text differs.

        Raises:
            TypeError, KeyError, AttributeError: the values have another format.
        """
        first, later, earned, drafted, round_ = (
            DiscountedMean(**values[name]) for name in ("first", "later", "earned", "drafted", "round_")
        )
        for mean in (first, later, earned, drafted, round_):
            mean.forget(_EARLIER)
        chance = OnlineLogistic(**values["chance"])
        copied = {str(source): [OnlineLogistic(**one) for one in some] for source, some in values["copied"].items()}
        for one in (chance, *(one for some in copied.values() for one in some)):
            one.forget()
        return cls(chance, first, later, earned, drafted, round_, copied, int(values["trusted"]))


def _confidences(match: Match) -> list[float]:
    """Return the log-odds of each token of a copy by counts, given that those before it are right."""
    before = (1.0, *match.chances)
    shares = [chance / last for chance, last in zip(match.chances, before, strict=False)]
    return [log_odds(min(share, _SUREST)) for share in shares or [_UNCOUNTED] * len(match.tokens)]


class AutoPolicy:
    """A `LookaheadPolicy` for one request, which also chooses between the draft, copies and nothing."""

    def __init__(
        self, costs: Costs, cap: int, *, constant: int | None = None, experience: Experience | None = None
    ) -> None:
        """Create a policy that proposes at most `cap` tokens, within the longest measured pass.

        `constant` fixes the lookahead of the draft's rounds.
        """
        self.constant = constant
        self.experience = Experience() if experience is None else experience
        self._given = self._steps = Steps.of(costs, cap)
        self._drafts = seconds_of_more(self._steps, np.zeros(self._steps.cap + 1))
        self._drift = CostDrift()
        self._look, self._paused = 0, 0  # plain rounds that a look still needs; rounds it has taken
        self._unseen, self._patience = 0, float(_SOON)  # rounds since plain ones; until the next look at them
        self._query_length, self._rounds = 1, 0
        self._probing, self._wait = False, 0.0  # plain rounds until the next probe
        self._plain, self._asked = 0, False  # plain rounds since the draft read; whether it was ever asked
        self._until_asked, self._reading = float(_REST), False  # plain rounds until it is; whether it is, this round
        self._earns: float | None = None  # see `_worth`
        self._reach, self._confidences = 1.0, list[float]()
        self._needed = list[float]()
        self._study(costs, taught=experience is not None)

    @property
    def cap(self) -> int:
        """Maximum tokens proposed per round."""
        return self._steps.cap

    def update_strategy(self, strategy: Strategy) -> bool:
        """Change the draft's lookahead, if it is constant."""
        lookahead = strategy.fixed_lookahead
        if self.constant is None or lookahead is None:
            return False
        self.constant, self._earns = lookahead, None
        return True

    def _study(self, costs: Costs, *, taught: bool) -> None:
        """Learn from the rounds that timed draft steps, and price the first proposals."""
        for step in () if taught else costs.drafted:
            self._confidences = [log_odds(probability) for probability in step.probabilities]
            self.learn(len(self._confidences), step.accepted, len(self._confidences) + 1)
        self._query_length, self._rounds = 1, 0
        self._price()
        if (costs.drafted or taught) and self._losing:
            self._rest(self._steps.drafting(1) + self._steps.passing(2, changed=True) - self._steps.plain)

    @property
    def _losing(self) -> bool:
        """Whether continued drafting would earn less than plain decoding, including the cost of starting."""
        beginning = 2 * self._steps.change / (_STAY * self._steps.plain) if self._query_length == 1 else 0
        return self._worth() < 1 + beginning

    def _worth(self) -> float:
        """Return the tokens per plain step's time while drafting with the best constant lookahead."""
        if self._earns is None:
            self._earns = self._at_best()
        return self._earns

    def _at_best(self) -> float:
        lookaheads = np.arange(1, self._steps.cap + 1)
        if self.constant is not None:
            lookaheads = lookaheads[min(self.constant, self._steps.cap) - 1 :][:1]
        first, later = self.experience.first.value, self.experience.later.value
        tokens = 1 + first * (later ** np.arange(self._steps.cap)).cumsum()[lookaheads - 1]
        drafting = (self._steps.first_draft + (lookaheads - 1) * self._steps.draft) * self._drift.draft
        return float((tokens / (drafting + self._steps.passes[lookaheads])).max() * self._steps.plain)

    def _may_draft(self) -> bool:
        """Whether the draft proposes if no copy does: because it pays off, or to find out."""
        if self._look:
            return False
        return not self._losing or (not self._asked and self._wait <= 0)

    @property
    def unread(self) -> int:
        """Number of last tokens to ask the draft about now, 0 for none; see `asked`."""
        return _LOOK if self._plain >= self._until_asked else 0

    def asked(self, agreement: Sequence[bool]) -> None:
        """Learn from what the draft would have proposed for tokens already written."""
        self._plain, self._asked, self._reading, self._earns = 0, True, True, None
        for right in agreement:
            self.experience.first.add(right, 1)
            self.experience.later.add(right, 1)

    def copied(self, matches: Sequence[Match]) -> Match:
        """Return the copy to propose, cut where it stops paying off; `NO_MATCH` leaves the round to the draft."""
        price = max(self.experience.earned.value, 1.0)  # tokens in the time of a plain step
        costs = price * self._passes / self._steps.plain
        best, worth = NO_MATCH, 1 - float(costs[0])
        if self._look:  # a padded copy seems free, and passes would stay long
            return NO_MATCH
        if self._may_draft():
            tokens = self.experience.round_.value
            worth = max(worth, tokens - price * tokens / self.experience.drafted.value)
        for match in matches:
            most = min(len(match.tokens), self.cap)
            values = 1 + self.experience.chances(match)[:most].cumsum() - costs[1 : most + 1]
            k = int(values.argmax()) if most else 0
            if most and values[k] > worth:
                best, worth = match._replace(tokens=match.tokens[: k + 1], chances=match.chances[: k + 1]), values[k]
        return best

    def judged(self, matches: Sequence[Match], committed: Sequence[int]) -> None:
        """Learn from what a round committed after these matches, proposed or not."""
        for match in matches:
            self.experience.judged(match, committed)

    def goes_on(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """Whether another proposal pays off."""
        if not proposed:
            return self._begins()
        if self.constant is not None:
            return proposed < self.constant
        if proposed >= min(self._steps.cap, self.experience.trusted) or self._probing:
            return False
        self._confidences.append(log_odds(confidence()))
        self._reach *= self.experience.chance.of(self._confidences[-1])
        return self._reach > self._needed[proposed]

    def learn(
        self, proposed: int, accepted: int, query_length: int, timing: Timing | None = None, *, copy: bool = False
    ) -> None:
        """Learn from a round's outcome; `copy`: the draft did not propose it."""
        before, self._query_length = self._query_length, min(query_length, self._steps.cap + 1)
        changed = before != self._query_length
        if timing is not None:
            self._measured(timing, 0 if copy else proposed, changed=changed)
        self._rounds += 1
        if proposed:
            self._proposed(proposed, accepted, changed=changed, copy=copy)
        else:
            self._wait, self._plain = self._wait - 1, self._plain + 1
            self.experience.earned.add(1, 1)
        if changed or self._rounds % _EVERY == 0:
            self._price()

    def _proposed(self, proposed: int, accepted: int, *, changed: bool, copy: bool) -> None:
        """Learn from a round with proposals."""
        drafting = 0.0 if copy else self._steps.drafting(proposed) * self._drift.draft
        seconds = (drafting + self._steps.passing(self._query_length, changed=changed)) / self._steps.plain
        self.experience.earned.add(accepted + 1, seconds)
        if not copy:
            self._plain, self._earns = 0, None
            self.experience.outcomes(self._confidences, proposed, accepted)
            self.experience.drafted.add(accepted + 1, seconds)
            self.experience.round_.add(accepted + 1, 1)
            if self._probing:
                self._rest((seconds - (accepted + 1)) * self._steps.plain)

    def _measured(self, timing: Timing, proposed: int, *, changed: bool) -> None:
        """Learn how far the step costs are off, except from the first round, which is the prefill."""
        if not self._rounds:
            return
        if self._reading:
            plain = self._given.plain * self._drift.machine
            self._until_asked = min(max(timing.draft / (plain * _PROBING), _REST), _LONGEST_REST)
            self._reading = False
        if proposed:
            self._drift.drafted(timing.draft / self._given.drafting(proposed))
        if not changed:  # what a change costs was measured as roughly
            passing = self._given.passing(self._query_length, changed=False)
            self._drift.passed(timing.verify / passing, longer=self._query_length > 1)
        self._look_at_plain()

    def _look_at_plain(self) -> None:
        """Begin or go on with a look at plain rounds, if what they cost may decide whether drafting pays off."""
        if self._look:
            self._paused += 1
            ended = self._paused == _ENDS  # passes may stay padded
            self._look = 0 if ended else self._look - (self._query_length == 1)
        self._unseen = 0 if self._query_length == 1 else self._unseen + 1
        worth, doubt = self._worth(), self._drift.doubt
        if not self._look and self._unseen >= self._patience and 1 / doubt < worth < doubt:
            self._look, self._paused, self._unseen = _LOOK_AT_PLAIN, 0, 0
            # two changes, and about one in padded rounds before the first
            lost = 3 * self._steps.change / self._steps.plain + _LOOK_AT_PLAIN * max(worth - 1, 0)
            self._patience = max(lost / _PROBING, _SOON)

    def _rest(self, lost: float) -> None:
        """Stay plain until a probe that loses this many seconds is a small share of the time."""
        # after a rest the draft has text to read, and plain passes are shorter
        lost += self._steps.first_draft + self._steps.change
        self._wait = max(lost, 0) / (_PROBING * self._steps.plain)

    def _begins(self) -> bool:
        """Start a round; return whether the draft proposes."""
        self._reach = 1.0
        self._confidences.clear()
        self._probing = self._losing
        return self._may_draft()

    def _price(self) -> None:
        """Price proposals with corrected step costs."""
        passes = self._given.passes * self._drift.longer
        passes[0] = self._given.plain
        self._steps, self._earns = replace(self._given, passes=np.maximum(passes, passes[0])), None
        self._passes = seconds_of_passes(self._steps, self._query_length)
        passing = seconds_of_more(replace(self._steps, draft=0.0, first_draft=0.0), self._passes)
        more = passing + self._drafts * self._drift.draft
        self._needed = needed_chances(more / self._steps.plain, self.experience)
