"""Servers that misbehave in every way: each ends in a sentence or an answer, soon, and takes little memory."""

from contextlib import closing
from time import monotonic

import psutil
import pytest

from specdemo.engines.server import RemoteEngine, remote_pair
from specdemo.errors import ServerError
from specdemo.measure.race import race
from specdemo.models.pairs import initial_settings
from specdemo.records import Comparison, Server, Servers
from tests.support.misbehaving import LISTS, STREAMS, misbehaving

SILENCE = 1.0
MOST_SECONDS = 20.0
MOST_BYTES = 400 * 2**20


def outcome(mode: str) -> str:
    """What a comparison by such a server ends in: a text, or a sentence about what is wrong."""
    with misbehaving(mode) as url:
        servers = Servers(speculative=Server(url=url, kind="openai", silence_seconds=SILENCE))
        try:
            with closing(RemoteEngine(remote_pair(servers))) as engine:
                *_, last = race(engine, "Say", initial_settings(engine.pair, max_new_tokens=32))
        except ServerError as error:
            return str(error)
    if not isinstance(last, Comparison):
        return "nothing"
    return last.failures.get("speculative") or last.speculative.text


@pytest.mark.parametrize("mode", [*STREAMS, *LISTS])
def test_a_server_that_misbehaves_ends_in_a_sentence(mode: str) -> None:
    before, began = psutil.Process().memory_info().rss, monotonic()
    said = outcome(mode)
    assert said
    assert monotonic() - began < MOST_SECONDS
    assert psutil.Process().memory_info().rss - before < MOST_BYTES
    if mode == "well-behaved":
        assert said == "word " * 5
    print(mode, "|", said)


def test_every_mode_is_one_of_thirty_or_more() -> None:
    assert len(STREAMS) + len(LISTS) > 30
