"""The bundled pair, and pairs from a user's own folders."""

import json
from pathlib import Path
from typing import Any

from specdemo.errors import PairError
from specdemo.models.folder import inspect_folder
from specdemo.records import ModelPair
from specdemo.settings import RuntimeSettings

ASSETS = Path(__file__).resolve().parents[2] / "assets"
BUNDLED = ASSETS / "story-pair"


def bundled_pair(**runtime: Any) -> ModelPair:
    """The pair that comes with the project; in f32 unless asked otherwise, where its outputs are identical.

    Raises:
        SettingsError: a runtime setting is out of its range.
    """
    settings = RuntimeSettings.checked(**{"precision": "f32", **runtime})
    return pair_from_folders(BUNDLED / "target", BUNDLED / "draft", settings)


def bundled_prompts() -> list[str]:
    """Beginnings of texts that the bundled pair can go on with."""
    prompts: list[str] = json.loads((ASSETS / "prompts.json").read_text(encoding="utf-8"))
    return prompts


def pair_from_folders(target: Path, draft: Path | None, runtime: RuntimeSettings) -> ModelPair:
    """A pair from two folders of OpenVINO IR, or a target alone for prompt lookup.

    Raises:
        FolderError: a folder is missing, empty, half copied or not OpenVINO IR.
        PairError: the target is an EAGLE-3 head.
    """
    models = [inspect_folder(folder) for folder in (target, draft) if folder is not None]
    if models[0].eagle3:
        raise PairError(
            f"{models[0].name!r} is an EAGLE-3 head, which writes nothing by itself; choose it as the draft."
        )
    bundled = target.parent == BUNDLED
    return ModelPair(
        name=BUNDLED.name if bundled else " + ".join(model.name for model in models),
        target=models[0],
        draft=models[1] if draft is not None else None,
        runtime=runtime,
    )


def check_vocabularies(target: dict[bytes, int], draft: dict[bytes, int]) -> None:
    """Check that target and draft mean the same token by every id they share, and share nearly all.

    A model may know a few added tokens that its partner lacks; an id that stands for two texts makes every
    proposal meaningless.

    Raises:
        PairError: the tokenizers differ.
    """
    by_id = {id_: text for text, id_ in target.items()}
    clash = next((id_ for text, id_ in draft.items() if by_id.get(id_, text) != text), None)
    if clash is None and len(target.keys() & draft.keys()) >= 0.95 * max(len(target), len(draft)):
        return
    detail = f"token {clash} differs" if clash is not None else f"{len(target)} tokens against {len(draft)}"
    raise PairError(
        f"Target and draft have different tokenizers ({detail}); "
        "choose a draft of the target's family, or the traced engine."
    )
