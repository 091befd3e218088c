"""What the reports of all experiments share."""

from specdemo.estimate import Interval
from specdemo.experiments.report import Line, speedup_lines


def test_one_wide_interval_does_not_flatten_a_chart() -> None:
    narrow = [Interval(middle=1.2, low=1.1, high=1.3), Interval(middle=0.9, low=0.8, high=1.0)]
    assert speedup_lines([Line("all", ["a", "b"], narrow)], "kind").layout.yaxis.range is None
    wide = [*narrow, Interval(middle=1.5, low=0.01, high=500)]
    figure = speedup_lines([Line("all", ["a", "b", "c"], wide)], "kind")
    assert figure.layout.yaxis.range == (0, 3)
    assert "500" in figure.data[0].text[2]  # hovering shows it whole
