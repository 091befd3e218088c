"""The mathematics of decoding, independent of models: sampling, verification, and when to stop proposing."""

from specdemo.decoding.auto import AutoPolicy, Experience, Timing
from specdemo.decoding.indexes import Match, Memory, SuffixIndex, TextIndex, index_of, look_up
from specdemo.decoding.lookahead import LookaheadPolicy, policy_for, propose
from specdemo.decoding.steps import QueryLength
from specdemo.decoding.verification import (
    Logits,
    Probabilities,
    Uniform,
    Verification,
    block_verify,
    distribution,
    draw,
    entropy,
    greatest_probability,
    greedy_choice,
    judge,
    outcomes_from_counts,
    penalised,
    rejection_sample,
    resized,
    softmax,
)

__all__ = [
    "AutoPolicy",
    "Experience",
    "Logits",
    "LookaheadPolicy",
    "Match",
    "Memory",
    "Probabilities",
    "QueryLength",
    "SuffixIndex",
    "TextIndex",
    "Timing",
    "Uniform",
    "Verification",
    "block_verify",
    "distribution",
    "draw",
    "entropy",
    "greatest_probability",
    "greedy_choice",
    "index_of",
    "judge",
    "look_up",
    "outcomes_from_counts",
    "penalised",
    "policy_for",
    "propose",
    "rejection_sample",
    "resized",
    "softmax",
]
