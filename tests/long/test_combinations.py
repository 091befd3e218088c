"""Combinations of what the quick suite tries one by one.

python -m pytest tests/long/test_combinations.py
"""

from typing import Any

import pytest

from specdemo.child import result_of
from specdemo.engines.traced import TracedEngine
from specdemo.ui.uploads import share_apart
from tests import test_child
from tests.conftest import PROMPTS
from tests.engines import test_traced
from tests.ui import test_uploads

foreign, saved = test_traced.foreign, test_uploads.saved  # fixtures


@pytest.mark.openvino
@pytest.mark.parametrize("prompt", [*PROMPTS, "Ein Märchen 🦊"])
@pytest.mark.parametrize("drafter", [{"policy": "heuristic"}, {"policy": "confidence"}], ids=str)
def test_a_draft_with_another_tokenizer_is_translated(
    foreign: TracedEngine, traced: TracedEngine, prompt: str, drafter: dict[str, Any]
) -> None:
    test_traced.test_a_draft_with_another_tokenizer_is_translated(foreign, traced, prompt, drafter)


@pytest.mark.parametrize("seconds", [0.3, 4.0])
def test_ctrl_c_leaves_no_traceback_at_any_moment_of_a_command(seconds: float) -> None:
    test_child.test_ctrl_c_leaves_no_traceback_at_any_moment_of_a_command(seconds)


@pytest.mark.parametrize(("kind", "start"), [("html", b"<!"), ("png", b"\x89PNG")])
def test_a_run_is_drawn_in_a_process_of_its_own(kind: str, start: bytes, saved: dict[str, Any]) -> None:
    assert result_of(share_apart(kind, test_uploads.packed(saved))).startswith(start)
