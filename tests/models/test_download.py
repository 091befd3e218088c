import shutil
import socket
from collections import namedtuple
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from specdemo.child import Limits
from specdemo.errors import FetchError, FolderError, GGUFError, ModelError
from specdemo.models.catalogue import BUNDLED, Source, cached_folders, hub_cache, local_folder, storage_of
from specdemo.models.hub import download
from specdemo.models.library import find_model, library
from specdemo.records import Progress
from tests.support import mutants
from tests.support.hub import Hub, hub_of

NAME, FILES = "tiny/story", "tiny/files"
WEIGHTS = "openvino_model.bin"
SOURCE = Source(repository=NAME, format="openvino", weights="fp32", disk_bytes=1, license="apache-2.0")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder, files = tmp_path / "repository", tmp_path / "files"
    shutil.copytree(BUNDLED / "draft", folder)
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    files.mkdir()
    (files / "good.gguf").write_bytes(mutants.header())
    (files / "bad.gguf").write_bytes(mutants.SEEDS["split.count is a text"])
    with hub_of({NAME: folder, FILES: files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def last(progress: Iterator[Progress[Path | None]]) -> Progress[Path | None]:
    *_, end = progress
    return end


def test_only_the_necessary_files_are_downloaded_once_and_weights_last(hub: Hub) -> None:
    assert local_folder(SOURCE) is None
    hub.cut_after = {WEIGHTS: 1_500_000}
    steps = list(download(NAME))
    folder = steps[-1].result
    assert folder is not None
    assert steps[0].done == 0
    assert all(before.done <= after.done for before, after in pairwise(steps))
    assert steps[-1].done == steps[-1].total == sum(file.stat().st_size for file in folder.iterdir())
    assert [*hub.served][-1] == WEIGHTS
    assert {*hub.served} == {path.name for path in (BUNDLED / "draft").iterdir()}
    (resumed,) = hub.ranges
    assert 1_000_000 < int(resumed.rpartition(" ")[2]) <= 1_500_000, "where the connection was lost"
    assert (folder / WEIGHTS).read_bytes() == (BUNDLED / "draft" / WEIGHTS).read_bytes()
    assert (local_folder(SOURCE), cached_folders()) == (folder, {NAME: folder})
    served = hub.served.total()
    assert last(download(NAME)).result == folder
    assert hub.served.total() == served
    newer = folder.with_name("f" * 40)  # still downloading, so the older one counts
    newer.mkdir()
    shutil.copy(folder / "config.json", newer)
    assert local_folder(SOURCE) == folder


def test_a_cancelled_download_leaves_complete_files_only_and_damage_is_found(hub: Hub) -> None:
    hub.stall_after = {WEIGHTS: 1_500_000}
    blobs = storage_of(NAME) / "blobs"
    blobs.mkdir(parents=True)
    other = blobs / "another-process.incomplete"
    other.touch()
    done = [0]
    for step in download(NAME, stop=lambda: done[-1] > 1_000_000):
        assert step.result is None
        done.append(step.done)
    assert 1_000_000 < done[-1] < 2_000_000
    assert [*blobs.glob("*.incomplete")] == [other]
    assert (local_folder(SOURCE), cached_folders()) == (None, {}), "nothing half-downloaded counts"
    hub.stall_after, hub.damaged = {}, {WEIGHTS}
    before = hub.served.copy()
    with pytest.raises(FetchError, match=f"{WEIGHTS} arrived damaged and was deleted; download it again"):
        list(download(NAME))
    assert [*(hub.served - before)] == [WEIGHTS], "the other files were complete"
    assert local_folder(SOURCE) is None
    hub.damaged = set()
    assert last(download(NAME)).result is not None


def test_a_single_file_is_downloaded_and_a_refused_one_is_deleted(hub: Hub) -> None:
    with pytest.raises(FetchError, match=f"contains GGUF files; name one of them, as {FILES}:bad.gguf"):
        list(download(FILES))
    with pytest.raises(FetchError, match=r"has no file 'other.gguf'; choose one of bad.gguf, good.gguf"):
        list(download(f"{FILES}:other.gguf"))
    with pytest.raises(GGUFError, match=r"'bad.gguf' is damaged: split.count is '2'"):
        list(download(f"{FILES}:bad.gguf"))
    with pytest.raises(ModelError, match=r"'good.gguf' cannot be read and was deleted: it took longer"):
        list(download(f"{FILES}:good.gguf", limits=Limits(seconds=-1.0)))
    assert not [path for path in hub_cache().rglob("*.gguf") if path.exists()]
    assert not [model.name for model in library().models if FILES in model.name]
    path = last(download(f"{FILES}:good.gguf")).result
    assert path is not None
    assert (path.read_bytes(), find_model(f"{FILES}:good.gguf").path) == (mutants.header(), path)


def test_gated(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated, hub.token = {NAME}, "hf_right"
    with pytest.raises(FetchError, match=f"accept its licence at {hub.url}/{NAME}, and set HF_TOKEN"):
        list(download(NAME))
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert last(download(NAME)).result is not None


def test_failed_downloads_give_the_reason(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FetchError, match="'a/b/c' is not a repository name; write it as ORGANISATION/MODEL"):
        list(download("a/b/c"))
    usage = namedtuple("usage", "free")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: usage(5_000_000))
        with pytest.raises(
            FetchError, match=r"needs 69 MB more, but .* has only 5 MB free; free some space, or set HF_HOME"
        ):
            list(download(NAME))
    model = hub.repositories[NAME] / "openvino_model.xml"
    model.rename(model.with_name("openvino_language_model.xml"))
    model.with_suffix(".bin").rename(model.with_name("openvino_language_model.bin"))
    with pytest.raises(FolderError, match=f"The model in '{NAME}' is exported in parts"):
        list(download(NAME))
    assert hub.served.total() == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(FetchError, match=r"cannot be reached; .* or set HF_ENDPOINT"):
        list(download(NAME))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FetchError, match=r"HF_HUB_OFFLINE is set, .* unset it to download"):
        list(download(NAME))


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_cache() == tmp_path / "hub"
    monkeypatch.setenv("HF_HOME", "~/models")
    monkeypatch.delenv("HF_HUB_CACHE")
    assert hub_cache() == Path.home() / "models" / "hub"
    monkeypatch.delenv("HF_HOME")
    assert hub_cache() == tmp_path / "cache" / "huggingface" / "hub"
