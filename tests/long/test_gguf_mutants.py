"""Many more mutants of GGUF headers than the suite has time for.

python -m pytest tests/long/test_gguf_mutants.py
"""

from hypothesis import HealthCheck, given, settings

from tests.models.test_gguf_mutants import read
from tests.support import mutants


@settings(max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=mutants.files())
def test_any_file_is_read_or_refused(content: bytes) -> None:
    read(content)
