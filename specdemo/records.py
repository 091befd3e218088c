"""Immutable values that engines produce and everything else reads: requests, models, runs, measurements.

A run is a prefill followed by rounds. Plain decoding is the same stream of rounds with nothing proposed, so one token
counter, one clock and one set of charts serve both sides. Rates and counts are not stored: `metrics` derives them.

Anyone may have written a file. What follows from a record is computed without further checks, so bounds are set here:
far beyond any real run, and tight enough that no sum or ratio overflows a float.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import log
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from specdemo.settings import GenerationSettings, RuntimeSettings, Sampling, Weights
from specdemo.strategies import Confidence, DraftKindName, HeadName, Plain, ServerKind, Strategy

MOST = 2048
"""Maximum tokens of a run, and so maximum rounds, and proposals per round."""
MOST_TURNS = 256
"""Maximum turns of a chat before its prompt."""
MOST_IN_FLIGHT = 256
"""GenAI's own limit of sequences in a batch."""
TICK = 1e-9
Seconds = Annotated[float, Field(ge=TICK, le=1e6)]
"""A duration: at least a clock tick, and less than two weeks."""
Share = Annotated[float, Field(ge=0, le=1e6)]
"""Seconds of a part, possibly 0."""
Probability = Annotated[float, Field(ge=0, le=1.01)]
"""A sum of rounded terms can slightly exceed 1."""
Count = Annotated[int, Field(ge=0, lt=2**53)]
"""An integer that browsers represent exactly."""


class Record(BaseModel):
    """Base of all records: frozen, finite, and ignoring derived extras when read from JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


# What decodes: models with their runtime settings, or servers.

SILENCE_SECONDS = 60.0
"""After this long without data, a server counts as silent."""


class Server(Record):
    """A server: its address, the model's name there (None: the only one), and its kind (None: detect it)."""

    url: str
    model: str | None = None
    kind: ServerKind | None = None
    silence_seconds: float = SILENCE_SECONDS


class Servers(Record):
    plain: Server | None = None
    speculative: Server | None = None


Prompts = Literal["chat", "base"]
"""Kind of prompts for a target: chats, or the beginning of a text."""


class Model(Record):
    """A model folder or file. `parameters` counts weights; `weights` is their precision, `weight_bytes` their size.

    `vocabulary` is the number of tokens. Without a `detokenizer` a model can propose but not generate text. A `head`
    drafts from the target's hidden states, is not a model in its own right, and may lack some of the target's tokens.
    `server`: its server's kind, if not loaded here. `linear_attention`: some layers keep a state instead of a KV
    cache. `in_parts`: its network takes embeddings, computed by another, and its own multi-token-prediction head is
    in the folder. `form`: how a GGUF file's weights are loaded. None means unknown when the record was written.
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
    head: HeadName | None = None
    linear_attention: bool = False
    in_parts: bool = False
    server: ServerKind | None = None
    form: Weights = "auto"
    path: Path | None = Field(None, exclude=True, repr=False)  # never leaves this machine

    @property
    def prompts(self) -> Prompts:
        return "chat" if self.chat_template else "base"


class ModelPair(Record):
    """A target, its draft (None: prompt lookup only), and their runtime settings.

    `translated`: their tokenizers differ, so proposals are re-encoded for the target. `servers` decode both sides, if
    they are not loaded here.
    """

    name: str
    target: Model
    draft: Model | None = None
    runtime: RuntimeSettings = RuntimeSettings()
    translated: bool = False
    servers: Servers | None = Field(None, exclude=True, repr=False)  # addresses never leave this machine

    @property
    def eagle3(self) -> bool:
        return self.draft_kind == "eagle3"

    @property
    def head(self) -> HeadName | None:
        return self.draft.head if self.draft is not None else None

    @property
    def draft_kind(self) -> DraftKindName | None:
        """Kind of draft; None for a target alone."""
        if self.draft is None:
            return None
        if self.target.server is not None:
            return "server"
        if self.draft.head is not None:
            return self.draft.head
        return "translated" if self.translated else "model"


class Environment(Record):
    """The software and hardware measured on. `threads` are inference threads, on CPUs only.

    `dynamic_quantization` of the target's activations is "off" or the group size, as in "groups of 32".
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
    def remote(self) -> bool:
        """Whether servers decoded, which report only their names."""
        return self.openvino_genai == NOT_USED


NOT_USED = "not used"
"""Stands for OpenVINO's version if a server decodes."""


# What is asked.


class Turn(Record):
    """An earlier turn of a chat: the user's prompt and the target's answer."""

    prompt: str
    answer: str


_NO_TOP_K = 2**63 - 1  # in GenAI


@dataclass(frozen=True)
class Request:
    """A prompt, the strategy to decode it with, and when to stop. `history` holds the chat's earlier turns."""

    prompt: str
    strategy: Strategy
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128
    ignore_eos: bool = False
    history: tuple[Turn, ...] = ()
    apply_chat_template: bool = True
    enable_thinking: bool = True
    kv_cache: bool = True

    @classmethod
    def of(cls, prompt: str, settings: GenerationSettings, history: tuple[Turn, ...] = ()) -> Self:
        return cls(
            prompt=prompt,
            strategy=settings.strategy,
            sampling=settings.sampling,
            max_new_tokens=settings.max_new_tokens,
            ignore_eos=settings.ignore_eos,
            history=history,
            apply_chat_template=settings.apply_chat_template,
            enable_thinking=settings.enable_thinking,
            kv_cache=settings.kv_cache == "on",
        )

    @property
    def plain(self) -> Self:
        """The same request for the target alone."""
        return replace(self, strategy=Plain())

    # Fields of other software, sent by engines and shown as code to copy. Every field is given, even defaults, since
    # a model's own generation config may differ.

    @property
    def reports_probabilities(self) -> bool:
        """Whether GenAI is asked for the target's probability of each committed token, which takes time.

        In greedy decoding it applies a confidence threshold only with `logprobs=1`; without, the draft's probability
        counts as unknown, and the draft stops after one token.
        """
        return isinstance(self.strategy, Confidence) and not self.sampling.do_sample

    def genai(self) -> dict[str, Any]:
        sampling = self.sampling
        fields: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "repetition_penalty": sampling.repetition_penalty,
            "do_sample": sampling.do_sample,
            "ignore_eos": self.ignore_eos,
        }
        if sampling.do_sample:
            fields |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
            fields |= {"top_k": sampling.top_k or _NO_TOP_K, "rng_seed": sampling.seed}
        if self.reports_probabilities:
            fields["logprobs"] = 1
        return fields | (self.strategy.genai() or {})

    def openai(self, *, neutral: bool = True) -> dict[str, Any]:
        """Return the fields of OpenAI's protocol and those that vLLM and others add to it.

        Not `neutral`: without additions that change nothing, since some servers refuse what they do not know.
        """
        sampling = self.sampling
        fields: dict[str, Any] = {
            "max_tokens": self.max_new_tokens,
            "temperature": sampling.temperature if sampling.do_sample else 0,
        }
        if sampling.do_sample:
            fields |= {"top_p": sampling.top_p, "seed": sampling.seed}
        added = {"ignore_eos": self.ignore_eos, "repetition_penalty": sampling.repetition_penalty}
        added |= {"top_k": sampling.top_k or -1} if sampling.do_sample else {}
        unchanged = {"ignore_eos": False, "repetition_penalty": 1, "top_k": -1}
        return fields | {name: value for name, value in added.items() if neutral or value != unchanged[name]}

    def llama_cpp(self, window: int) -> dict[str, Any]:
        """Return the fields of llama.cpp's server; a repetition penalty covers the last `window` tokens."""
        sampling = self.sampling
        return {
            "temperature": sampling.temperature if sampling.do_sample else 0,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": 0,
            "seed": sampling.seed,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": window,
            "ignore_eos": self.ignore_eos,
        }


# What happened: runs, and comparisons of two.

FinishReason = Literal["stop", "length", "cancelled", "failed", "absent"]
"""End-of-text token, token limit, the user's Stop, an error, or a side without a server."""

Side = Literal["plain", "speculative"]
SIDES: tuple[Side, Side] = ("plain", "speculative")


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DISCARDED = "discarded"


class Alternative(Record):
    """A token that the target might have chosen, with the target's probability."""

    id: Count
    text: str
    probability: Probability


class Token(Record):
    """A committed token. `probability` is the target's, if the engine reports it.

    `id` is None if a server does not report it. `entropy` is that of the target's distribution here, in bits.
    """

    id: Count | None
    text: str
    probability: Probability | None = None
    entropy: float | None = Field(None, ge=-0.01, le=64)  # rounded, like a probability


class DraftToken(Record):
    """A proposed token. `id` is None if only the number of proposals was reported."""

    id: Count | None
    text: str
    verdict: Outcome
    draft_probability: Probability | None = None
    target_probability: Probability | None = None


class Round(Record):
    """One cycle: the draft proposes, the target verifies in one pass, tokens are committed.

    `proposed` is None if not even the number of proposals was reported. Seconds are on the side's own clock.
    """

    committed: tuple[Token, ...] = Field(max_length=MOST)
    seconds: Seconds
    proposed: tuple[DraftToken, ...] | None = Field((), max_length=MOST)
    draft_seconds: Share | None = None
    verify_seconds: Share | None = None

    @property
    def ids(self) -> list[int]:
        """Ids of the committed tokens, without unreported ones."""
        return [token.id for token in self.committed if token.id is not None]

    @property
    def accepted(self) -> int:
        """Number of accepted proposals; if unreported, all committed tokens but the correction or bonus token."""
        if self.proposed is None:
            return max(len(self.committed) - 1, 0)
        return sum(token.verdict is Outcome.ACCEPTED for token in self.proposed)

    @property
    def contradicts_itself(self) -> bool:
        """Whether outcomes are in an order that no verification gives, or more are accepted than committed."""
        outcomes = [token.verdict for token in self.proposed or ()]
        possible = outcomes_from_counts(len(outcomes), self.accepted)
        # a text that ends within the proposals leaves those behind it unjudged
        ended = [Outcome.ACCEPTED] * self.accepted + [Outcome.DISCARDED] * (len(outcomes) - self.accepted)
        return bool(outcomes) and (outcomes not in (possible, ended) or self.accepted > len(self.committed))


def outcomes_from_counts(proposed: int, accepted: int) -> list[Outcome]:
    left = proposed - accepted
    return [Outcome.ACCEPTED] * accepted + [Outcome.REJECTED] * min(left, 1) + [Outcome.DISCARDED] * max(left - 1, 0)


class Run(Record):
    """One side of a comparison. `prefill` commits the first token; its seconds are the time to first token.

    `prompt_tokens` count chat and template, too; None if a server did not report them. Not `passes_known`: a server
    did not report which tokens came from one pass, so a round is what arrived together.
    """

    prefill: Round
    rounds: tuple[Round, ...] = Field((), max_length=MOST)
    finish_reason: FinishReason
    passes_known: bool = True
    prompt_tokens: Count | None = None

    @classmethod
    def without(cls, reason: Literal["failed", "absent", "cancelled"]) -> Self:
        """Return the run of a side without tokens, whose prefill has no true seconds."""
        return cls(prefill=Round(committed=(), seconds=TICK), finish_reason=reason)

    @property
    def tokens(self) -> tuple[Token, ...]:
        return tuple(token for step in (self.prefill, *self.rounds) for token in step.committed)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the committed tokens, without unreported ones."""
        return (*self.prefill.ids, *(id_ for step in self.rounds for id_ in step.ids))

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)


class WarmUp(Record):
    """A side's warm-up; not `steady`: time ran out while repetitions were still getting faster."""

    rounds: Count
    seconds: Share
    steady: bool


class Move(Record):
    """A setting changed during a run, effective from this round of the speculative side on."""

    round: int = Field(ge=1, le=MOST)
    num_assistant_tokens: Count | None = None
    assistant_confidence_threshold: Probability | None = None


_RESOLUTION = 5e-4  # of a log-probability in f32, where kernels differ
_LEAST = 1e-12  # of a probability: those below are rounding


class Divergence(Record):
    """The first token in which greedy outputs differ: each side's, with the target's probability of it.

    The probabilities are from one pass over the common text, off the clock. `rounding` is the largest difference in
    log-probability between a pass over several tokens and passes over one, measured just before.
    """

    index: Count
    plain: Alternative
    speculative: Alternative
    rounding: Share

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the divergence: each probability may be off by as much as was measured."""
        plain, speculative = (log(max(each.probability, _LEAST)) for each in (self.plain, self.speculative))
        return abs(plain - speculative) <= max(2 * self.rounding, _RESOLUTION)


TIMED_LOOKAHEAD = 4
"""Proposals per round when timing the draft step."""


class DraftRound(Record):
    """The draft's seconds in a round, the number of accepted proposals and, if reported, its probability of each."""

    seconds: Share
    probabilities: tuple[Probability, ...] = Field((), max_length=MOST)
    accepted: Count = 0


class Costs(Record):
    """Step costs of a pair in seconds, measured apart from any run.

    `plain_step` and `draft_step` (None without a draft) are medians; `verify[i]` is the median of a target pass over
    `i + 1` tokens, so `verify[0]` equals `plain_step`. `first_draft_step`, if measured, is a round's first draft
    step, which takes longer since the target's pass has just evicted the draft from the processor's caches. `drafted`
    are the draft's timed rounds. `other_load` is the share of the machine's processor time that other processes took
    meanwhile, None if unknown.
    """

    plain_step: Seconds
    draft_step: Seconds | None
    verify: tuple[Seconds, ...] = Field(min_length=1, max_length=MOST)
    first_draft_step: Seconds | None = None
    drafted: tuple[DraftRound, ...] = Field((), max_length=MOST)
    other_load: Probability | None = None

    @property
    def later_draft_step(self) -> float | None:
        """Seconds of a round's draft steps after the first; None without a draft."""
        if self.draft_step is None or self.first_draft_step is None:
            return self.draft_step
        later = (TIMED_LOOKAHEAD * self.draft_step - self.first_draft_step) / (TIMED_LOOKAHEAD - 1)
        return max(later, 0.1 * self.draft_step)  # noise can make the difference of two medians too small

    def drafting(self, lookahead: int) -> float | None:
        """Return the seconds of the draft steps of a round with so many proposals; None without a draft."""
        later = self.later_draft_step
        if later is None:
            return None
        return (self.first_draft_step or later) + (lookahead - 1) * later if lookahead else 0.0


class Trial(Record):
    """One speculative run and its plain neighbours.

    `seconds` and `plain_seconds`, the mean of both neighbours, are for the same number of new `tokens`, prefill
    excluded. Values that the engine does not report are None. `other_load` is the share of the machine's processor
    time that other processes took. `plain_steps` are the seconds of every plain step of the run before and the run
    after; `round_steps` are tokens committed, tokens proposed (-1 if unknown) and seconds of every speculative round.
    Both are empty for several requests at once.
    """

    tokens: Count
    seconds: Seconds
    plain_seconds: Seconds
    identical: bool
    rounds: Count | None
    run_tokens: Count
    proposed: Count | None = None
    accepted: Count | None = None
    other_load: Probability | None = None
    plain_steps: tuple[tuple[Seconds, ...], ...] = Field((), max_length=2)
    round_steps: tuple[tuple[Count, int, Seconds], ...] = Field((), max_length=MOST)


TraceSource = Literal["measured", "replayed", "counts only", "reported", "bursts"]
"""Source of a run's proposals.

measured: recorded as they were made; replayed: reconstructed off the clock by running the drafter over the committed
text; counts only: only their number is known. From a server: reported: proposed and accepted counts per round;
bursts: nothing, each round being text that arrived at once.
"""


class Comparison(Record):
    """Both sides of one prompt, which `history` precedes in a chat.

    `draft_agreement[i]`, computed off the clock after a greedy run, is whether the draft would have proposed the
    speculative side's token i + 1 after the same text. The oracle is computed from it.

    `repeats` are unwatched runs of the request after the race; `other_load` is the share of the machine's processor
    time that other processes took during the race, None if unknown. `failures` are the errors of sides whose server
    failed.
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
    history: tuple[Turn, ...] = Field((), max_length=MOST_TURNS)
    warm_up: dict[Side, WarmUp] | None = None
    repeats: tuple[Trial, ...] = Field((), max_length=MOST)
    moves: tuple[Move, ...] = Field((), max_length=MOST)
    other_load: Probability | None = None
    failures: dict[Side, str] = Field(default_factory=dict)
    divergence: Divergence | None = None

    @property
    def both(self) -> bool:
        """Whether both sides have tokens, so that they can be compared."""
        return bool(self.plain.tokens and self.speculative.tokens)

    def side(self, side: Side) -> Run:
        return self.plain if side == "plain" else self.speculative


# What is reported meanwhile.

F = TypeVar("F")


@dataclass(frozen=True)
class Progress(Generic[F]):
    """`done` of `total` parts, the `result` so far, and an estimate of the `seconds_left`, None at first."""

    done: int
    total: int
    seconds_left: float | None
    result: F
    doing: str = "measuring"


@dataclass(frozen=True)
class Phase:
    """An engine's activity while it is not decoding, with its seconds so far; `done` of `total` parts, if several."""

    name: Literal["converting", "loading", "calibrating", "warming up", "prefilling"]
    done: int = 0
    total: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Slice:
    """The rounds of one side in one slice; a side's first slice is its prefill, a single round."""

    side: Side
    rounds: tuple[Round, ...]
    finish_reason: FinishReason | None
    trace_source: TraceSource
    moves: tuple[Move, ...] = ()
