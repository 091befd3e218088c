"""Charts: the values that they draw."""

import pytest

from specdemo.records import Run, SettingsUpdate
from specdemo.results.figures import chart, columns, xy_chart
from tests.support.machines import round_of
from tests.support.proposals import compared, proposals
from tests.support.scripted import ScriptedEngine


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
    assert [*columns(Run.without("failed"))] == []


def test_a_changed_setting_is_marked_before_its_round() -> None:
    raced = compared(ScriptedEngine(step=0.010, draft=0.002, extra=0.001), num_assistant_tokens=2)
    updates = tuple(SettingsUpdate(round=at, values={"num_assistant_tokens": 2}) for at in (3, 4, 99))
    moved = raced.model_copy(update={"settings_updates": updates})
    for name, at in (("tokens", 0.032), ("acceptance", 2.5)):
        (mark,), (note,) = chart(moved, name).layout.shapes, chart(moved, name).layout.annotations
        assert (mark.x0, mark.x1, mark.y0, mark.y1) == (pytest.approx(at), pytest.approx(at), 0, 1)
        assert (note.x, note.y, note.text) == (pytest.approx(at), 1, "lookahead 2")


def test_bars_have_hatches_and_no_interval_stretches_the_axis_beyond_twice_the_largest_value() -> None:
    spots = {"a": [("x", 1.5, 1.0, 2.0, "1.5×")], "b": [("<b>", 1.0, 0.5, 9.0, "1×")]}
    first, second = (shown := xy_chart("", "speedup", spots, along=False)).data
    assert (first.marker.pattern.shape, second.marker.pattern.shape) == ("", "/")
    assert ([*second.x], [*second.error_y.array], [*second.error_y.arrayminus]) == (["&lt;b&gt;"], [8.0], [0.5])
    assert [*shown.layout.yaxis.range] == [0, 3.0]
    assert shown.layout.showlegend
    single = xy_chart("n", "speedup", {"a": [(1, 1.5, 1.0, 3.0, ""), (2, None, None, None, "")]})
    assert (single.layout.yaxis.range, single.layout.showlegend, single.layout.shapes[0].y0) == (None, False, 1)
