"""specdemo: watch plain and speculative decoding of the same model race on your own machine.

    import specdemo

    run = specdemo.compare(specdemo.load("SmolLM2-135M-Instruct"), "Tell me a story about a fox.")
    run.speedup

Importing this package is fast and has no side effects: names are imported on first use.
"""

from specdemo.version import __version__ as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from specdemo.api import Pair as Pair
    from specdemo.api import Run as Run
    from specdemo.api import compare as compare
    from specdemo.api import experiment as experiment
    from specdemo.api import load as load
    from specdemo.api import open_run as open_run
    from specdemo.errors import SpecdemoError

__all__ = ["Pair", "Run", "SpecdemoError", "compare", "experiment", "load", "open_run"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'specdemo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("specdemo.errors" if name == "SpecdemoError" else "specdemo.api"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
