"""Where the files that ship with specdemo are: the page, the catalogue, the task suites, the bundled pair."""

import re
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

# A wheel holds `assets/` inside the package; in a checkout it stands beside the package.
ASSETS = next(folder for folder in (_PACKAGE / "assets", _PACKAGE.parent / "assets") if folder.is_dir())

_LIGHT, _DARK = r":root \{(.*?)\}", r"\.dark \{(.*?)\}"


@cache
def colours(*, dark: bool = False) -> dict[str, str]:
    """The page's colours by name, such as `ink`, from its style sheet, for what is drawn outside the page."""
    sheet = (ASSETS / "page" / "tokens.css").read_text(encoding="utf-8")
    found = re.search(_DARK if dark else _LIGHT, sheet, re.DOTALL)
    assert found is not None, "the style sheet begins with its colours"
    return dict(re.findall(r"--sd-([\w-]+): (#\w+)", found[1]))
