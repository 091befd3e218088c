"""The direction of imports between layers."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYERS = [  # each may import from those before it, and from its own
    {
        "specdemo",
        "specdemo.capabilities",
        "specdemo.child",
        "specdemo.errors",
        "specdemo.files",
        "specdemo.records",
        "specdemo.settings",
        "specdemo.strategies",
        "specdemo.text",
        "specdemo.version",
    },
    {"specdemo.decoding"},
    {"specdemo.results"},
    {"specdemo.models"},
    {"specdemo.engines"},
    {"specdemo.exports"},
    {"specdemo.racing"},
    {"specdemo.experiments"},
    {"specdemo.ui"},
    {"specdemo.api"},
    {"specdemo.cli", "specdemo.__main__"},
    {"app"},
]
ONLY_IN = {
    "openvino": {"specdemo.engines", "specdemo.models"},
    "openvino_genai": {"specdemo.engines", "specdemo.models"},
    "gradio": {"specdemo.ui", "app"},
    "plotly": {"specdemo.results"},
}
ROOMS = {  # whose other modules only its own know
    "specdemo.models.gguf": {"specdemo.models.gguf", "specdemo.models.gguf_convert"},
    "specdemo.engines.server": {"specdemo.engines.server.engine"},
    "specdemo.experiments": {f"specdemo.experiments.{entry}" for entry in ("plan", "prompts", "report", "rows")},
}
MODULES = sorted([*ROOT.glob("specdemo/**/*.py"), ROOT / "app.py"])


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and path == ROOT / "specdemo" / "__init__.py":
            continue  # for type checkers only; public names are imported on first use
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if name in map(name_of, MODULES))


def part_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def layer_of(module: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if part_of(module) in layer)


def test_imports_point_downwards() -> None:
    for path in MODULES:
        name = name_of(path)
        for imported in imports_of(path):
            root, part = imported.split(".")[0], part_of(imported)
            assert root not in ("specdemo", "app") or layer_of(part) <= layer_of(name), f"{name} imports {imported}"
            assert part_of(name) in ONLY_IN.get(root, {part_of(name)}), f"{name} imports {imported}"
            for room, entries in ROOMS.items():
                inside = name.startswith(room) or not imported.startswith(room)
                assert inside or imported in {room, *entries}, f"{name} imports {imported}"
