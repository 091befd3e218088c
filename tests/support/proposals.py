"""What tests know of a round."""

from specdemo.records import DraftToken, Round


def proposals(step: Round) -> tuple[DraftToken, ...]:
    """What was proposed in a round; fails where that is not known."""
    assert step.proposed is not None
    return step.proposed
