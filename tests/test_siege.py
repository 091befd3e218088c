import json

import pytest

from tests.benchmarks.siege import MOST_BYTES, MOST_SILENCE, main


def test_the_app_withstands_a_short_siege(capfd: pytest.CaptureFixture[str]) -> None:
    few = {"clients": 4, "requests": 30, "dropped": 1}
    code = main([f"--{name}={count}" for name, count in few.items()])
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert [found[name] for name in ("unexplained", "tracebacks", "mixed_up")] == [0, 0, 0]
    assert found["tried"] == found["answered"] + found["refused"] > sum(few.values())
    assert 0 < found["server_bytes"] < MOST_BYTES
    assert 0 < found["engine_bytes"] < MOST_BYTES
    assert code == 0 or found["silence"] >= MOST_SILENCE, "which a busy machine alone can cause"
