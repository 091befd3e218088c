"""One request in specdemo's own loop: draft, verify, commit.

A round's clock covers what every implementation must do: drafting, the target pass, and choosing tokens. Values for
display only (probabilities in greedy decoding, entropies, text) are computed off the clock.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from specdemo.decoding.verification import (
    Ids,
    Logits,
    Probabilities,
    Uniform,
    Verification,
    distribution,
    entropy,
    greedy_choice,
    judge,
    likeliest_tokens,
    rejection_sample,
)
from specdemo.engines.base import Decoder, Prefilling
from specdemo.engines.sequences import ModelSequence
from specdemo.engines.text import IncrementalText, Tokenizer, token_texts
from specdemo.engines.traced.drafters import Proposal, Proposer
from specdemo.errors import OPENVINO_FAILURES, EngineError
from specdemo.records import MAX_LIKELIEST, Alternative, DraftToken, Outcome, Request, Round, Token
from specdemo.strategies import Strategy

OpenTarget = Callable[[Sequence[int], int], ModelSequence]  # for a text, with a capacity in tokens
OpenDrafter = Callable[[Sequence[int], int, Uniform, ModelSequence], Proposer]
UpdateStrategy = Callable[[Strategy], bool]


class TracedDecoder(Decoder):
    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        target: OpenTarget,
        drafter: OpenDrafter | None,
        reset: Callable[[], None] = lambda: None,
        update_strategy: UpdateStrategy = lambda strategy: False,
    ) -> None:
        """Create a decoder. It calls `reset` after a failure, which may leave the caches inconsistent."""
        self._request, self._sampling = request, request.sampling
        self._tokenizer, self._eos_ids = tokenizer, tokenizer.eos_ids()
        self._open_target, self._open_drafter = target, drafter
        self._reset, self._update_strategy = reset, update_strategy
        self._text: list[int] = []
        self._target: ModelSequence | None = None
        self._drafter: Proposer | None = None
        self._random: Uniform = np.random.default_rng(request.sampling.seed)

    def rounds(self) -> Generator[Prefilling | Round]:
        self._text = self._tokenizer.encode_prompt(self._request)
        self.prompt_tokens = self._prompt_length = len(self._text)
        self._incremental = IncrementalText(self._tokenizer.decode, self._text)
        capacity = self._prompt_length + self._request.max_new_tokens
        try:
            with self._resetting():
                self._target = self._open_target(self._text, capacity)
                if self._open_drafter is not None:
                    self._drafter = self._open_drafter(self._text, capacity, self._random, self._target)
                yield from self._prefill()
                while self.finish_reason is None:
                    started = perf_counter()
                    tokens_left = self._request.max_new_tokens - (len(self._text) - self._prompt_length)
                    proposals: Sequence[Proposal] = []
                    if self._drafter is not None and tokens_left > 1:
                        proposals = self._drafter.propose(self._text, tokens_left - 1)
                    yield self._round(proposals, started, perf_counter())
        finally:
            self._target = None  # the drafter is kept for `draft_agreement`

    def _prefill(self) -> Generator[Prefilling | Round]:
        assert self._target is not None
        started = perf_counter()
        for done in self._target.read(self._text):
            paused = perf_counter()
            yield Prefilling(done, self._prompt_length)
            started += perf_counter() - paused  # showing progress is off the clock
        yield self._round([], started, started)

    def update_strategy(self, strategy: Strategy) -> bool:
        return self._update_strategy(strategy)

    def draft_agreement(self) -> tuple[bool, ...] | None:
        if self._drafter is None:
            return None
        with self._resetting():
            return self._drafter.agreement(self._text, self._prompt_length + 1)

    @contextmanager
    def _resetting(self) -> Iterator[None]:
        """Raise OpenVINO failures as `EngineError`, and free the caches."""
        try:
            yield
        except OPENVINO_FAILURES as error:
            self._target = self._drafter = None
            self._reset()
            raise EngineError.of(error) from error

    def _round(self, proposals: Sequence[Proposal], started: float, drafted: float) -> Round:
        """Verify the proposals and commit a round. Everything after `ended` is for display only."""
        assert self._target is not None
        ids = [proposal.id for proposal in proposals]
        logits = self._target.logits(self._text + ids, len(ids) + 1)
        verified = perf_counter()
        accepted, next_token = self._verify(proposals, logits)
        committed = self._until_end([*ids[:accepted], next_token])
        if self._drafter is not None:
            if len(self._text) == self._prompt_length:
                self._drafter.read(self._text)  # only now, since an EAGLE-3 head reads the target's hidden states
            self._drafter.learn(len(ids), accepted)
        ended = perf_counter()
        targets = list(self._distributions(ids, logits))
        result = Round(
            committed=self._committed(committed, targets),
            proposed=self._draft_tokens(proposals, committed, targets),
            seconds=ended - started,
            draft_seconds=drafted - started,
            verify_seconds=verified - drafted,
        )
        self._text += committed
        return result

    def _verify(self, proposals: Sequence[Proposal], logits: Logits) -> Verification:
        ids = [proposal.id for proposal in proposals]
        if self._sampling.do_sample:
            drafts = (proposal.distribution() for proposal in proposals if proposal.distribution)
            return rejection_sample(ids, drafts, self._distributions(ids, logits), self._random)
        for index, (row, seen) in enumerate(zip(logits, self._contexts(ids), strict=True)):
            choice = greedy_choice(row, self._sampling, seen)
            if index == len(ids) or choice != ids[index]:
                break
        return Verification(index, choice)

    def _distributions(self, ids: Sequence[int], logits: Logits) -> Iterator[Probabilities]:
        for row, seen in zip(logits, self._contexts(ids), strict=True):
            yield distribution(row, self._sampling, seen)

    def _contexts(self, ids: Sequence[int]) -> list[Ids]:
        """Return the tokens before each row of logits, as slices of one array: sets take several times as long."""
        tokens = np.array([*self._text, *ids])
        return [tokens[: len(self._text) + index] for index in range(len(ids) + 1)]

    def _until_end(self, committed: list[int]) -> list[int]:
        if not self._request.ignore_eos:
            for index, token in enumerate(committed):
                if token in self._eos_ids:
                    self.finish_reason = "stop"
                    return committed[: index + 1]
        if len(self._text) + len(committed) - self._prompt_length >= self._request.max_new_tokens:
            self.finish_reason = "length"
        return committed

    def _committed(self, ids: Sequence[int], targets: Sequence[Probabilities]) -> tuple[Token, ...]:
        texts = [self._incremental.push(token) for token in ids]
        if self.finish_reason is not None:
            texts[-1] += self._incremental.flush()
        return tuple(
            Token(id=token, text=text, probability=float(target[token]), entropy=entropy(target))
            for token, text, target in zip(ids, texts, targets, strict=False)
        )

    def _draft_tokens(
        self, proposals: Sequence[Proposal], committed: Sequence[int], targets: Sequence[Probabilities]
    ) -> tuple[DraftToken, ...]:
        ids = [proposal.id for proposal in proposals]
        outcomes = judge(ids, committed, ended=self.finish_reason == "stop")
        assert outcomes is not None, "a round commits the accepted proposals and a correction or bonus token"
        texts = token_texts(self._tokenizer.decode, self._text, ids)
        result = list[DraftToken]()
        for index, (proposal, outcome) in enumerate(zip(proposals, outcomes, strict=True)):
            likeliest = dict[str, tuple[Alternative, ...]]()
            if outcome is Outcome.REJECTED:
                before = [*self._text, *ids[:index]]
                likeliest = {"target_likeliest": self._likeliest(before, targets[index])}
                if proposal.distribution is not None and not proposal.copied:
                    likeliest["draft_likeliest"] = self._likeliest(before, proposal.distribution())
            token = DraftToken(
                id=proposal.id,
                text=texts[index],
                verdict=outcome,
                copied=proposal.copied,
                draft_probability=proposal.probability,
                target_probability=float(targets[index][proposal.id]),
                **likeliest,
            )
            result.append(token)
        return tuple(result)

    def _likeliest(self, before: Sequence[int], probabilities: Probabilities) -> tuple[Alternative, ...]:
        tokens = likeliest_tokens(probabilities, 1.0, MAX_LIKELIEST)
        ids = [int(token) for token in (range(len(probabilities)) if tokens is None else tokens)]
        return tuple(
            Alternative(id=token, text=text, probability=float(probabilities[token]))
            for token in ids
            if probabilities[token] > 0
            for text in token_texts(self._tokenizer.decode, before, [token])
        )
