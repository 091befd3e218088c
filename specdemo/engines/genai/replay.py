"""Reconstructs the proposals of GenAI rounds and their outcomes, off the clock.

GenAI does not report rejected proposals. They can be replayed if they depend on the committed text alone: always with
prompt lookup, and in greedy decoding with a draft model. A replay that contradicts the committed tokens is discarded.
The rules are those of openvino-genai 2026.4, and tests compare the results with its counters.
"""

from collections.abc import Callable, Sequence

import numpy as np

from specdemo.decoding.indexes import index_of
from specdemo.decoding.lookahead import policy_for
from specdemo.decoding.round import ModelSequence, Proposal, draft
from specdemo.decoding.sampling import greedy_choice, softmax
from specdemo.engines.genai.pipelines import Pipelines
from specdemo.engines.text import token_texts
from specdemo.records import DraftToken, Outcome, Request, Round, outcomes_from_ids

Replay = Callable[[Sequence[int], int], list[Proposal]]  # (text, limit) -> proposals


class DraftReplay:
    """The draft model, greedy. As in GenAI, its repetition penalty also covers rejected proposals."""

    def __init__(self, draft: ModelSequence, prompt: Sequence[int], request: Request) -> None:
        self._draft = draft
        self._sampling = request.sampling
        self._policy = policy_for(request.strategy)
        self._seen = set(prompt)
        self._choose(prompt)  # the prefill proposes one token, which is penalised but never verified

    def __call__(self, text: Sequence[int], limit: int) -> list[Proposal]:
        self._seen.update(text)

        def step(before: Sequence[Proposal]) -> Proposal:
            return self._choose([*text, *(proposal.id for proposal in before)])

        return draft(self._policy, limit, step)

    def _choose(self, text: Sequence[int]) -> Proposal:
        logits = self._draft.logits(text)[0]
        token = greedy_choice(logits, self._sampling, list(self._seen))
        self._seen.add(token)
        probabilities = softmax(logits)
        probability = float(probabilities[token])
        # GenAI reads a log-probability of exactly 0 as unknown, below any threshold
        confidence = -1.0 if np.float32(np.log(probability)) == 0 else probability
        return Proposal(token, lambda: probabilities, lambda: confidence)


class Tracer:
    def __init__(self, pipelines: Pipelines, prompt: Sequence[int], request: Request) -> None:
        self._decode = pipelines.tokenizer.decode
        self._sampling = request.sampling
        self._text, self._prompt_length = list(prompt), len(prompt)
        self._max_length = len(prompt) + request.max_new_tokens
        self._replay: Replay
        if request.strategy.drafter.model:
            self._replay = DraftReplay(pipelines.draft_model().sequence(self._max_length), prompt, request)
        else:
            index = index_of(request.strategy)
            self._replay = lambda text, limit: [
                Proposal(token, None, copied=True) for token in index.find(text, limit).tokens
            ]

    def round(self, step: Round, *, ended: bool) -> Round:
        """Return the next round with its proposals, or as given if inconsistent; the first is the prefill."""
        if len(self._text) > self._prompt_length:
            proposals = self._replay(self._text, self._max_length - len(self._text) - 1)
            outcomes = outcomes_from_ids([proposal.id for proposal in proposals], step.ids, ended=ended)
            if outcomes is not None:
                step = step.model_copy(update={"proposed": self._draft_tokens(step, proposals, outcomes)})
        self._text += step.ids
        return step

    def _draft_tokens(
        self, step: Round, proposals: Sequence[Proposal], outcomes: Sequence[Outcome]
    ) -> tuple[DraftToken, ...]:
        accepted = step.committed[: outcomes.count(Outcome.ACCEPTED)]
        context = self._text + [token.id for token in accepted if token.id is not None]
        rejected = token_texts(self._decode, context, [proposal.id for proposal in proposals[len(accepted) :]])
        texts = [token.text for token in accepted] + rejected
        reported = [token.probability for token in accepted] + [None] * len(rejected)
        return tuple(
            DraftToken(
                id=proposal.id,
                text=text,
                outcome=outcome,
                copied=proposal.copied,
                draft_probability=proposal.probability,
                target_probability=target,
            )
            for proposal, text, outcome, target in zip(proposals, texts, outcomes, reported, strict=True)
        )
