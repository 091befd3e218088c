"""What became of each proposal, from the replayed drafter and the tokens GenAI committed."""

from collections.abc import Sequence

from specdemo.decoding.verification import judge
from specdemo.engines.agreement import draft_agreement
from specdemo.engines.genai.pipelines import Pipelines
from specdemo.engines.genai.replay import DraftReplay, LookupReplay, Replay, Replayed
from specdemo.records import DraftToken, Request, Round, Verdict
from specdemo.runtime.language_model import ModelSequence
from specdemo.runtime.text import texts
from specdemo.strategies import Lookup


class Tracer:
    """Follows one request, round by round, off the clock."""

    def __init__(self, pipelines: Pipelines, prompt: Sequence[int], request: Request) -> None:
        self._decode = pipelines.tokenizer.decode
        self._sampling = request.sampling
        self._prompt_length = len(prompt)
        self._context = list(prompt)
        self._wanted = request.max_new_tokens
        self._draft: ModelSequence | None = None
        self._replay: Replay
        if isinstance(request.strategy, Lookup):
            self._replay = LookupReplay(prompt, request.strategy)
        else:
            self._draft = pipelines.draft_model().sequence(len(prompt) + request.max_new_tokens)
            self._replay = DraftReplay(self._draft, prompt, request)

    def prefill(self, step: Round) -> Round:
        """The request's first round, which proposes nothing."""
        return self._follow(step)

    def round(self, step: Round, *, ended: bool) -> Round:
        """The request's next round with its proposals. `ended`: whether the text ended in it.

        A replay that cannot have led to what was committed is wrong; the round is then returned with only what is
        certain.
        """
        proposals = self._replay.propose(self._wanted - 1)
        committed = step.ids
        verdicts = judge([token for token, _ in proposals], committed, ended=ended)
        if verdicts is not None:
            step = step.model_copy(update={"proposed": self._judged(step, proposals, verdicts)})
        return self._follow(step)

    def draft_agreement(self) -> tuple[bool, ...] | None:
        """Whether the draft would have proposed each token followed so far, except the first."""
        if self._draft is None:
            return None
        return draft_agreement(self._draft, self._context, self._prompt_length + 1, self._sampling)

    def _follow(self, step: Round) -> Round:
        committed = step.ids
        self._replay.commit(committed)
        self._context += committed
        self._wanted -= len(committed)
        return step

    def _judged(
        self, step: Round, proposals: Sequence[Replayed], verdicts: Sequence[Verdict]
    ) -> tuple[DraftToken, ...]:
        accepted = step.committed[: verdicts.count(Verdict.ACCEPTED)]
        context = self._context + [token.id for token in accepted if token.id is not None]
        refused = texts(self._decode, context, [token for token, _ in proposals[len(accepted) :]])
        words = [token.text for token in accepted] + refused
        told = [token.probability for token in accepted] + [None] * len(refused)
        return tuple(
            DraftToken(id=id_, text=text, verdict=verdict, draft_probability=probability, target_probability=target)
            for (id_, probability), text, verdict, target in zip(proposals, words, verdicts, told, strict=True)
        )
