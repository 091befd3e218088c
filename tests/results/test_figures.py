from specdemo.records import Run
from specdemo.results.figures import columns
from tests.support.machines import round_of
from tests.support.proposals import proposals


def test_a_round_has_its_counts_and_the_parts_of_its_time() -> None:
    drafted = round_of(3, 1, 0.016).model_copy(update={"draft_seconds": 0.004, "verify_seconds": 0.008})
    alone = round_of(0, 0, 0.016).model_copy(update={"draft_seconds": 0.0, "verify_seconds": 0.016})
    first, *others = proposals(round_of(3, 3, 0.016))
    copies = tuple(draft.model_copy(update={"copied": True}) for draft in others)
    copied = round_of(3, 3, 0.016).model_copy(update={"proposed": (first, *copies)})
    unknown = round_of(3, 1, 0.032).model_copy(update={"proposed": None})
    prefill = round_of(0, 0, 0.064)
    run = Run(prefill=prefill, rounds=(alone, drafted, copied, unknown), finish_reason="length")
    assert [*columns(run)] == [
        {"round": None, "seconds": 0.0, "tokens": 1, "step": 64.0, "whole": 64.0},
        {"round": 1, "seconds": 0.016, "tokens": 2, "accepted": 0, "unaccepted": 0, "alpha": None, "copied": None}
        | {"step": 16.0, "draft": 0.0, "verify": 16.0, "rest": 0.0},
        {"round": 2, "seconds": 0.032, "tokens": 4, "accepted": 1, "unaccepted": 2, "alpha": 1 / 3, "copied": None}
        | {"step": 16.0, "draft": 4.0, "verify": 8.0, "rest": 4.0},
        {"round": 3, "seconds": 0.048, "tokens": 8, "accepted": 3, "unaccepted": 0, "alpha": 4 / 6, "copied": 2}
        | {"step": 16.0, "whole": 16.0},
        {"round": 4, "seconds": 0.08, "tokens": 10, "step": 32.0, "whole": 32.0},
    ]
