import shutil
from pathlib import Path

import pytest

from specdemo.errors import FolderError
from specdemo.models.catalogue import BUNDLED, bundled_pair
from specdemo.models.folder import REQUIRED, inspect_folder


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
    with pytest.raises(FolderError, match=r"contains no OpenVINO model; export it with: optimum-cli"):
        inspect_folder(tmp_path)
    for name in REQUIRED:
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


def test_without_a_configuration_the_network_tells_its_vocabulary(copy: Path) -> None:
    (copy / "config.json").unlink()
    model = inspect_folder(copy)
    described = inspect_folder(BUNDLED / "draft")
    assert (model.architecture, model.context_length) == ("unknown", None)
    assert (model.vocabulary, model.parameters) == (described.vocabulary, described.parameters)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"architectures": 3, "vocab_size": -1}',
        b'{"text_config": 3}',
    ],
    ids=lambda content: str(content)[:40],
)
def test_damaged_config(copy: Path, content: bytes) -> None:
    (copy / "config.json").write_bytes(content)
    with pytest.raises(FolderError, match=r"config\.json .* copy the folder again"):
        inspect_folder(copy)


def test_a_configuration_of_gigabytes_is_not_read(copy: Path) -> None:
    with (copy / "config.json").open("r+b") as file:
        file.truncate(3 << 30)  # which takes no space on the disk
    with pytest.raises(FolderError, match=r"config.json in 'copy' is damaged"):
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


def test_encoder_decoders_are_refused(copy: Path) -> None:
    config = (copy / "config.json").read_text()
    (copy / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    with pytest.raises(FolderError, match=r"encoder–decoder, .* choose a decoder-only model"):
        inspect_folder(copy)
    (copy / "config.json").write_text(config)
    (copy / "openvino_encoder_model.xml").touch()
    with pytest.raises(FolderError, match="encoder–decoder"):
        inspect_folder(copy)
