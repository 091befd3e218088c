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
ENCODED = '{"model_type": "t5", "is_encoder_decoder": true}'
DAMAGED = ("{", "\xff\xfe", "[" * 100_000, '{"architectures": 3, "vocab_size": -1}', '{"text_config": 3}')
REFUSED = [  # files, what stands in them instead (nothing: they are missing), and the reason
    ("config.json", '{"architectures": ["DFlashDraftModel"]}', "is a DFlash draft, .* choose an EAGLE-3 head, or a"),
    ("config.json", '{"dflash_config": {}}', "'copy' is a DFlash draft"),
    ("config.json", LINEAR, "linear attention, .* choose a model with a KV cache in every layer"),
    ("config.json", ENCODED, "encoder–decoder, .* choose a decoder-only model"),
    ("openvino_encoder_model.xml", ENCODED, "encoder–decoder, .* choose a decoder-only model"),
    *(("config.json", content, r"config\.json .* copy the folder again") for content in DAMAGED),
    ("openvino_model.bin", _POINTER, "only a Git LFS pointer; fetch it with: git lfs pull"),
    ("openvino_tokenizer.xml", _POINTER, "only a Git LFS pointer"),
    ("openvino_*tokenizer.*", "", "no OpenVINO tokenizer; convert it with: convert_tokenizer MODEL"),
    ("openvino_detokenizer.*", "", "no OpenVINO detokenizer; convert it with: convert_tokenizer MODEL"),
]


@pytest.mark.parametrize(("file", "content", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_a_folder_that_cannot_run_is_refused_with_the_reason(
    copy: Path, file: str, content: str, reason: str
) -> None:
    for path in [*copy.glob(file)] or [copy / file]:
        path.unlink(missing_ok=True)
        if content:
            path.write_bytes(content.encode("latin-1"))
    with pytest.raises(FolderError, match=reason):
        inspect_folder(copy)


def test_a_configuration_of_gigabytes_is_damaged(copy: Path) -> None:
    os.truncate(copy / "config.json", 3 << 30)  # sparse: takes no space on the disk
    with pytest.raises(FolderError, match=r"config\.json .* copy the folder again"):
        inspect_folder(copy)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("</net>", '<rt_info><dflash_mode value="True" /></rt_info></net>', "'copy' is a DFlash draft"),
        ("</net>", '<rt_info><mtp_mode value="True" /></rt_info></net>', "is a multi-token-prediction head"),
        ('type="ReadValue"', 'type="Relu"', "without a state, .* --task text-generation-with-past"),
    ],
)
def test_a_network_that_cannot_run_is_refused_with_why(copy: Path, before: str, after: str, reason: str) -> None:
    (copy / "config.json").write_text("{}")
    xml = copy / "openvino_model.xml"
    xml.write_text(xml.read_text().replace(before, after))
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
    "change",
    ['\ufeff{"vocab_size"', '{"limit": [0, Infinity, NaN], "vocab_size"', '{"text_config": null, "vocab_size"'],
)
def test_configurations_as_other_programs_write_them(copy: Path, change: str) -> None:
    (copy / "config.json").write_text(f'{change}: 4096, "max_position_embeddings": 2048}}')
    model = inspect_folder(copy)
    assert (model.vocabulary, model.context_length) == (4096, 2048)


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json", "openvino_tokenizer.xml"])
def test_a_chat_template_is_found_wherever_genai_looks(copy: Path, place: str) -> None:
    file = copy / place
    text = '{"chat_template": "{{ messages }}"}'
    if place == "openvino_tokenizer.xml":
        text = file.read_text().replace("<rt_info>", '<rt_info><chat_template value="{{ messages }}"/>', 1)
    file.write_text(text)
    assert inspect_folder(copy).chat_template
