from specdemo.records import DraftToken, Round


def proposals(step: Round) -> tuple[DraftToken, ...]:
    assert step.proposed is not None
    return step.proposed
