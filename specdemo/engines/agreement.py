"""Where a draft agrees with a text: what an oracle needs to know, found off the clock."""

from collections.abc import Sequence

from specdemo.decoding.sampling import greedy_choice, resized
from specdemo.runtime.language_model import ModelSequence
from specdemo.settings import Sampling

_CHUNK = 256  # tokens whose logits are computed together, which bounds their memory


def draft_agreement(
    draft: ModelSequence, text: Sequence[int], first: int, sampling: Sampling, vocabulary: int | None = None
) -> tuple[bool, ...]:
    """For each token of a text from index `first` on, whether the draft's greedy choice is the same.

    `vocabulary` is the number of tokens to choose among, if it is not the draft's own number of logits.
    """
    agreement: list[bool] = []
    for start in range(first, len(text), _CHUNK):
        end = min(start + _CHUNK, len(text))
        logits = draft.logits(text[: end - 1], end - start)
        for index, row in enumerate(logits, start):
            seen = set(text[:index]) if sampling.repetition_penalty != 1 else ()
            choices = row if vocabulary is None else resized(row, vocabulary)
            agreement.append(greedy_choice(choices, sampling, seen) == text[index])
    return tuple(agreement)
