"""The Python interface as people use it: a script, the README's lines and the notebook, each in its own process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from specdemo.models.pairs import PAIR_VARIABLE

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import specdemo
pair = specdemo.load("story-pair")
run = specdemo.compare(pair, "Once upon a time", repeats=0, max_new_tokens=8)
print(len(run.comparison.plain.tokens))
"""


@pytest.mark.openvino
def test_a_script_needs_no_guard_of_its_main_part(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script], env=_environment(), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "8\n"


@pytest.mark.openvino
def test_the_lines_of_the_readme_run(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert "SmolLM2-135M-Instruct" in block
    script = tmp_path / "readme.py"
    script.write_text(block.replace("SmolLM2-135M-Instruct", "story-pair"))  # which every machine has
    shown = {"PLOTLY_RENDERER": "json"}  # prints what would open in a browser
    done = subprocess.run(
        [sys.executable, script], env=_environment() | shown, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "×" in done.stdout, "the speedup"
    assert "'application/json'" in done.stdout, "the figure"


@pytest.mark.openvino
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _environment().items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are made by whoever runs it"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("text/html" in output.get("data", {}) for output in shown)
    assert any("application/vnd.plotly.v1+json" in output.get("data", {}) for output in shown)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), PAIR_VARIABLE: "story-pair"}
