import shutil
from contextlib import closing
from pathlib import Path

import pytest

from specdemo.capabilities import EngineName
from specdemo.engines import load_engine
from specdemo.errors import FolderError, PairError
from specdemo.models import checks
from specdemo.models.catalogue import BUNDLED, bundled_models, bundled_pair, pair_of
from specdemo.models.checks import check_pair, check_vocabularies, drafts_for, is_recommended
from specdemo.models.folder import inspect_folder
from specdemo.racing.race import run_alone
from specdemo.records import Model, Request
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.ui.parts import report_html
from tests.support import BRIEF
from tests.support.folders import FIXTURES

F32 = RuntimeSettings(precision="f32")


@pytest.fixture
def target() -> Model:
    return inspect_folder(BUNDLED / "target")


def without_detokenizer(source: Path, tmp_path: Path) -> Model:
    folder = Path(shutil.copytree(source, tmp_path / "fast"))
    for file in folder.glob("openvino_detokenizer.*"):
        file.unlink()
    return inspect_folder(folder)


def test_a_pair_with_different_tokenizers_is_for_the_traced_engine(target: Model) -> None:
    report = check_pair(target, inspect_folder(FIXTURES / "llama" / "draft"))
    assert (report.fits, report.same_tokenizer) == (True, False)
    assert {engine.engine: engine.can_run for engine in report.engines} == {"genai": False, "traced": True}
    assert "different tokenizers" in (report.reason or "")


@pytest.mark.openvino
@pytest.mark.parametrize("engine_name", ["genai", "traced"])
def test_a_draft_without_detokenizer_is_compared_by_example_and_drafts(
    engine_name: EngineName, target: Model, tmp_path: Path
) -> None:
    draft = without_detokenizer(FIXTURES / "llama" / "draft", tmp_path)
    llama = inspect_folder(FIXTURES / "llama" / "target")
    assert check_pair(llama, draft).same_tokenizer
    other = check_pair(target, draft)
    assert (other.fits, other.same_tokenizer) == (False, False)
    assert "choose a draft of the target's family" in (other.reason or "")
    with pytest.raises(FolderError, match="it can only be a draft"):
        check_pair(draft, None)
    settings = GenerationSettings(engine=engine_name, max_new_tokens=8)
    request = Request.of("Does it help", settings)
    with closing(load_engine(engine_name, pair_of(llama, draft, runtime=F32), thoroughness=BRIEF)) as engine:
        assert run_alone(engine.decoder(request)).token_ids == run_alone(engine.decoder(request.plain)).token_ids
    with pytest.raises(PairError, match="choose a draft of the target's family"):
        load_engine(engine_name, pair_of(target, draft, runtime=F32))


def test_a_large_pair_gets_a_warning_and_a_lone_target_advice_on_drafts(
    target: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "memory_free", lambda: 2**30)
    large = target.model_copy(update={"weight_bytes": 10**9, "path": None})
    report = check_pair(large, None)
    assert (report.fits, report.same_tokenizer, report.draft) == (True, None, None), "an estimate"
    assert report.reason == "It may need 2.3 GB of memory, but only 1.1 GB is free; choose a smaller pair."
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
    foreign, mute = like("foreign", vocabulary=7), like("mute", vocabulary=7, detokenizer=False)
    head = like("head", vocabulary=7, head="eagle3")
    assert drafts_for(target, [foreign, target, large, mute, head, small]) == [small, large, foreign]
    padded = target.model_copy(update={"vocabulary": (target.vocabulary or 0) + 64})
    other = like("other", vocabulary=2 * (target.vocabulary or 0))
    assert is_recommended(small, padded)
    assert [model.name for model in drafts_for(padded, [other, small])] == [small.name, "other"]
