"""Locations of models on this machine: the Hub's cache, our own, the user's directory, and other programs' folders.

The environment is read at every call, not once at import. GGUF files of other programs are listed under the names
that those programs use:

- The Hub's cache: files of a repository's snapshots.
- LM Studio: `models` in its home, as publisher/repository/file. The home is named in `~/.lmstudio-home-pointer`, else
  `~/.lmstudio`, in older versions `~/.cache/lm-studio`; its settings can name another folder.
- llama.cpp: files in LLAMA_CACHE, else in `llama.cpp` in the user's cache; newer versions use the Hub's cache, and
lay
  out LLAMA_CACHE the same way.
- Ollama: blobs named by digest in OLLAMA_MODELS, else in `~/.ollama/models`, or in that of its Linux service; a
  manifest for each tag names the blob that is the model.

The search must be quick: folders are searched to a fixed depth, within a time limit, and unreadable ones are skipped.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic

import platformdirs

from specdemo.errors import SpecdemoError, quoted
from specdemo.files import json_value

MODELS_VARIABLE = "SPECDEMO_MODELS"


def hub_cache() -> Path:
    """Return the cache of `huggingface_hub`, by its own rules: HF_HUB_CACHE, else `hub` in HF_HOME."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return expanded(os.environ[name])
    if os.environ.get("HF_HOME"):
        return expanded(os.environ["HF_HOME"]) / "hub"
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"  # on every system
    return expanded(caches) / "huggingface" / "hub"


def models_dir(given: Path | None = None) -> Path:
    if given is not None:
        return given
    named = os.environ.get(MODELS_VARIABLE)
    return expanded(named) if named else own_cache() / "models"


def own_cache() -> Path:
    return platformdirs.user_cache_path("specdemo", appauthor=False, opinion=False)


def writable(folder: Path, what: str, advice: str = "set XDG_CACHE_HOME to a writable folder") -> Path:
    """Return the folder, created if necessary, checked to be writable; `what` is to be saved there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise SpecdemoError(
            f"{what} cannot be saved in {quoted(str(folder))} ({error.strerror}); {advice}."
        ) from error


def is_writable(folder: Path) -> bool:
    try:
        return writable(folder, "Files") == folder
    except SpecdemoError:
        return False


def link_or_copy(source: Path, link: Path) -> None:
    """Link a file or folder in whatever way this system and these disks allow, else copy it."""
    for how in (os.symlink, os.link):
        with suppress(OSError):
            how(source, link)
            return
    if source.is_dir():
        shutil.copytree(source, link)
    else:
        shutil.copyfile(source, link)


def expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()


_MOST_FILES = 200
_SECONDS = 0.5  # for each program's folder
_PASSED_OVER = re.compile(r"mmproj|-(?!00001-)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
"""Image projectors are not language models; a model in several parts is represented by the first."""
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")


def found_files() -> Iterator[tuple[str, Path]]:
    """Yield the name and path of every GGUF file that another program keeps, each file once."""
    seen = set()
    for name, path in islice(_everywhere(), _MOST_FILES):
        with suppress(OSError):
            file = path.resolve(strict=True)
            if file not in seen:
                seen.add(file)
                yield name, path


def gguf_files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the GGUF files in a folder and `depth` levels below it, sorted by name."""
    deadline, open_ = monotonic() + _SECONDS, [(folder, depth)]
    while open_ and monotonic() < deadline:
        place, left = open_.pop(0)
        with suppress(OSError), os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.startswith("."):
                    continue
                if left and entry.is_dir():
                    open_.append((place / entry.name, left - 1))
                elif entry.name.lower().endswith(".gguf") and not _PASSED_OVER.search(entry.name):
                    yield place / entry.name


def hub_files(cache: Path) -> Iterator[tuple[str, Path]]:
    """Yield the GGUF files of a cache laid out like the Hub's, as ORGANISATION/MODEL:FILE, newest snapshot first."""
    for storage in listed(cache):
        if not storage.name.startswith("models--"):
            continue
        repository = storage.name.removeprefix("models--").replace("--", "/")
        named = set()
        for snapshot in sorted(listed(storage / "snapshots"), key=modified, reverse=True):
            for path in gguf_files(snapshot, depth=1):
                name = f"{repository}:{path.relative_to(snapshot).as_posix()}"
                if name not in named:
                    named.add(name)
                    yield name, path


def _everywhere() -> Iterator[tuple[str, Path]]:
    yield from hub_files(hub_cache())
    for folder in _lm_studio():
        for path in gguf_files(folder, depth=2):
            *repository, file = path.relative_to(folder).parts
            yield f"{'/'.join(repository)}:{file}" if repository else file, path
    folder = _llama_cpp()
    yield from hub_files(folder)
    yield from ((path.name, path) for path in gguf_files(folder, depth=0))
    yield from _ollama()


def _lm_studio() -> Iterator[Path]:
    homes = [Path.home() / ".lmstudio", Path.home() / ".cache" / "lm-studio"]
    with suppress(OSError, ValueError, IndexError):
        homes.insert(0, Path((Path.home() / ".lmstudio-home-pointer").read_text(encoding="utf-8").splitlines()[0]))
    for home in dict.fromkeys(homes):
        with suppress(OSError, ValueError, KeyError, TypeError):
            yield expanded(json_value(_looked_at(home / "settings.json"))["downloadsFolder"])
        yield home / "models"


def _llama_cpp() -> Path:
    named = os.environ.get("LLAMA_CACHE")
    return expanded(named) if named else platformdirs.user_cache_path("llama.cpp", appauthor=False, opinion=False)


def _ollama() -> Iterator[tuple[str, Path]]:
    named = os.environ.get("OLLAMA_MODELS")
    for folder in [expanded(named)] if named else [Path.home() / ".ollama" / "models", _OLLAMA_SERVICE]:
        for manifest in _files(folder / "manifests", depth=4):
            digest = _ollama_digest(manifest)
            if digest is not None:
                registry, *place, model, tag = manifest.relative_to(folder / "manifests").parts
                usual = registry == "registry.ollama.ai"
                place = [part for part in place if part != "library"] if usual else [registry, *place]
                yield "/".join([*place, f"{model}:{tag}"]), folder / "blobs" / digest.replace(":", "-")


def _ollama_digest(manifest: Path) -> str | None:
    """Return the digest of the model's blob; None if this is not a model's manifest."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for layer in json_value(_looked_at(manifest))["layers"]:
            if layer["mediaType"] == _OLLAMA_MODEL and re.fullmatch(r"sha256:[0-9a-f]{64}", layer["digest"]):
                return str(layer["digest"])
    return None


def _looked_at(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(2**20)  # of manifests and settings, which take some kilobytes


def _files(folder: Path, depth: int) -> Iterator[Path]:
    for path in listed(folder):
        if depth > 1:
            yield from _files(path, depth - 1)
        elif path.is_file():
            yield path


def listed(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def modified(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
