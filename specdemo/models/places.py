"""Where models are on this machine: the Hub's cache, our own, and a directory of the user's.

The environment is read at every call, not once at import.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import platformdirs

from specdemo.errors import SpecdemoError, quoted

MODELS_VARIABLE = "SPECDEMO_MODELS"


def hub_cache() -> Path:
    """The cache of `huggingface_hub`, by its own rules: HF_HUB_CACHE, else `hub` in HF_HOME."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return expanded(os.environ[name])
    if os.environ.get("HF_HOME"):
        return expanded(os.environ["HF_HOME"]) / "hub"
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"  # on every system
    return expanded(caches) / "huggingface" / "hub"


def models_dir(given: Path | None = None) -> Path:
    """The user's own models: the directory given, else that of SPECDEMO_MODELS, else one in our cache."""
    if given is not None:
        return given
    named = os.environ.get(MODELS_VARIABLE)
    return expanded(named) if named else own_cache() / "models"


def own_cache() -> Path:
    """Where this program keeps what it can get again."""
    return platformdirs.user_cache_path("specdemo", appauthor=False, opinion=False)


def writable(folder: Path, what: str, advice: str = "set XDG_CACHE_HOME to a writable folder") -> Path:
    """The folder, made if there is none yet, to keep `what` in.

    Raises:
        SpecdemoError: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise SpecdemoError(
            f"{what} cannot be saved in {quoted(str(folder))} ({error.strerror}); {advice}."
        ) from error


def is_writable(folder: Path) -> bool:
    """Whether something can be kept in a folder, which is made if there is none yet."""
    try:
        return writable(folder, "Files") == folder
    except SpecdemoError:
        return False


def link_or_copy(source: Path, link: Path) -> None:
    """A link to a file or folder, of whatever kind this system and these disks allow, else a copy."""
    for how in (os.symlink, os.link):
        with suppress(OSError):
            how(source, link)
            return
    if source.is_dir():
        shutil.copytree(source, link)
    else:
        shutil.copyfile(source, link)


def expanded(path: str) -> Path:
    """A path from the environment, or from another program's settings."""
    return Path(os.path.expandvars(path)).expanduser()
