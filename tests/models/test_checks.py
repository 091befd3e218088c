import shutil
from pathlib import Path

import pytest

from specdemo.errors import PairError
from specdemo.models import checks
from specdemo.models.catalogue import BUNDLED, bundled_models, bundled_pair
from specdemo.models.checks import check_pair, check_vocabularies, drafts_for, is_recommended
from specdemo.models.folder import inspect_folder
from specdemo.records import Model
from specdemo.ui.parts import report_html
from tests.support.folders import FIXTURES


@pytest.fixture
def target() -> Model:
    return inspect_folder(BUNDLED / "target")


def test_a_pair_with_different_tokenizers_is_for_the_traced_engine(target: Model) -> None:
    report = check_pair(target, inspect_folder(FIXTURES / "llama" / "draft"))
    assert (report.fits, report.same_tokenizer) == (True, False)
    assert {engine.engine: engine.can_run for engine in report.engines} == {"genai": False, "traced": True}
    assert "different tokenizers" in (report.reason or "")


@pytest.mark.parametrize(("name", "value"), [("bos", "5"), ("eos", ""), ("pad", "")])
def test_genai_refuses_a_draft_with_other_special_tokens(
    name: str, value: str, target: Model, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(BUNDLED / "draft", tmp_path / "draft"))
    file = folder / "openvino_tokenizer.xml"
    changed = f'<{name}_token_id value="{value}"' if value else "<nothing"
    file.write_text(file.read_text().replace(f'<{name}_token_id value="0"', changed))
    for other in folder.glob("*.json"):  # where GenAI looks for missing ones
        other.unlink()
    report = check_pair(target, inspect_folder(folder))
    assert {engine.engine: engine.can_run for engine in report.engines} == {"genai": False, "traced": True}
    assert f"only if its {name} token is the target's, but these are {value or -1} and 0" in (report.reason or "")


def test_a_large_pair_gets_a_warning_and_a_lone_target_advice_on_drafts(
    target: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "memory_free", lambda: 2**30)
    large = target.model_copy(update={"weight_bytes": 10**9, "path": None})
    report = check_pair(large, None)
    assert (report.fits, report.same_tokenizer, report.draft) == (True, None, None), "an estimate"
    assert report.reason == "It may need 2.5 GB of memory, but only 1.1 GB is free; choose a smaller pair."
    assert "docs/drafts.md" in report_html(report)
    assert "docs/drafts.md" not in report_html(check_pair(target, bundled_pair().draft))


def test_vocabularies_agree_up_to_a_few_added_tokens() -> None:
    words = {f"w{i}".encode(): i for i in range(100)}
    check_vocabularies(words, words)
    check_vocabularies(words | {b"<extra>": 100}, words)
    with pytest.raises(PairError, match=r"different tokenizers \(token 7 differs\)"):
        check_vocabularies(words, {(b"other" if i == 7 else word): i for word, i in words.items()})
    with pytest.raises(PairError, match="100 tokens versus 50"):
        check_vocabularies(words, {word: i for word, i in words.items() if i < 50})


@pytest.mark.openvino
def test_drafts_that_fit_come_first_and_those_that_cannot_are_left_out() -> None:
    target, small = bundled_models()

    def like(name: str, **changed: object) -> Model:
        return small.model_copy(update={"name": name, **changed})

    large = like("large", weight_bytes=2 * (target.weight_bytes or 0))
    foreign, head = like("foreign", vocabulary=7), like("head", vocabulary=7, head="eagle3")
    assert drafts_for(target, [foreign, target, large, head, small]) == [small, large, foreign]
    padded = target.model_copy(update={"vocabulary": (target.vocabulary or 0) + 64})
    other = like("other", vocabulary=2 * (target.vocabulary or 0))
    assert is_recommended(small, padded)
    assert [model.name for model in drafts_for(padded, [other, small])] == [small.name, "other"]
