"""The README and docs/ match the code: commands, files, links, formulas."""

import re
import shlex
from pathlib import Path

import pytest

from specdemo.cli.commands import build_parser
from specdemo.files import glossary
from specdemo.models.catalogue import find
from specdemo.settings import GenerationSettings

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
SHELL = [
    line
    for path in DOCUMENTS
    for block in re.findall(r"```bash\n(.*?)```", path.read_text(), re.DOTALL)
    for line in block.splitlines()
]
COMMANDS = [match[1] for line in SHELL if (match := re.search(r"(?:^|/)specdemo (.+)", line))]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command: str) -> None:
    build_parser().parse_args(shlex.split(command))


def test_every_command_is_documented() -> None:
    commands = re.findall(r"^    (\w+)", build_parser().format_help(), re.MULTILINE)
    assert {command.split()[0] for command in COMMANDS} == set(commands)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_name_files_that_exist(path: Path) -> None:
    for program, name in re.findall(
        r"(-r|-c|pytest|python) ((?:assets|tests|constraints)[\w/.-]+)", path.read_text()
    ):
        assert (ROOT / name).is_file() or (program == "pytest" and (ROOT / name).is_dir()), name
    for module in re.findall(r"python -m (tests[\w.]+)", path.read_text()):
        path_of = ROOT / module.replace(".", "/")
        assert path_of.with_suffix(".py").is_file() or (path_of / "__main__.py").is_file(), module


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_pictures_lead_somewhere(path: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", path.read_text()):
        if "://" in target:
            continue
        linked = path.parent / target if target else path
        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^##+ (.+)$", linked.read_text().lower(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in headings]


def test_docs_name_the_settings_that_smollm2_starts_with() -> None:
    start = GenerationSettings.checked(engine="traced", **find("smollm2-eagle3").defaults.generation)
    threshold, cap = start.assistant_confidence_threshold, start.max_assistant_tokens
    for name in ("questions", "performance"):
        text = " ".join((ROOT / f"docs/{name}.md").read_text().split())
        number = ["one", "two", "three"][cap - 1]
        assert f"starts with a confidence threshold of {threshold} and at most {number} proposals" in text
    assert f"{cap} for SmolLM2" in (ROOT / "docs/engines.md").read_text()


def test_every_document_is_linked_from_the_readme() -> None:
    for path in DOCUMENTS[1:]:
        assert f"({path.relative_to(ROOT)})" in README.read_text()


@pytest.mark.parametrize("names", [("formula",), ("meaning", "elsewhere")])
def test_figures_and_terms_are_those_of_the_glossary(names: tuple[str, ...]) -> None:
    rows = [(term, *(entry.get(key, "") for key in names)) for term, entry in glossary().items() if names[0] in entry]
    table = "\n".join(f"| {' | '.join(row)} |".replace("  ", " ") for row in rows)
    assert table in (ROOT / "docs" / "figures.md").read_text(), f"put this into figures.md:\n{table}"


def test_space_header_fits_the_requirements() -> None:
    header = README.read_text().split("---")[1]
    version = re.search(r"sdk_version: (.+)", header)
    assert version is not None
    requirements = (ROOT / "requirements.txt").read_text()
    assert f"gradio>={'.'.join(version[1].split('.')[:2])}" in requirements
    assert "app_file: app.py" in header
    assert not re.search(r"torch|optimum|pytest|playwright", requirements), "users need none of these"
