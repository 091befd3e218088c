import subprocess
import sys
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import specdemo
from tests.test_imports import ONLY_IN

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {"screenshots", "export.py"}


def files_of(folder: str) -> set[Path]:
    found = (path.relative_to(ROOT) for path in ROOT.glob(f"{folder}/**/*") if path.is_file())
    return {path for path in found if "__pycache__" not in path.parts}


def test_the_wheel_has_the_package_and_the_assets_that_it_reads() -> None:
    packed = {Path(file.distribution_path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assets = {Path("specdemo") / path for path in files_of("assets") if path.parts[1] not in LEFT_OUT}
    assert Path("specdemo/assets/story-pair/target/openvino_model.bin") in assets
    assert packed == files_of("specdemo") | assets


def test_version_and_dependencies_are_written_once() -> None:
    project = ProjectMetadata(str(ROOT), PluginManager())
    listed = (ROOT / "requirements.txt").read_text().split()
    assert project.version == specdemo.__version__
    assert len(project.core.dependencies) == len(listed)


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_importing_specdemo_changes_nothing_in_the_process() -> None:
    listed = "print({name.partition('.')[0] for name in set(sys.modules) - before})"
    assert fresh(f"import sys; before = set(sys.modules); import specdemo; {listed}") == "{'specdemo'}\n"


def test_modules_load_what_they_need() -> None:
    heavy = {"openvino", "openvino_genai", "gradio", "plotly"}
    modules = ", ".join(f"specdemo.{each}" for each in ("racing.worker", "api", "cli.commands"))
    assert fresh(f"import sys, {modules}; print({heavy} & set(sys.modules))") == "set()\n"


def test_openvino_starts_without_its_telemetry() -> None:
    for package in ONLY_IN["openvino"]:
        assert fresh(f"import sys, {package}; print(sys.modules['openvino_telemetry'])") == "None\n"


def test_notice_names_everything_bundled() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for folder in (path.parent.parent for path in ROOT.glob("assets/*/target/openvino_model.bin")):
        assert f"assets/{folder.name}" in notice
    for pattern in ("*.woff*", "*.ttf", "*.min.js"):
        assert not [*ROOT.glob(f"assets/**/{pattern}")], "name its licence in NOTICE"
