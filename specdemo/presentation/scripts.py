"""The page's modules as one script, for files that open offline: a browser loads no module from a file's folder.

Each module becomes a block, after those that it imports, whose exports the others take from a table. That suffices
for how the page's modules are written: named imports and exports, each on lines of their own.
"""

import re
from collections.abc import Iterator
from functools import cache

from specdemo.files import ASSETS

PAGE = ASSETS / "page"
STYLES = ("tokens.css", "race.css", "boards.css")
"""The page's own style sheets, in their order; `gradio.css` arranges what Gradio builds."""
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:class|function|const) (\w+))", re.MULTILINE)
_NEEDED = re.compile(r'^import [^"]* from "\./([\w.]+)";\n', re.MULTILINE)
_ANY = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


@cache
def bundle(entry: str) -> str:
    """The module and all that it imports, as the text of one module script."""
    blocks = "".join(map(_block, modules(entry)))
    return f"const modules = {{}};\n{blocks}"


def modules(entry: str) -> list[str]:
    """The module and all that it imports, each after those that it needs."""
    return list(dict.fromkeys(_order(entry)))


def _order(name: str) -> Iterator[str]:
    for needed in _NEEDED.findall(text_of(name)):
        yield from _order(needed)
    yield name


def _block(name: str) -> str:
    text = _IMPORT.sub(lambda found: f'const {{{found[1]}}} = modules["{found[2]}"];\n', text_of(name))
    exports = ", ".join(found[2] for found in _EXPORT.finditer(text))
    text = _EXPORT.sub(r"\1", text)
    left = _ANY.search(text)
    assert left is None, f"{name} has an import or export of another form: {left and left[0]}"
    return f'{{\n{text}\nmodules["{name}"] = {{ {exports} }};\n}}\n'


def text_of(name: str) -> str:
    """One of the page's files."""
    return (PAGE / name).read_text(encoding="utf-8")
