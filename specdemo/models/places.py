"""Where models are on this machine: the Hub's cache, and a directory of the user's own.

The environment is read at every call, not once at import.
"""

import os
from pathlib import Path

MODELS_VARIABLE = "SPECDEMO_MODELS"


def hub_cache() -> Path:
    """The cache of `huggingface_hub`, by its own rules: HF_HUB_CACHE, else `hub` in HF_HOME."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return _expanded(os.environ[name])
    home = os.environ.get("HF_HOME")
    return (_expanded(home) if home else user_cache() / "huggingface") / "hub"


def models_dir(given: Path | None = None) -> Path:
    """The user's own models: the directory given, else that of SPECDEMO_MODELS, else one in the user's cache."""
    if given is not None:
        return given
    named = os.environ.get(MODELS_VARIABLE)
    return _expanded(named) if named else user_cache() / "specdemo" / "models"


def user_cache() -> Path:
    """Where programs keep what they can recreate."""
    named = os.environ.get("XDG_CACHE_HOME")
    return _expanded(named) if named else Path.home() / ".cache"


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()
