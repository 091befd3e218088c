"""Immutable values that engines produce and everything else reads.

A run is a prefill followed by rounds. Plain decoding is the same stream of rounds with nothing proposed, so one token
counter, one clock and one set of charts serve both sides. Rates and counts are not stored: `metrics` derives them.
"""

from dataclasses import dataclass
from math import log
from typing import Generic, Literal, TypeVar

from pydantic import Field

from specdemo.records.base import MOST as MOST
from specdemo.records.base import TICK as TICK
from specdemo.records.base import Count as Count
from specdemo.records.base import Probability, Share
from specdemo.records.base import Record as Record
from specdemo.records.request import MOST_TURNS as MOST_TURNS
from specdemo.records.request import SILENCE_SECONDS as SILENCE_SECONDS
from specdemo.records.request import Model as Model
from specdemo.records.request import ModelPair as ModelPair
from specdemo.records.request import Prompts as Prompts
from specdemo.records.request import Request as Request
from specdemo.records.request import Server as Server
from specdemo.records.request import Servers as Servers
from specdemo.records.request import Turn as Turn
from specdemo.records.run import MOST_IN_FLIGHT as MOST_IN_FLIGHT
from specdemo.records.run import SIDES as SIDES
from specdemo.records.run import TIMED_LOOKAHEAD as TIMED_LOOKAHEAD
from specdemo.records.run import Alternative as Alternative
from specdemo.records.run import Costs as Costs
from specdemo.records.run import DraftRound as DraftRound
from specdemo.records.run import DraftToken as DraftToken
from specdemo.records.run import FinishReason as FinishReason
from specdemo.records.run import Outcome as Outcome
from specdemo.records.run import Round as Round
from specdemo.records.run import Run as Run
from specdemo.records.run import Side as Side
from specdemo.records.run import Spread as Spread
from specdemo.records.run import StepCosts as StepCosts
from specdemo.records.run import Token as Token
from specdemo.records.run import Trial as Trial
from specdemo.records.run import outcomes_from_counts as outcomes_from_counts
from specdemo.settings import GenerationSettings

TraceSource = Literal["measured", "replayed", "counts only", "reported", "bursts"]
"""Source of a run's proposals.

measured: recorded as they were made; replayed: reconstructed off the clock by running the drafter over the committed
text; counts only: only their number is known. From a server: reported: proposed and accepted counts per round;
passes: only which tokens arrived together; bursts: nothing, each round being text that arrived at once.
"""

NOT_USED = "not used"
"""Stands for OpenVINO's version if a server decodes."""


_RESOLUTION = 5e-4  # of a log-probability in f32, where kernels differ


F = TypeVar("F")


@dataclass(frozen=True)
class Progress(Generic[F]):
    """Progress: `done` of `total` parts, and the `result` so far.

    `seconds_left` is an estimate from the parts so far, None at first; `doing` names the current part.
    """

    done: int
    total: int
    seconds_left: float | None
    result: F
    doing: str = "measuring"


@dataclass(frozen=True)
class Phase:
    """An engine's activity while it is not decoding, with its seconds so far.

    `done` of `total` parts, if there are several.
    """

    name: Literal["converting", "loading", "calibrating", "warming up", "prefilling"]
    done: int = 0
    total: int = 0
    seconds: float = 0.0


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


class WarmUp(Record):
    """A side's warm-up before its run: `rounds` in `seconds`, prefills included.

    Not `steady`: time ran out while repetitions were still getting faster.
    """

    rounds: Count
    seconds: Share
    steady: bool


class Move(Record):
    """A setting changed during a run, effective from this round of the speculative side on."""

    round: int = Field(ge=1, le=MOST)
    num_assistant_tokens: Count | None = None
    assistant_confidence_threshold: Probability | None = None


@dataclass(frozen=True)
class Slice:
    """The rounds of one side in one slice; a side's first slice is its prefill, a single round."""

    side: Side
    rounds: tuple[Round, ...]
    finish_reason: FinishReason | None
    trace_source: TraceSource
    moves: tuple[Move, ...] = ()


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
    def gap(self) -> float:
        least = 1e-12
        return abs(log(max(self.plain.probability, least)) - log(max(self.speculative.probability, least)))

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the divergence: each probability may be off by as much as was measured."""
        return self.gap <= max(2 * self.rounding, _RESOLUTION)


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
