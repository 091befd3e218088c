"""Where the files that ship with specdemo are: the page, the catalogue, the task suites, the bundled pair."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

# A wheel holds `assets/` inside the package; in a checkout it stands beside the package.
ASSETS = next(folder for folder in (_PACKAGE / "assets", _PACKAGE.parent / "assets") if folder.is_dir())
