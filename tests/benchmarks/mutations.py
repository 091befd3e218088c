"""How many faults planted at random the tests find.

    python -m tests.benchmarks.mutations [--number 40] [--seed 0] [--rooms results racing experiments decoding]

Each mutant is a copy of the package in which one operator, number or condition differs. Only the tests of its room
run, without models and browsers, so check a survivor with the others. Some are equivalent, such as a limit that
nothing reaches.
"""

import argparse
import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
_SECONDS = 900  # far longer than the tests take: a mutant may loop forever
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip


class Mutant(NamedTuple):
    """`node` counts the file's nodes in the order of `ast.walk`; its `field` becomes `value`."""

    path: Path
    node: int
    field: str
    value: Any

    def applied(self, source: str) -> tuple[str, str]:
        """Return the file with the change, and the changed line."""
        tree = ast.parse(source)
        node: Any = [*ast.walk(tree)][self.node]
        setattr(node, self.field, self.value)
        return ast.unparse(tree), f"{self.path}:{node.lineno}: {ast.unparse(node).splitlines()[0]}"


def mutants(path: Path) -> Iterator[Mutant]:
    for index, node in enumerate(ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))):
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in _OTHER:
                yield Mutant(path, index, "ops", [_OTHER[type(operator)]()])
            case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in _OTHER:
                yield Mutant(path, index, "op", _OTHER[type(operator)]())
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                yield Mutant(path, index, "value", 4 * number + 1)
            case ast.If() | ast.IfExp():
                yield from (Mutant(path, index, "test", ast.Constant(value)) for value in (True, False))


def survives(mutant: Mutant, folder: Path) -> bool:
    path = folder / mutant.path
    original = path.read_text(encoding="utf-8")
    changed, line = mutant.applied(original)
    path.write_text(changed, encoding="utf-8")
    alive = passes(mutant.path.parts[1], folder)
    path.write_text(original, encoding="utf-8")
    print(f"{'SURVIVED' if alive else 'found'} {line}", flush=True)
    return alive


def passes(room: str, folder: Path) -> bool:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not openvino and not browser"]
    command = [sys.executable, "-m", "pytest", *options, f"tests/{room}"]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=["results", "racing", "experiments", "decoding"])
    options = parser.parse_args()
    paths = [path for room in options.rooms for path in sorted((ROOT / "specdemo" / room).glob("*.py"))]
    every = [mutant for path in paths for mutant in mutants(path.relative_to(ROOT))]
    with TemporaryDirectory() as name:
        folder = Path(name)
        copytree(
            ROOT, folder, ignore=ignore_patterns(".git", ".venv", "node_modules", "__pycache__"), dirs_exist_ok=True
        )
        assert all(passes(room, folder) for room in options.rooms), "the tests must pass without a fault"
        survivors = sum(survives(mutant, folder) for mutant in Random(options.seed).sample(every, options.number))
    print(f"{survivors} of {options.number} survived, of {len(every)} possible mutants")


if __name__ == "__main__":
    main()
