import shutil
from pathlib import Path

from specdemo.models.catalogue import BUNDLED, pair_of
from specdemo.models.folder import inspect_folder
from specdemo.records import ModelPair
from specdemo.settings import RuntimeSettings

FIXTURES = Path(__file__).parents[1] / "fixtures"
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}{% endif %}"
)


def pair_from_folders(target: Path, draft: Path | None, runtime: RuntimeSettings) -> ModelPair:
    """Return a pair of OpenVINO folders; without a draft, for prompt lookup."""
    drafted = inspect_folder(draft) if draft is not None else None
    return pair_of(inspect_folder(target), drafted, runtime=runtime)


def chat_pair(folder: Path, *, enable_prefix_caching: bool = False) -> ModelPair:
    for role in ("target", "draft"):
        (folder / role).mkdir()
        for file in (BUNDLED / role).iterdir():
            (folder / role / file.name).symlink_to(file)
        (folder / role / "chat_template.jinja").write_text(TEMPLATE)
    settings = RuntimeSettings(precision="f32", enable_prefix_caching=enable_prefix_caching)
    return pair_from_folders(folder / "target", folder / "draft", settings)


def add_models(folder: Path) -> None:
    """Add two families, a target that OpenVINO refuses, and a chat model whose answers are full of markup."""
    for name in ("chat", "refused"):
        (folder / name).mkdir(parents=True)
    for family in ("qwen3", "llama"):
        shutil.copytree(FIXTURES / family, folder / family)
    refused = shutil.copytree(FIXTURES / "llama" / "target", folder / "refused" / "target") / "openvino_model.xml"
    refused.write_text(refused.read_text().replace('type="MatMul"', 'type="NoSuchOperation"'))
    pair = chat_pair(folder / "chat")
    for model in filter(None, (pair.target, pair.draft)):
        assert model.path is not None
        detokenizer = model.path / "openvino_detokenizer.bin"
        words = detokenizer.read_bytes()
        detokenizer.unlink()
        detokenizer.write_bytes(words.replace(b" and", b"<hr>"))
