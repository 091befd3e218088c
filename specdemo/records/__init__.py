"""Immutable values that engines produce and everything else reads.

A run is a prefill and then rounds. Plain decoding is the same stream of rounds with nothing proposed, so one
token counter, one clock and one set of charts serve both sides. Rates and counts are not stored: `metrics`
derives them.
"""

from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from specdemo.records.base import MOST as MOST
from specdemo.records.base import TICK as TICK
from specdemo.records.base import Count, Probability, Seconds, Share
from specdemo.records.base import Record as Record
from specdemo.records.costs import TIMED_LOOKAHEAD as TIMED_LOOKAHEAD
from specdemo.records.costs import Costs as Costs
from specdemo.records.costs import DraftRound as DraftRound
from specdemo.records.costs import Spread as Spread
from specdemo.records.costs import StepCosts as StepCosts
from specdemo.records.request import Request as Request
from specdemo.records.request import Sampling as Sampling
from specdemo.records.request import Turn as Turn
from specdemo.records.servers import SILENCE_SECONDS as SILENCE_SECONDS
from specdemo.records.servers import Server as Server
from specdemo.records.servers import Servers as Servers
from specdemo.records.trial import Trial as Trial
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.ways import DraftKind, ServerKind, Source

TraceSource = Literal["measured", "replayed", "counts only", "reported", "passes", "bursts"]
"""How the proposals of a run are known: recorded as they were made; replayed afterwards by running the drafter
over the committed text, off the clock; or only by their number. Of a server's: the numbers of proposed and accepted
tokens that it reported for each round; only which tokens came from one pass; or nothing, where each round is a
burst of text that arrived at once."""

FinishReason = Literal["stop", "length", "cancelled", "failed", "absent"]
"""End-of-text token, token limit, the user's Stop, an error, or a side that has no server."""

Side = Literal["plain", "speculative"]
SIDES: tuple[Side, Side] = ("plain", "speculative")

Prompts = Literal["chat", "base"]
"""What a target is given: questions and requests, or the beginning of a text to continue."""


class Verdict(StrEnum):
    """What became of a proposed token."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DISCARDED = "discarded"


class Alternative(Record):
    """A token that the target might have chosen, and the probability it gave that token."""

    id: Count
    text: str
    probability: Probability


class Token(Record):
    """A committed token. `probability` is the target's, if the engine reports it.

    `id` is None where a server does not tell it.
    `entropy` is that of the target's distribution here, in bits; `alternatives` are its likeliest tokens,
    likeliest first, if requested.
    """

    id: Count | None
    text: str
    probability: Probability | None = None
    entropy: float | None = Field(None, ge=-0.01, le=64)  # rounded, like a probability
    alternatives: tuple[Alternative, ...] = Field((), max_length=5)


class DraftToken(Record):
    """A proposed token. `id` is None where only the number of proposals is known."""

    id: Count | None
    text: str
    verdict: Verdict
    draft_probability: Probability | None = None
    target_probability: Probability | None = None


class Round(Record):
    """One cycle: the draft proposes, the target verifies in one pass, tokens are committed.

    `proposed` is None where not even the number of proposals is known. Seconds are of the side's own clock. `source`:
    what proposed, where the way of decoding has two sources.
    """

    committed: tuple[Token, ...] = Field(max_length=MOST)
    seconds: Seconds
    proposed: tuple[DraftToken, ...] | None = Field((), max_length=MOST)
    draft_seconds: Share | None = None
    verify_seconds: Share | None = None
    source: Source | None = None

    @property
    def ids(self) -> list[int]:
        """Ids of the committed tokens, without those that are not known."""
        return [token.id for token in self.committed if token.id is not None]

    @property
    def accepted(self) -> int:
        """Drafts that were accepted. Without a trace: all committed tokens but the target's own."""
        if self.proposed is None:
            return max(len(self.committed) - 1, 0)
        return sum(token.verdict is Verdict.ACCEPTED for token in self.proposed)


class Run(Record):
    """One side of a comparison. `prefill` commits the first token; its seconds are the time to first token.

    Not `passes_known`: a server did not tell which tokens came from one pass, so rounds are what arrived together.
    A side without any token has no such seconds: see `Run.without`.
    """

    prefill: Round
    rounds: tuple[Round, ...] = Field((), max_length=MOST)
    finish_reason: FinishReason
    passes_known: bool = True

    @classmethod
    def without(cls, reason: Literal["failed", "absent"]) -> Self:
        """The run of a side that has no token, for this reason."""
        return cls(prefill=Round(committed=(), seconds=TICK), finish_reason=reason)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Every committed token, the prefill's first."""
        return tuple(token for step in (self.prefill, *self.rounds) for token in step.committed)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the committed tokens: of every one, unless a server did not tell them all."""
        return (*self.prefill.ids, *(id_ for step in self.rounds for id_ in step.ids))

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(token.text for token in self.tokens)


class Model(Record):
    """A model folder. `parameters` counts weights; `weights` is their stored precision, `weight_bytes` their size.

    `vocabulary` is the number of tokens; `chat_template`: whether there is one. Without a `detokenizer` a model can
    propose but not write; `eagle3`: it is an EAGLE-3 head, which drafts from the target's hidden states, is not a
    model in its own right, and may lack some of the target's tokens. `server`: what serves it, if it is not loaded
    here. None means unknown when the record was written.
    """

    name: str
    architecture: str
    parameters: Count
    weights: str
    context_length: Count | None = None
    weight_bytes: Count | None = None
    vocabulary: Count | None = None
    chat_template: bool = False
    detokenizer: bool = True
    eagle3: bool = False
    server: ServerKind | None = None
    path: Path | None = Field(None, exclude=True, repr=False)  # never leaves this machine

    @property
    def prompts(self) -> Prompts:
        """The prompts that suit it."""
        return "chat" if self.chat_template else "base"


class ModelPair(Record):
    """A target, its draft (None: prompt lookup only), and how they are loaded.

    `translated`: their tokenizers differ, so the draft's proposals are re-encoded for the target. `servers`: where
    both sides are served, if they are not loaded here.
    """

    name: str
    target: Model
    draft: Model | None = None
    runtime: RuntimeSettings = RuntimeSettings()
    translated: bool = False
    servers: Servers | None = Field(None, exclude=True, repr=False)  # addresses never leave this machine

    @property
    def eagle3(self) -> bool:
        """Whether the draft is an EAGLE-3 head."""
        return self.draft_kind == "eagle3"

    @property
    def draft_kind(self) -> DraftKind | None:
        """What kind of draft there is; None for a target alone."""
        if self.draft is None:
            return None
        if self.target.server is not None:
            return "request" if self.target.server == "ovms" else "server"
        if self.draft.eagle3:
            return "eagle3"
        return "translated" if self.translated else "model"


NOT_USED = "not used"
"""Stands for a version of OpenVINO where a server decodes."""


class Environment(Record):
    """What the figures were measured on. `threads` of inference are known for CPUs only.

    `dynamic_quantization` is that of the target's activations: "off", or the size of a group, as in "groups of 32".
    """

    specdemo: str
    python: str
    openvino: str
    openvino_genai: str
    openvino_tokenizers: str
    device: str
    draft_device: str
    inference_precision: str
    kv_cache_precision: str
    draft_inference_precision: str = "unknown"
    dynamic_quantization: str = "unknown"
    threads: Count | None

    @property
    def served(self) -> bool:
        """Whether servers decoded, of which only the names are known."""
        return self.openvino_genai == NOT_USED


class WarmUp(Record):
    """What preceded a side's run, off the record: `rounds` in `seconds`, prefills included.

    Not `steady`: time ran out while repetitions of the same rounds were still getting faster.
    """

    rounds: Count
    seconds: Share
    steady: bool


class Move(Record):
    """A setting moved while a run was under way, in force from this round of the speculative side on."""

    round: int = Field(ge=1, le=MOST)
    num_assistant_tokens: Count | None = None
    assistant_confidence_threshold: Probability | None = None


class Comparison(Record):
    """Both sides of one prompt, which `history` precedes in a chat.

    `draft_agreement[i]`, found off the clock after a greedy run, says whether the draft would have proposed the
    speculative side's token i + 1 given the text before it. It is what an oracle needs to know.

    `repeats` are unwatched runs of the same request after the race; `other_load` is the share of the machine's
    processor time that other processes took during the race, None if that is not known. `failures` say why a side
    ended too early, where its server failed.
    """

    pair: ModelPair
    prompt: str
    settings: GenerationSettings
    environment: Environment
    plain: Run
    speculative: Run
    trace_source: TraceSource
    costs: Costs | None = None
    draft_agreement: tuple[bool, ...] | None = Field(None, max_length=MOST)
    history: tuple[Turn, ...] = ()
    warm_up: dict[Side, WarmUp] | None = None
    repeats: tuple[Trial, ...] = Field((), max_length=MOST)
    moves: tuple[Move, ...] = Field((), max_length=MOST)
    other_load: Probability | None = None
    failures: dict[Side, str] = Field(default_factory=dict)

    @property
    def both(self) -> bool:
        """Whether both sides have any token, so that they can be compared."""
        return bool(self.plain.tokens and self.speculative.tokens)

    def side(self, side: Side) -> Run:
        """The run of one side."""
        return self.plain if side == "plain" else self.speculative
