"""Servers that misbehave: a comparison by each ends in an answer or a sentence."""

import traceback
from contextlib import closing
from itertools import cycle, islice

from specdemo.engines.server import RemoteEngine, remote_pair
from specdemo.errors import SpecdemoError
from specdemo.models.pairs import initial_settings
from specdemo.race import race
from specdemo.records import Comparison, Server, Servers
from tests.benchmarks.siege.tally import Tally
from tests.support.fake_server import MISBEHAVING, misbehaving


def asked(times: int) -> Tally:
    """So many comparisons, by servers of each kind in turn."""
    tally = Tally(tried=times)
    for mode in islice(cycle(MISBEHAVING), times):
        with misbehaving(mode) as url:
            servers = Servers(speculative=Server(url=url, kind="openai", silence_seconds=1))
            try:
                with closing(RemoteEngine(remote_pair(servers))) as engine:
                    *_, last = race(engine, "Say", initial_settings(engine.pair, max_new_tokens=32))
                answered = isinstance(last, Comparison) and bool(last.speculative.text or last.failures)
                tally.answered += answered
                tally.unexplained += not answered
            except SpecdemoError as error:
                tally.refused += bool(str(error))
            except Exception:
                traceback.print_exc()
                tally.tracebacks += 1
    return tally
