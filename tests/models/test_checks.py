"""What is said of a pair before it is loaded."""

import shutil
from pathlib import Path

import pytest

from specdemo.cli import main
from specdemo.errors import FolderError, PairError
from specdemo.models.checks import check_engine, check_pair, drafts_for, is_recommended, with_tokenizers_compared
from specdemo.models.folder import inspect_folder
from specdemo.models.pairs import BUNDLED, pair_of
from specdemo.settings import RuntimeSettings


@pytest.mark.openvino
def test_another_pad_id_is_why_genai_refuses_and_the_traced_engine_is_offered(tmp_path: Path) -> None:
    draft = Path(shutil.copytree(BUNDLED / "draft", tmp_path / "draft"))
    for file in draft.glob("openvino_*tokenizer.xml"):
        text = file.read_text()
        assert '<eos_token_id value="0" />' in text or "detokenizer" in file.name
        file.write_text(text.replace('<eos_token_id value="0" />', '<eos_token_id value="5" />'))
    (draft / "generation_config.json").unlink(missing_ok=True)
    target = inspect_folder(BUNDLED / "target")
    report = check_pair(target, inspect_folder(draft, draft=True))
    engines = {each.engine: each for each in report.engines}
    assert (report.same_tokenizer, engines["genai"].can_run, engines["traced"].can_run) == (True, False, True)
    assert "its eos token is the target's, but these are 5 and 0; choose the traced engine" in (
        engines["genai"].reason or ""
    )
    pair = with_tokenizers_compared(pair_of(target, inspect_folder(draft, draft=True), runtime=RuntimeSettings()))
    with pytest.raises(PairError, match="choose the traced engine"):
        check_engine(pair, "genai")
    check_engine(pair, "traced")


@pytest.mark.openvino
def test_a_padded_vocabulary_is_recommended_still() -> None:
    target, draft = inspect_folder(BUNDLED / "target"), inspect_folder(BUNDLED / "draft")
    padded = target.model_copy(update={"vocabulary": (target.vocabulary or 0) + 64})
    other = draft.model_copy(update={"name": "other", "vocabulary": 2 * (target.vocabulary or 0)})
    assert is_recommended(draft, padded)
    assert [model.name for model in drafts_for(padded, [other, draft])] == [draft.name, "other"]


def test_a_configuration_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BUNDLED / "draft", tmp_path / "draft"))
    with (folder / "config.json").open("r+b") as file:
        file.truncate(3 << 30)  # which takes no space on the disk
    with pytest.raises(FolderError, match=r"config.json in 'draft' is damaged"):
        inspect_folder(folder)


def test_names_of_folders_are_shown_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(BUNDLED / "draft", tmp_path / "a\x1b[31m[red]b\u202e")
    (tmp_path / "bad\n\x1b]0;title\x07.gguf").write_bytes(b"GGUF")
    assert main(["models", "list", "--models-dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "\\x1b[31m[red]b\\u202e" in told.replace("\n", "")
    assert not {"\x1b", "\x07", "\u202e"} & set(told)
