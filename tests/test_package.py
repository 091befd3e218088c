"""What an installed package holds."""

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import specdemo

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
