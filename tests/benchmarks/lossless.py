"""Whether sampling keeps the target's distribution: the goodness-of-fit test of the suite, on real draws.

    python -m tests.benchmarks.lossless [--draws 2500]

Prints, for each engine and position, how far the drawn tokens are from the exact distribution of plain sampling:
χ² as a standard normal deviate, and the total variation, which also chance keeps above 0. The traced engine's draws
are decoded in full here, without the shortcut of the test.
"""

import argparse
from collections import Counter

from specdemo.engines import load_engine
from specdemo.engines.base import rounds_of
from specdemo.models.pairs import bundled_pair
from specdemo.records import Request
from specdemo.strategies import LOCAL
from tests.engines.test_lossless import PROMPT, SETTINGS, Remembering, exact, goodness_of_fit


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2500)
    draws = parser.parse_args().draws
    expected = exact(Remembering())
    for name in LOCAL:
        engine = load_engine(name, bundled_pair())
        settings = SETTINGS.model_copy(update={"engine": name, "ignore_eos": True})
        for what in ("plain", "speculative"):
            seen = [Counter[int]() for _ in expected]
            for seed in range(draws):
                chosen = settings.model_copy(update={"seed": seed})
                request = Request.of(PROMPT, chosen)
                decoder = engine.decoder(request.plain if what == "plain" else request)
                tokens = [id_ for step in rounds_of(decoder) for id_ in step.ids]
                for position, token in zip(seen, tokens, strict=True):
                    position[token] += 1
            for number, (observed, probabilities) in enumerate(zip(seen, expected, strict=True), 1):
                deviation = goodness_of_fit(observed, probabilities)
                known = probabilities.keys() | observed.keys()
                variation = sum(abs(observed[token] / draws - probabilities[token]) for token in known) / 2
                print(f"{name} {what}, token {number}: deviate {deviation:7.1f}   total variation {variation:.3f}")
        engine.close()


if __name__ == "__main__":
    main()
