"""One round of speculative decoding, from top to bottom: propose, verify, commit. The traced engine runs this file.

A language model gives, after a text, a distribution over the next token. Plain decoding takes one pass of the target
for each token. Here a cheap drafter proposes γ tokens, and a single pass of the target over all of them gives, up to
rounding, the γ + 1 distributions of as many plain passes, since no position attends to later ones. That pass costs
hardly more than a plain one: both read all weights once. Proposals are accepted up to the first rejected one; those
after it continue a text that was not written, and are discarded. The pass yields one token more: a correction in
place of the rejected proposal, or a bonus token after γ accepted ones.

    γ        tokens proposed in a round (the lookahead), which may vary and may be 0
    p, q     the distributions, after temperature and the like, of the target, and of the drafter that drew a proposal
    α        acceptance rate: accepted / proposed
    τ        mean acceptance length: tokens committed per target pass, from 1 to γ + 1; (1 − a^(γ+1)) / (1 − a) on
             average if each proposal after accepted ones is accepted with probability a (Leviathan et al. 2023,
             equation 1, which calls that α)
    c        seconds of a draft step / seconds of a plain step, which is a target pass over one token
    v        seconds of the target pass over γ + 1 tokens / seconds of a plain step
    speedup  τ / (γc + v)

Why the output is exact, in sampling the same distribution and in greedy decoding the same tokens: a proposal x is
drawn with probability q(x) and accepted with min(1, p(x) / q(x)), so x is committed that way with min(p(x), q(x)). A
proposal is rejected with probability R = 1 − Σ min(p, q), which is Σ max(0, p − q), as p and q sum to 1. Then any
token x is drawn with max(0, p(x) − q(x)) / R, and R cancels. Both ways together commit x with probability
min(p(x), q(x)) + max(0, p(x) − q(x)) = p(x), whatever q is. The bonus token is drawn from p itself, so this holds at
each position after the ones before it. A worse drafter costs time, never correctness. In greedy decoding p is 1 for
the likeliest token: a proposal is accepted if it is that one, else that one corrects it.

Sources: Leviathan et al. 2023 (arXiv:2211.17192), algorithm 1 and appendix A.1; Chen et al. 2023 (arXiv:2302.01318),
algorithm 2 and theorem 1.

A round's clock covers what every implementation must do: reading the prompt, drafting, the target's pass, choosing
tokens, learning from the outcome. What is only for display (text, probabilities in greedy decoding, entropies) is
computed by `TracedDecoder`, off the clock.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal, NamedTuple, Protocol

import numpy as np

from specdemo.decoding.lookahead import LookaheadPolicy
from specdemo.decoding.sampling import Ids, Logits, Probabilities, Uniform, distribution, draw, greedy_choice
from specdemo.settings import Sampling


class ModelSequence(Protocol):
    """A model with the KV cache of a text. A call with another text rolls back to what both have in common."""

    def logits(self, ids: Sequence[int], last: int = 1) -> Logits:
        """Return logits after each of the last tokens, shape (last, vocabulary), valid until the next call."""

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        """Prefill most of a long text, yielding the number of tokens read so far."""


@dataclass
class Proposal:
    """A proposed token. `distribution` computes q, shape (vocabulary,), unless the drafter has none.

    `confidence` computes q(id) at less cost, for policies that need it on the clock. `copied`: from the text so far;
    q is 1 for this token. In sampling every proposal has a distribution.
    """

    id: int
    distribution: Callable[[], Probabilities] | None
    confidence: Callable[[], float] = lambda: 1.0  # of a copied token, which no policy uses
    copied: bool = False

    @property
    def probability(self) -> float | None:
        return None if self.distribution is None else float(self.distribution()[self.id])


class Drafter(ABC):
    """Proposes tokens: a draft model, a head, or an index of the text so far."""

    @abstractmethod
    def read(self, text: Sequence[int]) -> None:
        """Read the prompt."""

    @abstractmethod
    def propose(self, text: Sequence[int], limit: int) -> list[Proposal]:
        """Return γ proposals, as many as the strategy asks for, at most `limit`."""

    def learn(self, proposed: int, accepted: int) -> None:  # noqa: B027 (an index learns nothing)
        """See `LookaheadPolicy.learn`."""


class Committed(NamedTuple):
    """What a round did, and the seconds on its clock: of drafting, of the target's pass, and all, choosing included.
    The prefill's pass includes reading the prompt.
    """

    proposals: Sequence[Proposal]  # γ
    logits: Logits  # (γ + 1, vocabulary), float32; row i follows the text and i proposals
    ids: list[int]  # accepted proposals, then a correction or bonus token, up to an end of text
    finish_reason: Literal["stop", "length"] | None
    draft_seconds: float
    verify_seconds: float
    seconds: float


def rounds(
    prompt: Sequence[int],
    target: ModelSequence,
    drafter: Drafter | None,
    sampling: Sampling,
    random: Uniform,
    max_new_tokens: int,
    eos_ids: frozenset[int],
) -> Generator[int | Committed]:
    """Yield the prompt tokens read so far, then the prefill, which commits one token, then rounds up to the end.

    Without a drafter every round has γ = 0: that is plain decoding.
    """
    text, end = list(prompt), len(prompt) + max_new_tokens
    started = perf_counter()  # the clock runs
    for done in target.read(text):
        paused = perf_counter()
        yield done
        started += perf_counter() - paused  # showing progress is off the clock
    finish_reason: Literal["stop", "length"] | None = None
    while finish_reason is None:
        prefill = len(text) == len(prompt)

        # Propose γ tokens. The round commits up to γ + 1, which must not exceed what is left to write.
        proposals: Sequence[Proposal] = []
        limit = end - len(text) - 1
        drafted = started
        if drafter is not None and limit > 0 and not prefill:
            proposals = drafter.propose(text, limit)
            drafted = perf_counter()

        # Verify them in one pass of the target.
        ids = [proposal.id for proposal in proposals]
        logits = target.logits(text + ids, len(ids) + 1)  # (γ + 1, vocabulary), float32
        passed = perf_counter()
        if sampling.do_sample:
            targets = distributions(logits, text, ids, sampling)
            drafts = (proposal.distribution() for proposal in proposals if proposal.distribution)
            accepted, token = rejection_sample(ids, drafts, targets, random)
        else:
            accepted, token = greedy_match(ids, logits, text, sampling)

        # Commit the accepted ones and the correction or bonus token, up to the end of the text.
        committed = [*ids[:accepted], token]
        for count, one in enumerate(committed, 1):
            if one in eos_ids:
                committed, finish_reason = committed[:count], "stop"
                break
        else:
            finish_reason = "length" if len(text) + len(committed) >= end else None
        if drafter is not None:
            if prefill:  # only now, since an EAGLE-3 head reads the target's hidden states
                drafter.read(text)
            drafter.learn(len(ids), accepted)
        ended = perf_counter()  # the clock stops
        text += committed
        seconds = drafted - started, passed - drafted, ended - started
        yield Committed(proposals, logits, committed, finish_reason, *seconds)
        started = perf_counter()  # and runs again


def draft(policy: LookaheadPolicy, limit: int, step: Callable[[Sequence[Proposal]], Proposal]) -> list[Proposal]:
    """Propose token by token, one draft step each, until the lookahead policy says that the target should verify."""
    proposals: list[Proposal] = []
    while len(proposals) < limit and policy.proposes_more(len(proposals), lambda: proposals[-1].confidence()):
        proposals.append(step(proposals))
    return proposals


def greedy_match(ids: Sequence[int], logits: Logits, text: Sequence[int], sampling: Sampling) -> tuple[int, int]:
    """Accept proposals as long as each is the target's likeliest token. Return their number, and the next token."""
    for index, (row, seen) in enumerate(zip(logits, _before(text, ids), strict=True)):
        choice = greedy_choice(row, sampling, seen)
        if index == len(ids) or choice != ids[index]:
            break
    return index, choice


def rejection_sample(
    proposed: Sequence[int], drafts: Iterable[Probabilities], targets: Iterable[Probabilities], random: Uniform
) -> tuple[int, int]:
    """Accept sampled proposals so that committed tokens have exactly the target's distribution.

    Return the number accepted, and the next token. `drafts` are q at each of the γ proposals, `targets` p there and
    after the last. They are read only as far as needed.
    """
    remaining = iter(targets)
    for index, (token, q) in enumerate(zip(proposed, drafts, strict=True)):
        p = next(remaining)
        if random.random() * q[token] >= p[token]:  # else accepted, with min(1, p/q): Leviathan et al., algorithm 1
            residual = np.maximum(p - q, 0)  # `draw` normalises it: (p − q)+ of Chen et al. 2023
            residual = residual if residual.any() else p  # rounding can make all of it zero
            return index, draw(residual, random.random())
    return len(proposed), draw(next(remaining), random.random())  # the bonus token is drawn from p


def distributions(
    logits: Logits, text: Sequence[int], ids: Sequence[int], sampling: Sampling
) -> Iterator[Probabilities]:
    """Yield p at each of the γ + 1 positions, shape (vocabulary,), float64."""
    for row, seen in zip(logits, _before(text, ids), strict=True):
        yield distribution(row, sampling, seen)


def _before(text: Sequence[int], ids: Sequence[int]) -> list[Ids]:
    """Return the tokens before each of the γ + 1 rows, which a repetition penalty needs, as slices of one array."""
    tokens = np.array([*text, *ids])
    return [tokens[: len(text) + index] for index in range(len(ids) + 1)]
