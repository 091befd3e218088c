"""This machine's memory, in pages of its choice or in huge ones."""

import sys
from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from platform import release

import pytest

from specdemo.models.devices import describe_environment
from specdemo.models.machine import HUGE_PAGES_VARIABLE, huge_page_bytes, use_huge_pages
from specdemo.models.pairs import bundled_pair

if sys.platform == "linux":
    from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE
else:
    pytest.skip("other systems have no pages to move memory to later", allow_module_level=True)

SIZE = 64 << 20  # bytes
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.fixture
def memory() -> Iterator[mmap]:
    """Memory in small pages, each with its number in its first byte."""
    memory = mmap(-1, SIZE, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    for place in range(0, SIZE, PAGESIZE):
        memory[place] = place // PAGESIZE % 251
    yield memory
    memory.close()


def _unchanged(memory: mmap) -> bool:
    return all(memory[place] == place // PAGESIZE % 251 for place in range(0, SIZE, PAGESIZE))


def test_memory_moves_to_huge_pages_with_its_content(memory: mmap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HUGE_PAGES_VARIABLE)
    before = huge_page_bytes()
    use_huge_pages("CPU")
    assert _unchanged(memory)
    if not ENABLED.exists() or tuple(map(int, release().split(".")[:2])) < (6, 1):
        pytest.skip("this system cannot move memory to huge pages")
    after = huge_page_bytes()
    assert before is not None
    assert after is not None
    assert after >= SIZE // 2
    assert after - before >= SIZE // 2 or "[always]" in ENABLED.read_text()  # where it was huge from the start


@pytest.mark.parametrize(("device", "value"), [("CPU", "off"), ("GPU", "on")])
def test_memory_stays_where_it_is_if_asked_and_for_other_devices(
    device: str, value: str, memory: mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HUGE_PAGES_VARIABLE, value)
    before = huge_page_bytes()
    use_huge_pages(device)
    assert huge_page_bytes() == before


def test_the_environment_tells_whether_weights_are_in_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = bundled_pair()
    weights = pair.target.weight_bytes
    assert weights is not None
    for moved, expected in ((weights, True), (weights - 1, False), (None, None)):
        monkeypatch.setattr("specdemo.models.devices.huge_page_bytes", lambda moved=moved: moved)
        assert describe_environment(pair).huge_pages is expected
