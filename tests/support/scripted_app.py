"""The app on scripted engines: python -m tests.support.scripted_app MODELS_DIR [SESSIONS]

Seconds are sums of powers of two, so that a sweep finds the same every time; those of long runs are slept, so that
they can be watched and stopped. The draft is right until the 20th token, so that short runs are exact.
"""

import sys
from dataclasses import replace
from pathlib import Path

from specdemo.capabilities import EngineName
from specdemo.engines.base import Decoder
from specdemo.models.catalogue import bundled_pair
from specdemo.records import Costs, ModelPair, Request, Side
from specdemo.strategies import Auto
from tests.support import BRIEF
from tests.support.scripted import ScriptedEngine

THOROUGHNESS = replace(BRIEF, repeats=6)
WRONG = range(20, 4000, 7)
LONG = 200  # tokens


class Engine(ScriptedEngine):
    """Fastest with the automatic policy, whose draft costs nothing; sampled texts differ."""

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        draft = 0 if isinstance(request.strategy, Auto) else self.draft
        long = request.max_new_tokens > LONG
        changed = replace(
            self,
            step=4 * self.step if long else self.step,  # slow enough for visitors to see them
            prefill=self.prefill * (1 + len(request.prompt.split()) // 32),
            draft=draft,
            diverges_at=30 if request.sampling.do_sample else None,
            real_time=long,
        )
        return ScriptedEngine.decoder(changed, request, costs)


def load(name: EngineName, pair: ModelPair, side: Side | None = None) -> Engine:
    words = 300 * tuple(Engine.words)  # more than any request
    engine = Engine(words, WRONG, step=2**-9, draft=2**-11, extra=2**-12, prefill=2**-7, thoroughness=THOROUGHNESS)
    engine.pair = pair
    return engine


if __name__ == "__main__":
    from specdemo.ui.page import serve  # not for the engine's process, which imports this file again
    from specdemo.ui.server import SESSIONS

    serve(bundled_pair(), models_dir=Path(sys.argv[1]), load=load, sessions=int([*sys.argv, str(SESSIONS)][2]))
