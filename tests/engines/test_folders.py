"""Folders of models as other programs write them: both engines run them alike, or refuse them in the same words."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from specdemo.capabilities import EngineName
from specdemo.engines import load_engine
from specdemo.errors import LoadError
from specdemo.models.catalogue import BUNDLED
from specdemo.settings import RuntimeSettings
from tests.support import BRIEF
from tests.support.folders import pair_from_folders
from tests.support.runs import plain, speculate

pytestmark = [pytest.mark.openvino, pytest.mark.parametrize("engine", ["genai", "traced"])]
RUNTIME = RuntimeSettings(precision="f32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED / "draft", tmp_path / "folder"))


def test_what_a_folder_adds_changes_no_output(engine: EngineName, folder: Path) -> None:
    """GenAI's own configuration would search beams and stop at the first e."""
    settings = {
        "max_length": 20,
        "max_new_tokens": 5,
        "num_beams": 4,
        "num_return_sequences": 2,
        "stop_strings": ["e"],
    }
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"limits": [0, float("inf"), float("nan")]}))
    before = file.read_bytes()
    ids = []
    for path in (BUNDLED / "draft", folder):
        draft = path if engine == "traced" else BUNDLED / "draft"  # GenAI loads no draft with infinite numbers
        pair = pair_from_folders(path, draft, RUNTIME)
        with closing(load_engine(engine, pair, thoroughness=BRIEF)) as loaded:
            runs = plain(loaded), speculate(loaded, drafter="lookup"), speculate(loaded)
        ids.append([run.token_ids for run in runs])
    assert ids[0] == ids[1]
    assert file.read_bytes() == before, "the folder itself stays as it is"


@pytest.mark.parametrize("content", ["{,", '{"top_p": "0.9"}'])
def test_a_damaged_generation_config_is_named(engine: EngineName, content: str, folder: Path) -> None:
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(
        LoadError, match=r"generation_config.json of 'folder' cannot be read; correct it, or delete it"
    ):
        load_engine(engine, pair_from_folders(folder, None, RUNTIME), thoroughness=BRIEF)
