"""The app on scripted engines, whose clocks are arithmetic, so that a sweep finds the same every time.

python -m tests.scripted_app
"""

from specdemo.engines.base import Decoder
from specdemo.engines.scripted import ScriptedEngine
from specdemo.models.pairs import bundled_pair
from specdemo.records import Costs, ModelPair, Request
from specdemo.ui import page
from specdemo.ways import Auto, EngineName


class Engine(ScriptedEngine):
    """Fastest with the automatic policy, whose draft costs nothing."""

    def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
        return (ScriptedEngine(draft=0) if isinstance(request.way, Auto) else super()).decoder(request, costs)


def load(name: EngineName, pair: ModelPair) -> Engine:
    """An engine that calls itself this pair."""
    engine = Engine()
    engine.pair = pair
    return engine


if __name__ == "__main__":
    page.load_engine = load
    page.serve(bundled_pair())
