"""Environments of real machines: containers, proxies, certificates, and a user without a home."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from time import process_time
from types import SimpleNamespace

import pytest

from specdemo.cli import main
from specdemo.cli.signals import interrupted
from specdemo.engines.server.client import Client
from specdemo.errors import SpecdemoError, UsageError
from specdemo.models import devices
from specdemo.models.devices import cpu_quota, properties, usable_processors
from specdemo.racing import warm_up
from specdemo.racing.warm_up import OtherLoad
from specdemo.records import Server
from specdemo.settings import RuntimeSettings
from specdemo.ui.server import visitors_files

FAULTS = {
    "SSL_CERT_FILE": "/no/such/file",
    "SSL_CERT_DIR": "/no/such/folder",
    "NO_PROXY": "localhost,::1/128",  # as container tools write it
    "HTTPS_PROXY": "nonsense://proxy:1",
    "all_proxy": "::1",
}


def said(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HOME"} | variables
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_the_page_needs_no_proxy_no_certificate_and_no_engine_for_its_first_response() -> None:
    code = """if True:
        import os, sys
        from specdemo.ui.page import look, routes
        routes(), look()
        print(os.environ["NO_PROXY"], os.environ["SSL_CERT_FILE"], {"openvino", "plotly"} & {*sys.modules})"""
    found = said(code, **FAULTS)
    assert found.stdout.split() == [FAULTS["NO_PROXY"], FAULTS["SSL_CERT_FILE"], "set()"], found.stderr


def test_a_variable_that_a_library_cannot_read_is_named() -> None:
    found = said("import sys; from specdemo.cli import main; sys.exit(main(['serve']))", HF_HUB_ETAG_TIMEOUT="soon")
    assert (found.returncode, "Traceback" in found.stderr) == (2, False), found.stderr
    assert "cannot be imported in this environment" in found.stderr
    assert "'soon'" in found.stderr


@pytest.mark.parametrize("variable", FAULTS)
@pytest.mark.parametrize("url", ["http://localhost:9", "http://127.0.0.1:9/v1", "http://[::1]:9", "http://0.0.0.0:9"])
def test_a_server_of_this_machine_needs_no_proxy_and_no_certificate(
    variable: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, FAULTS[variable])
    Client(Server(url=url), "plain", "NO_KEY").close()


@pytest.mark.parametrize("variable", [name for name in FAULTS if name != "SSL_CERT_DIR"])
def test_a_proxy_or_certificate_that_cannot_be_used_is_an_error(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, FAULTS[variable])
    with pytest.raises(UsageError, match="correct NO_PROXY and the like, or SSL_CERT_FILE"):
        Client(Server(url="https://lab:9"), "plain", "NO_KEY")


def test_commands_need_no_home(tmp_path: Path) -> None:
    code = """if True:
        import os, pwd, sys
        def unknown(number): raise KeyError(number)
        pwd.getpwuid = unknown
        os.chdir(os.environ["FOLDER"])
        from specdemo.cli import main
        commands = ["doctor --no-measure", "models list", "compare hi --target ~/a"]
        print([main(command.split()) for command in commands], os.listdir(), os.environ["HOME"])"""
    for cache in ({}, {"XDG_CACHE_HOME": str(tmp_path / "cache")}):
        (folder := tmp_path / "folder").mkdir(exist_ok=True)
        found = said(code, FOLDER=str(folder), **cache)
        assert found.stdout.splitlines()[-1] == "[0, 0, 2] [] /", found.stderr


def test_a_machine_without_a_temporary_folder_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unusable() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", unusable)
    monkeypatch.delenv("GRADIO_TEMP_DIR", raising=False)
    with pytest.raises(SpecdemoError, match="TMPDIR") as refused, visitors_files():
        pass
    assert "No usable temporary directory" in refused.value.cause


@pytest.mark.parametrize("port", ["99999", "abc"])
def test_an_impossible_port_is_an_error(
    port: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADIO_SERVER_PORT", port)
    assert main(["serve"]) == 2
    assert f"GRADIO_SERVER_PORT is '{port}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(errno.EROFS, "Read-only file system"), 1, "Read-only file system"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), 1, "Cannot use '/x'"),
        (UsageError("Give a prompt."), 2, "Give a prompt."),
    ],
)
def test_every_command_ends_in_a_sentence(
    error: Exception, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("specdemo.cli.doctor.machine_lines", fail)
    assert main(["doctor", "--no-measure"]) == code
    assert words in capsys.readouterr().err


def test_an_interrupted_import_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        interrupted.set()
        raise ImportError("initialization failed")

    monkeypatch.setattr("specdemo.cli.doctor.machine_lines", fail)
    try:
        assert main(["doctor", "--no-measure"]) == 130
    finally:
        interrupted.clear()


def test_the_server_is_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warm_up._server_time() == 0, "this process is not the child of one"
    monkeypatch.setattr(warm_up, "parent_process", lambda: SimpleNamespace(pid=os.getpid()))
    assert warm_up._server_time() == pytest.approx(process_time(), abs=0.5)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group in another one, on a machine of eight processors."""
    (tmp_path / "own").write_text("1:cpu:/\n0::/outer/inner\n")
    monkeypatch.delenv(devices.PROPERTIES_VARIABLE, raising=False)
    monkeypatch.setattr(devices, "_CGROUPS", tmp_path)
    monkeypatch.setattr(devices, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(devices, "processors", lambda: {*range(8)})
    (folder := tmp_path / "outer" / "inner").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("inner", "outer", "threads"),
    [("150000 100000", "max 100000", 1), ("max 100000", "400000 100000", 4), ("50000 100000", "400000 100000", 1)],
)
def test_a_containers_limit_is_the_number_of_threads(group: Path, inner: str, outer: str, threads: int) -> None:
    (group / "cpu.max").write_text(f"{inner}\n")
    (group.parent / "cpu.max").write_text(f"{outer}\n")
    assert usable_processors() == threads
    assert properties(RuntimeSettings(), "CPU")["INFERENCE_NUM_THREADS"] == str(threads)
    assert properties(RuntimeSettings(inference_num_threads=3), "CPU")["INFERENCE_NUM_THREADS"] == "3"
    assert "INFERENCE_NUM_THREADS" not in properties(RuntimeSettings(), "GPU")


@pytest.mark.parametrize("limit", ["max 100000", "nonsense", None])
def test_without_a_limit_openvino_chooses_the_threads(group: Path, limit: str | None) -> None:
    if limit is not None:
        (group / "cpu.max").write_text(limit)
    assert cpu_quota() is None
    assert usable_processors() == 8
    assert "INFERENCE_NUM_THREADS" not in properties(RuntimeSettings(), "CPU")


def test_other_load_is_a_share_of_the_containers_limit(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"monotonic": 0.0, "process_time": 0.0, "_server_time": 0.0}
    for name in now:
        monkeypatch.setattr(warm_up, name, lambda name=name: now[name])
    (group / "cpu.max").write_text("200000 100000")
    (group / "cpu.stat").write_text("usage_usec 5000000\nuser_usec 1\n")
    load = OtherLoad(1)
    now |= {"monotonic": 10.0, "process_time": 8.0, "_server_time": 1.0}
    (group / "cpu.stat").write_text("usage_usec 19000000\nuser_usec 1\n")
    assert load.share() == pytest.approx((14 - 9) / 20)
