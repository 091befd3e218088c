"""Downloads with the real client, from a Hub on this machine."""

import multiprocessing
import shutil
import socket
from collections import namedtuple
from collections.abc import Generator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from specdemo.errors import AccessError, DiskError, FolderError, MissingError, NetworkError
from specdemo.models.catalogue import Source
from specdemo.models.devices import in_units
from specdemo.models.folder import inspect_folder
from specdemo.models.hub import cached_folders, download, local_folder
from specdemo.models.pairs import BUNDLED, bundled_pair
from specdemo.models.places import hub_cache
from specdemo.records import Progress
from specdemo.ui.registry import Registry
from specdemo.ui.session import Visitors
from tests.support.hub import Hub

NAME = "tiny/story"
WEIGHTS = "openvino_model.bin"
SOURCE = Source(
    repository=NAME, format="openvino", weights="fp32", disk_bytes=1, confirmed=True, license="apache-2.0"
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    folder = tmp_path / "repository"
    shutil.copytree(BUNDLED / "draft", folder)
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    (folder / "README.md").write_text("not needed")
    with Hub({NAME: folder}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def last(progress: Iterator[Progress[Path | None]]) -> Progress[Path | None]:
    *_, end = progress
    return end


def test_a_whole_download_can_be_loaded(hub: Hub) -> None:
    assert local_folder(SOURCE) is None
    steps = list(download(NAME))
    assert steps[0].done == 0
    assert all(before.done <= after.done for before, after in pairwise(steps))
    folder = steps[-1].result
    assert folder is not None
    assert steps[-1].done == steps[-1].total == sum(file.stat().st_size for file in folder.iterdir())
    assert inspect_folder(folder).parameters == inspect_folder(BUNDLED / "draft").parameters
    assert local_folder(SOURCE) == folder
    assert cached_folders() == {NAME: folder}


def test_only_what_is_needed_is_fetched_and_the_weights_last(hub: Hub) -> None:
    files = list(dict.fromkeys(step.doing for step in download(NAME) if step.doing))
    assert files[-1] == WEIGHTS
    assert set(hub.served) == {path.name for path in (BUNDLED / "draft").iterdir()}


def test_what_is_here_is_not_fetched_again(hub: Hub) -> None:
    first = last(download(NAME))
    served = hub.served.total()
    assert last(download(NAME)).result == first.result
    assert hub.served.total() == served


def test_a_connection_cut_in_the_middle_is_gone_on_with(hub: Hub) -> None:
    hub.cut_after = {WEIGHTS: 1_500_000}
    folder = last(download(NAME)).result
    assert folder is not None
    whole = (folder / WEIGHTS).stat().st_size
    first = int(hub.ranges[0].rpartition(" ")[2])
    assert hub.ranges == [f"{WEIGHTS} from {first}"]
    assert 1_000_000 < first <= 1_500_000
    assert hub.served[WEIGHTS] == 1_500_000 + whole - first


def test_a_cancelled_download_is_gone_on_with(hub: Hub) -> None:
    hub.stall_after = {WEIGHTS: 1_500_000}
    done = [0]
    for step in download(NAME, stop=lambda: done[-1] > 1_000_000):
        assert step.result is None
        done.append(step.done)
    assert 1_000_000 < done[-1] < 2_000_000
    assert local_folder(SOURCE) is None, "nothing half-downloaded counts"
    assert cached_folders() == {}
    hub.stall_after = {}
    steps = list(download(NAME))
    assert steps[0].done >= done[-1]
    assert len(hub.ranges) == 1
    folder = steps[-1].result
    assert folder is not None
    assert (folder / WEIGHTS).read_bytes() == (BUNDLED / "draft" / WEIGHTS).read_bytes()


def test_a_caller_that_goes_away_ends_the_download(hub: Hub) -> None:
    hub.stall_after = {WEIGHTS: 0}
    steps = download(NAME)
    assert isinstance(steps, Generator)
    next(steps)
    steps.close()
    assert multiprocessing.active_children() == []
    assert local_folder(SOURCE) is None


def test_damage_on_the_way_is_found(hub: Hub) -> None:
    hub.damaged = {WEIGHTS}
    with pytest.raises(NetworkError, match=f"{WEIGHTS} arrived damaged and was deleted; download it again"):
        list(download(NAME))
    hub.damaged = set()
    assert last(download(NAME)).result == local_folder(SOURCE)


def test_the_page_tells_the_size_then_fetches_and_only_where_downloads_are_allowed(hub: Hub) -> None:
    registry, closed = Registry(bundled_pair(), Visitors()), Registry(bundled_pair(), Visitors(), downloads=False)
    assert 'data-action="select"' in registry.offer(NAME)
    assert closed.offer(NAME) == registry.offer("../../etc") == ""
    assert [*closed.look(NAME), *registry.look("../../etc")] == []
    assert "off" in "".join(closed.download("somebody", NAME))
    assert "does not show you tiny/other" in list(registry.look("tiny/other"))[-1]
    assert NAME not in registry.models()
    size = sum(file.stat().st_size for file in (BUNDLED / "draft").iterdir())
    offered = list(registry.look(NAME))[-1]
    assert f"Download {NAME}, {in_units(size)}" in offered
    assert 'data-action="download"' in offered
    assert WEIGHTS not in hub.served
    assert f"{NAME} is on this machine" in list(registry.download("somebody", NAME))[-1]
    assert NAME in registry.models()


def test_an_older_model_will_do_while_a_newer_one_is_fetched(hub: Hub) -> None:
    folder = last(download(NAME)).result
    assert folder is not None
    newer = folder.with_name("f" * 40)
    newer.mkdir()
    shutil.copy(folder / "config.json", newer)
    (folder.parents[1] / "refs" / "main").write_text(newer.name)
    assert local_folder(SOURCE) == folder


def test_gated(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated, hub.token = {NAME}, "hf_right"
    with pytest.raises(AccessError, match=f"accept its licence at {hub.url}/{NAME}, and set HF_TOKEN"):
        list(download(NAME))
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert last(download(NAME)).result is not None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny/other", "does not show you tiny/other; check its name"),
        ("a/b/c", "'a/b/c' is not a repository name; write it as ORGANISATION/MODEL"),
    ],
)
def test_missing(hub: Hub, name: str, message: str) -> None:
    with pytest.raises(MissingError, match=message):
        list(download(name))


def test_a_repository_without_openvino_is_told_apart(hub: Hub) -> None:
    (hub.repositories[NAME] / WEIGHTS).unlink()
    with pytest.raises(MissingError, match=f"export it with: optimum-cli export openvino --model {NAME}"):
        list(download(NAME))


def test_a_repository_that_lacks_a_file(hub: Hub) -> None:
    (hub.repositories[NAME] / "openvino_tokenizer.bin").unlink()
    with pytest.raises(FolderError, match=r"lacks openvino_tokenizer.bin"):
        list(download(NAME))


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NetworkError, match=r"HF_HUB_OFFLINE is set, .* unset it to download"):
        list(download(NAME))


def test_no_such_host(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(NetworkError, match="cannot be reached; check the network, or set HF_ENDPOINT"):
        list(download(NAME))


def test_a_disk_that_is_too_small_is_found_before_anything_is_fetched(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(5_000_000))
    with pytest.raises(
        DiskError, match=r"needs 69 MB more, but .* has only 5 MB free; free some space, or set HF_HOME"
    ):
        list(download(NAME))
    assert hub.served.total() == 0


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hub_cache() == tmp_path / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", "~/models")
    assert hub_cache() == Path.home() / "models" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", "/elsewhere")
    assert hub_cache() == Path("/elsewhere")
