import os
import shutil
from pathlib import Path

import pytest

from specdemo.errors import FolderError
from specdemo.models.catalogue import BUNDLED, bundled_pair
from specdemo.models.folder import REQUIRED_FILES, inspect_folder

_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 400000\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED / "draft", tmp_path / "copy"))


def test_the_bundled_pair_is_described() -> None:
    pair = bundled_pair()
    assert pair.name == "story-pair"
    assert (pair.target.architecture, pair.target.weights, pair.target.context_length) == ("llama", "int8", 2048)
    assert 12e6 < pair.target.parameters < 12.5e6
    assert pair.draft is not None
    assert (pair.draft.weights, round(pair.draft.parameters / 1e6, 1)) == ("int8", 1.9)
    assert pair.runtime.precision == "f32"


def test_half_copied_folders(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"contains no OpenVINO model; choose 'copy' inside it"):
        inspect_folder(tmp_path)
    for name in REQUIRED_FILES:
        (copy / name).rename(tmp_path / name)
        with pytest.raises(FolderError, match=f"lacks {name}; copy the whole folder again"):
            inspect_folder(copy)
        (tmp_path / name).rename(copy / name)
    for stem in ("openvino_model", "openvino_tokenizer", "openvino_detokenizer"):
        file = copy / f"{stem}.bin"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        with pytest.raises(FolderError, match=rf"{stem}.bin .* has \d+ of \d+ bytes; the copy is incomplete"):
            inspect_folder(copy)
        file.write_bytes(whole)
    xml = copy / "openvino_model.xml"
    xml.write_text(xml.read_text()[:10_000])
    with pytest.raises(FolderError, match=r"openvino_model.xml in 'copy' is damaged"):
        inspect_folder(copy)


LINEAR = '{"text_config": {"layer_types": ["linear_attention"]}}'


@pytest.mark.parametrize(
    ("config", "mode", "reason"),
    [
        ('{"architectures": ["DFlashDraftModel"]}', "other", "is a DFlash draft, .* choose an EAGLE-3 head, or a"),
        ('{"dflash_config": {}}', "other", "'copy' is a DFlash draft"),
        ("{}", "dflash", "'copy' is a DFlash draft"),
        ("{}", "mtp", "'copy' is a multi-token-prediction head"),
        (LINEAR, "other", "linear attention, .* choose a model with a KV cache in every layer"),
    ],
)
def test_drafts_and_targets_that_do_not_run_are_refused_by_name(
    copy: Path, config: str, mode: str, reason: str
) -> None:
    (copy / "config.json").write_text(config)
    xml = copy / "openvino_model.xml"
    xml.write_text(xml.read_text().replace("</net>", f'<rt_info><{mode}_mode value="True" /></rt_info></net>'))
    with pytest.raises(FolderError, match=reason):
        inspect_folder(copy)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{}", "is exported in parts, .* its language model alone, with --task text-generation-with-past"),
        (LINEAR, "linear attention"),  # which its language model alone would have, too
    ],
)
def test_a_model_exported_in_parts_is_refused_by_name(copy: Path, config: str, reason: str) -> None:
    (copy / "config.json").write_text(config)
    (copy / "openvino_model.xml").rename(copy / "openvino_language_model.xml")
    with pytest.raises(FolderError, match=reason):
        inspect_folder(copy)


def test_without_config_json_the_vocabulary_is_the_number_of_logits(copy: Path) -> None:
    (copy / "config.json").unlink()
    model = inspect_folder(copy)
    described = inspect_folder(BUNDLED / "draft")
    assert (model.architecture, model.context_length) == ("unknown", None)
    assert (model.vocabulary, model.parameters) == (described.vocabulary, described.parameters)


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff\xfe", b"[" * 100_000, b'{"architectures": 3, "vocab_size": -1}', b'{"text_config": 3}', None],
    ids=lambda content: str(content)[:40],
)
def test_damaged_config(copy: Path, content: bytes | None) -> None:
    if content is None:
        os.truncate(copy / "config.json", 3 << 30)  # sparse: takes no space on the disk
    else:
        (copy / "config.json").write_bytes(content)
    with pytest.raises(FolderError, match=r"config\.json .* copy the folder again"):
        inspect_folder(copy)


@pytest.mark.parametrize(
    "change",
    ['\ufeff{"vocab_size"', '{"limit": [0, Infinity, NaN], "vocab_size"', '{"text_config": null, "vocab_size"'],
)
def test_configurations_as_other_programs_write_them(copy: Path, change: str) -> None:
    (copy / "config.json").write_text(f'{change}: 4096, "max_position_embeddings": 2048}}')
    model = inspect_folder(copy)
    assert (model.vocabulary, model.context_length) == (4096, 2048)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("openvino_model.xml", None, "without a state, .* --task text-generation-with-past"),
        ("openvino_model.bin", _POINTER, "only a Git LFS pointer; fetch it with: git lfs pull"),
        ("openvino_tokenizer.xml", _POINTER, "only a Git LFS pointer"),
        ("openvino_*tokenizer.*", "", "no OpenVINO tokenizer; convert it with: convert_tokenizer MODEL"),
        ("openvino_detokenizer.*", "", "no OpenVINO detokenizer; convert it with: convert_tokenizer MODEL"),
    ],
)
def test_exports_that_cannot_run_get_the_reason(copy: Path, file: str, content: str | None, reason: str) -> None:
    for path in copy.glob(file):
        text = path.read_text().replace('type="ReadValue"', 'type="Relu"') if content is None else content
        path.unlink()
        if text:
            path.write_text(text)
    with pytest.raises(FolderError, match=reason):
        inspect_folder(copy)


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json", "openvino_tokenizer.xml"])
def test_a_chat_template_is_found_wherever_genai_looks(copy: Path, place: str) -> None:
    file = copy / place
    text = '{"chat_template": "{{ messages }}"}'
    if place == "openvino_tokenizer.xml":
        text = file.read_text().replace("<rt_info>", '<rt_info><chat_template value="{{ messages }}"/>', 1)
    file.write_text(text)
    assert inspect_folder(copy).chat_template


@pytest.mark.parametrize("file", ["config.json", "openvino_encoder_model.xml"])
def test_encoder_decoders_are_refused(copy: Path, file: str) -> None:
    (copy / file).write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    with pytest.raises(FolderError, match=r"encoder–decoder, .* choose a decoder-only model"):
        inspect_folder(copy)
