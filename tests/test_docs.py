"""The README says what is so."""

import re
import shlex
from pathlib import Path

import pytest

from specdemo.analysis import metrics
from specdemo.cli import build_parser
from specdemo.ui.page import launch_options

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"-m specdemo (.+)", README)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_are_understood(command: str) -> None:
    build_parser().parse_args(shlex.split(command))


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 4


def test_both_setup_commands_name_files_that_exist() -> None:
    for command in re.findall(r"^python3 -m venv .+$", README, re.MULTILINE):
        for name in re.findall(r"\S+\.(?:txt|py)\b", command):
            assert (ROOT / name).is_file(), name


def test_links_and_pictures_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_formulas_are_those_of_the_figures() -> None:
    for name in ("speedup", "acceptance_rate", "mean_accepted_length", "per_position", "draft_cost", "verify_cost"):
        assert metrics.FORMULAS[name] in README


def test_space_header_fits_the_requirements() -> None:
    header = README.split("---")[1]
    version = re.search(r"sdk_version: (.+)", header)
    assert version is not None
    assert f"gradio>={'.'.join(version[1].split('.')[:2])}" in (ROOT / "requirements.txt").read_text()
    assert "app_file: app.py" in header


def test_users_need_neither_torch_nor_test_tools() -> None:
    assert not re.search(r"torch|optimum|pytest|playwright", (ROOT / "requirements.txt").read_text())


def test_everything_the_page_loads_is_here() -> None:
    for route in launch_options()["app_kwargs"]["routes"]:
        assert Path(route.app.directory).is_dir()
