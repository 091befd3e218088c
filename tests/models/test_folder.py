import shutil
from pathlib import Path

import pytest

from specdemo.errors import DeviceError, FolderError, PairError
from specdemo.models.checks import check_vocabularies, drafts_for
from specdemo.models.devices import check_devices
from specdemo.models.folder import REQUIRED, inspect_folder
from specdemo.models.pairs import (
    BUNDLED,
    bundled_models,
    bundled_pair,
    pair_of,
)
from specdemo.records import Model
from specdemo.settings import RuntimeSettings
from tests.support.folders import pair_from_folders


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED / "draft", tmp_path / "copy"))


def test_the_bundled_pair_is_described() -> None:
    pair = bundled_pair()
    assert pair.name == "story-pair"
    assert (pair.target.architecture, pair.target.weights, pair.target.context_length) == ("llama", "f16", 2048)
    assert 12e6 < pair.target.parameters < 12.5e6
    assert pair.draft is not None
    assert (pair.draft.weights, round(pair.draft.parameters / 1e6, 1)) == ("int8", 1.9)
    assert pair.runtime.precision == "f32"


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"contains no OpenVINO model; export it with: optimum-cli"):
        inspect_folder(tmp_path)


@pytest.mark.parametrize("name", REQUIRED)
def test_half_copied_folder(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(FolderError, match=f"lacks {name}; copy the whole folder again"):
        inspect_folder(copy)


def test_without_a_configuration_the_network_tells_its_vocabulary(copy: Path) -> None:
    (copy / "config.json").unlink()
    model = inspect_folder(copy)
    described = inspect_folder(BUNDLED / "draft")
    assert (model.architecture, model.context_length) == ("unknown", None)
    assert (model.vocabulary, model.parameters) == (described.vocabulary, described.parameters)


@pytest.mark.parametrize("stem", ["openvino_model", "openvino_tokenizer", "openvino_detokenizer"])
def test_file_cut_short(copy: Path, stem: str) -> None:
    file = copy / f"{stem}.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FolderError, match=rf"{stem}.bin .* has \d+ of \d+ bytes; the copy is incomplete"):
        inspect_folder(copy)


def test_damaged_xml(copy: Path) -> None:
    file = copy / "openvino_model.xml"
    file.write_text(file.read_text()[:10_000])
    with pytest.raises(FolderError, match=r"openvino_model.xml in 'copy' is damaged"):
        inspect_folder(copy)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        b"\xff\xfe",
        "[" * 100_000,
        '{"architectures": 3, "vocab_size": -1}',
        '{"max_position_embeddings": [1]}',
        '{"text_config": 3}',
    ],
    ids=lambda content: str(content)[:40],
)
def test_damaged_config(copy: Path, content: str | bytes) -> None:
    (copy / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FolderError, match=r"config\.json .* copy the folder again"):
        inspect_folder(copy)


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json", "openvino_tokenizer.xml"])
def test_a_chat_template_is_found_wherever_genai_looks(copy: Path, place: str) -> None:
    file = copy / place
    if place == "tokenizer_config.json":
        file.write_text('{"chat_template": "{{ messages }}"}')
    elif place == "openvino_tokenizer.xml":
        file.write_text(file.read_text().replace("<rt_info>", '<rt_info><chat_template value="{{ messages }}"/>', 1))
    else:
        file.write_text("{{ messages }}")
    assert inspect_folder(copy).chat_template


def test_a_draft_may_lack_a_detokenizer_and_a_target_may_not(copy: Path) -> None:
    for file in copy.glob("openvino_detokenizer.*"):
        file.unlink()
    draft = inspect_folder(copy, draft=True)
    assert not draft.detokenizer
    with pytest.raises(FolderError, match=r"lacks openvino_detokenizer.xml, openvino_detokenizer.bin"):
        inspect_folder(copy)
    with pytest.raises(FolderError, match="can only be a draft; choose another target"):
        pair_of(draft, runtime=RuntimeSettings())
    pair = pair_from_folders(BUNDLED / "target", copy, RuntimeSettings())
    assert pair.draft == draft


@pytest.mark.parametrize("how", ["config", "encoder"])
def test_encoder_decoders_are_refused(copy: Path, how: str) -> None:
    if how == "config":
        (copy / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    else:
        (copy / "openvino_encoder_model.xml").touch()
    with pytest.raises(FolderError, match=r"encoder–decoder, .* choose a decoder-only model"):
        inspect_folder(copy)


def test_vocabularies_that_agree() -> None:
    words = {f"w{i}".encode(): i for i in range(100)}
    check_vocabularies(words, words)
    check_vocabularies(words | {b"<extra>": 100}, words)


def test_vocabularies_that_differ() -> None:
    words = {f"w{i}".encode(): i for i in range(100)}
    with pytest.raises(PairError, match=r"different tokenizers \(token 7 differs\)"):
        check_vocabularies(words, {(b"other" if i == 7 else word): i for word, i in words.items()})
    with pytest.raises(PairError, match="100 tokens versus 50"):
        check_vocabularies(words, {word: i for word, i in words.items() if i < 50})


@pytest.mark.parametrize("device", ["TPU", "cpu", "CPU.7", "CPU(9)", "MULTI:CPU(999999)", "AUTO:" + "CPU," * 9999])
def test_devices_this_machine_does_not_have(device: str) -> None:
    with pytest.raises(DeviceError, match=r"This machine has no device '.*'; choose one of .*CPU") as caught:
        check_devices(RuntimeSettings(device=device))
    assert len(str(caught.value)) < 500


def test_drafts_that_fit_come_first_and_those_that_cannot_are_left_out() -> None:
    target, small = bundled_models()

    def like(name: str, **changed: object) -> Model:
        return small.model_copy(update={"name": name, **changed})

    large = like("large", weight_bytes=2 * (target.weight_bytes or 0))
    foreign, mute = like("foreign", vocabulary=7), like("mute", vocabulary=7, detokenizer=False)
    head = like("head", vocabulary=7, head="eagle3")
    models = [foreign, target, large, mute, head, small]
    assert drafts_for(target, models) == [small, large, foreign]
