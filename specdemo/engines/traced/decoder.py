"""One request in specdemo's own loop: `decoding/round.py` decodes, this adds what is for display only, off the clock.

That is text, outcomes, entropies and, in greedy decoding, probabilities.
"""

from collections.abc import Callable, Generator, Sequence

import numpy as np

from specdemo.decoding.indexes import TextIndex
from specdemo.decoding.lookahead import LookaheadPolicy
from specdemo.decoding.round import Committed, Drafter, ModelSequence, Proposal, distributions, rounds
from specdemo.decoding.sampling import Probabilities, Uniform, entropy, likeliest_tokens
from specdemo.engines.base import Decoder, Prefill
from specdemo.engines.text import IncrementalText, Tokenizer, token_texts
from specdemo.errors import OPENVINO_FAILURES, EngineError
from specdemo.records import MAX_LIKELIEST, Alternative, DraftToken, Outcome, Request, Round, Token, outcomes_from_ids
from specdemo.strategies import Strategy

OpenTarget = Callable[[Sequence[int], int], ModelSequence]  # for a text, with a capacity in tokens
OpenDrafter = Callable[[Sequence[int], int, Uniform, ModelSequence], Drafter]


class TracedDecoder(Decoder):
    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        target: OpenTarget,
        drafter: OpenDrafter | None,
        reset: Callable[[], None] = lambda: None,
        live: LookaheadPolicy | TextIndex | None = None,
    ) -> None:
        """Create a decoder. It calls `reset` after a failure, which may leave the caches inconsistent. `live`: what
        follows a changed strategy.
        """
        self._request, self._tokenizer = request, tokenizer
        self._open_target, self._open_drafter = target, drafter
        self._reset, self._live = reset, live
        self._text: list[int] = []

    def rounds(self) -> Generator[Prefill | Round]:
        request, sampling = self._request, self._request.sampling
        prompt = self._tokenizer.encode_prompt(request)
        self._text, self.prompt_tokens = [*prompt], len(prompt)
        self._incremental = IncrementalText(self._tokenizer.decode, prompt)
        capacity, random = len(prompt) + request.max_new_tokens, np.random.default_rng(sampling.seed)
        eos_ids = frozenset[int]() if request.ignore_eos else self._tokenizer.eos_ids()
        try:
            target = self._open_target(prompt, capacity)
            opened = self._open_drafter
            drafter = opened(prompt, capacity, random, target) if opened is not None else None
            steps = rounds(prompt, target, drafter, sampling, random, request.max_new_tokens, eos_ids)
            for step in steps:
                yield self._described(step) if isinstance(step, Committed) else Prefill(step, len(prompt))
        except OPENVINO_FAILURES as error:
            self._reset()
            raise EngineError.of(error) from error

    def update_strategy(self, strategy: Strategy) -> bool:
        if self._live is None or type(strategy) is not type(self._request.strategy):
            return False
        self._live.strategy = strategy
        return True

    def _described(self, step: Committed) -> Round:
        self.finish_reason = step.finish_reason
        ids = [proposal.id for proposal in step.proposals]
        targets = list(distributions(step.logits, self._text, ids, self._request.sampling))
        described = Round(
            committed=self._tokens(step.ids, targets),
            proposed=self._draft_tokens(step.proposals, step.ids, targets),
            seconds=step.seconds,
            draft_seconds=step.draft_seconds,
            verify_seconds=step.verify_seconds,
        )
        self._text += step.ids
        return described

    def _tokens(self, ids: Sequence[int], targets: Sequence[Probabilities]) -> tuple[Token, ...]:
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
        outcomes = outcomes_from_ids(ids, committed, ended=self.finish_reason == "stop")
        assert outcomes is not None, "a round commits the accepted proposals and a correction or bonus token"
        texts = token_texts(self._tokenizer.decode, self._text, ids)
        tokens = list[DraftToken]()
        for index, (proposal, outcome) in enumerate(zip(proposals, outcomes, strict=True)):
            alternatives = dict[str, tuple[Alternative, ...]]()
            if outcome is Outcome.REJECTED:
                before = [*self._text, *ids[:index]]
                alternatives["target_likeliest"] = self._likeliest(before, targets[index])
                if proposal.distribution is not None and not proposal.copied:
                    alternatives["draft_likeliest"] = self._likeliest(before, proposal.distribution())
            token = DraftToken(
                id=proposal.id,
                text=texts[index],
                outcome=outcome,
                copied=proposal.copied,
                draft_probability=proposal.probability,
                target_probability=float(targets[index][proposal.id]),
                **alternatives,
            )
            tokens.append(token)
        return tuple(tokens)

    def _likeliest(self, before: Sequence[int], probabilities: Probabilities) -> tuple[Alternative, ...]:
        likeliest = likeliest_tokens(probabilities, 1.0, MAX_LIKELIEST)
        ids = range(len(probabilities)) if likeliest is None else map(int, likeliest)
        return tuple(
            Alternative(
                id=token,
                text=token_texts(self._tokenizer.decode, before, [token])[0],
                probability=float(probabilities[token]),
            )
            for token in ids
            if probabilities[token] > 0
        )
