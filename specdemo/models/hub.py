"""Downloads from the Hugging Face Hub, into its own cache.

`fetch` runs in its own process, because only killing it cancels a stalled connection, and because `huggingface_hub`
reads its environment once, on import. That library (1.21 to 2.4) resumes a file whose connection was lost. It gives a
partial file a random name, so that one whose process was killed cannot be resumed, and is deleted.
"""

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from fnmatch import fnmatch
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from specdemo.child import Failure, Limits, run_child
from specdemo.errors import FetchError, ModelError, quoted
from specdemo.files import nearest_folder
from specdemo.models.catalogue import hub_cache, storage_of
from specdemo.models.converted import file_digest
from specdemo.models.devices import in_units
from specdemo.models.folder import check_one_network
from specdemo.models.gguf import LIMITS, inspect_limited
from specdemo.records import Model, Progress

_WEIGHTS = "openvino_model.bin"
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jin*",
    "chat_template.json",
    "openvino_*.xml",
    "openvino_*.bin",
)
"""Files that OpenVINO GenAI reads. A repository's other files are not downloaded."""
_RESERVE = 64 * 2**20  # bytes of the disk that a download leaves free
_DIGITS = 64  # of SHA-256, by which the Hub names large files; small ones have git's hash
_CHUNK = 2**18  # bytes; of the library's 10 MiB much is lost with a connection, and a slow download looks stuck


class RemoteFile(NamedTuple):
    """A file of a repository, and where its content is stored in the cache, by its digest."""

    name: str
    size: int
    blob: Path

    def partial_files(self) -> Iterator[Path]:
        return self.blob.parent.glob(f"{self.blob.name}.*.incomplete")

    @property
    def present(self) -> int:
        """Downloaded bytes."""
        for path in (self.blob, *self.partial_files()):
            with suppress(OSError):  # missing, or just being renamed
                return path.stat().st_size
        return 0


Plan = tuple[RemoteFile, ...]  # in the order of download


def download(
    repository: str, *, revision: str | None = None, stop: Callable[[], bool] = lambda: False, limits: Limits = LIMITS
) -> Generator[Progress[Path | None], None, None]:
    """Download the files of a repository that OpenVINO GenAI needs; progress is in bytes and ends with the folder.

    ORGANISATION/MODEL:FILE.gguf names a single file. `stop` is checked five times a second. A download that ends
    early keeps its complete files. The model is read within `limits`.
    """
    repository, _, gguf = repository.partition(":")
    free = shutil.disk_usage(nearest_folder(hub_cache())).free
    failure = Failure(FetchError, "The download ended", "download again")
    arguments = (repository, gguf or None, revision or "main", free)
    plan: Plan = ()
    start, before = 0.0, 0
    child = run_child(fetch, *arguments, name="specdemo download", failure=failure, stop=stop)
    earlier = {*(storage_of(repository) / "blobs").glob("*.incomplete")}
    with ExitStack() as leftovers, closing(child) as messages:
        for message in messages:
            if isinstance(message, tuple):
                leftovers.callback(_remove_partial_files, message, earlier)
                plan, start, before = message, perf_counter(), sum(file.present for file in message)
            total = sum(file.size for file in plan)
            if isinstance(message, Path):
                for _ in _inspect(message, limits):
                    yield Progress(total, total, 0, None)
                yield Progress(total, total, 0, message)
            elif plan:
                done, seconds = sum(file.present for file in plan), perf_counter() - start
                seconds_left = (total - done) * seconds / (done - before) if done > before else None
                yield Progress(done, total, seconds_left, None)


def _remove_partial_files(plan: Plan, earlier: set[Path]) -> None:
    """Remove the partial files of these that are not `earlier` ones, which may be another process's."""
    for file in plan:
        for partial in {*file.partial_files()} - earlier:
            partial.unlink(missing_ok=True)


def _inspect(path: Path, limits: Limits) -> Generator[None, None, Model]:
    """Inspect a download in a separate process, within limits; delete a file that is refused."""
    failure = Failure(ModelError, f"{path.name!r} cannot be read and was deleted", "choose another model")
    try:
        return (yield from inspect_limited(path, failure, limits=limits))
    except ModelError as error:
        if path.is_file():
            _remove(path)
        elif error.ended:
            (path / "openvino_model.xml").unlink(missing_ok=True)  # keeps listings from reading it
        raise


def _remove(file: Path) -> None:
    file.resolve().unlink(missing_ok=True)
    file.unlink(missing_ok=True)


def fetch(repository: str, gguf: str | None, revision: str, free: int) -> Iterator[Plan | Path]:
    try:
        yield from _fetch(repository, gguf, revision, free)
    except (ModelError, FetchError):
        raise
    except Exception as error:
        raise _explanation(error, repository) from error


def _fetch(repository: str, gguf: str | None, revision: str, free: int) -> Iterator[Plan | Path]:
    from huggingface_hub import HfApi, constants, hf_hub_download
    from huggingface_hub.utils import logging

    logging.set_verbosity(logging.ERROR)  # a lost connection is resumed, silently
    constants.HF_HUB_DISABLE_PROGRESS_BARS = True
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
    constants.HF_HUB_DISABLE_XET = True  # it does not write a file in order, so that progress could not be seen
    info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    siblings, blobs = info.siblings or [], storage_of(repository) / "blobs"
    files = [
        RemoteFile(file.rfilename, file.size or 0, blobs / (file.lfs.sha256 if file.lfs else file.blob_id or ""))
        for file in siblings
        if any(fnmatch(file.rfilename, pattern) for pattern in ([gguf] if gguf else MODEL_FILES))
    ]
    if not any(file.name == (gguf or _WEIGHTS) for file in files):
        names = [sibling.rfilename for sibling in siblings]
        if gguf is None:
            check_one_network(repository, names)
        raise _no_model_error(repository, gguf, names)
    # Weights come last: a snapshot that has them is complete.
    files.sort(key=lambda file: (file.name == _WEIGHTS, file.size))
    needed = sum(file.size - file.present for file in files)
    if needed and needed + _RESERVE > free:
        raise FetchError(
            f"The download needs {in_units(needed + _RESERVE)} more, but {nearest_folder(blobs)} has only "
            f"{in_units(free)} free; free some space, or set HF_HOME to a larger disk."
        )
    yield tuple(files)
    for file in files:
        path = Path(hf_hub_download(repository, file.name, revision=info.sha, cache_dir=hub_cache()))
        if len(file.blob.name) == _DIGITS and file_digest(path) != file.blob.name:
            _remove(path)
            raise FetchError(f"{file.name} arrived damaged and was deleted; download it again.")
    # this also stores the revision's name
    path = Path(hf_hub_download(repository, files[-1].name, revision=revision, cache_dir=hub_cache()))
    yield path if gguf else path.parent


def _no_model_error(repository: str, gguf: str | None, names: list[str]) -> FetchError:
    files = [name for name in names if name.lower().endswith(".gguf")]
    if gguf:
        return FetchError(
            f"The repository {quoted(repository)} has no file {quoted(gguf)}; "
            f"choose one of {', '.join(files) or 'another'}."
        )
    if files:
        return FetchError(
            f"The repository {quoted(repository)} contains GGUF files; name one of them, as {repository}:{files[0]}."
        )
    return FetchError(
        f"The repository {quoted(repository)} contains no OpenVINO model; "
        f"export it with: optimum-cli export openvino --model {repository} --weight-format int8 FOLDER."
    )


def _explanation(error: Exception, repository: str) -> FetchError:
    from huggingface_hub import constants, errors

    host = constants.ENDPOINT
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return FetchError(
            f"{repository} is gated; accept its licence at {host}/{repository}, and set HF_TOKEN to your token."
        )
    if isinstance(error, errors.HFValidationError):
        return FetchError(f"{quoted(repository)} is not a repository name; write it as ORGANISATION/MODEL.")
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        return FetchError(f"{host} does not show you {repository}; check its name, or set HF_TOKEN if it is private.")
    if status in (401, 403):
        return FetchError(f"{host} refused your token; set HF_TOKEN to one that can read {repository}.")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return FetchError(f"HF_HUB_OFFLINE is set, and {repository} is not on this machine; unset it to download.")
    if isinstance(error, PermissionError):
        return FetchError(f"The cache is not writable ({error}); set HF_HOME to a directory that is.")
    if status is not None:
        return FetchError(f"{host} answered with status {status}; check the name, or try again later.")
    if isinstance(error, errors.HTTPError | errors.LocalEntryNotFoundError | ConnectionError):
        return FetchError(f"{host} cannot be reached; check the network, or set HF_ENDPOINT to a mirror.")
    advice = "try it again, or correct the proxy or certificate that the environment names"
    return FetchError.of(error, f"The download of {repository} failed", advice)
