"""Export a Hugging Face target and draft to the OpenVINO IR folders that the app loads.

    PYTHONPATH=. python assets/export.py SOURCE assets/story-pair

SOURCE holds `target/` and `draft/` in Hugging Face format, or one of them: the other stays as it is. Run it in the
environment that `export-requirements.txt` describes.
"""

import argparse
import shutil
from pathlib import Path

from specdemo.models import convert

WEIGHTS = ("fp32", "fp16", "int8")


def export(source: Path, destination: Path, weights: str, *options: str) -> None:
    """Export one model with tokenizer and detokenizer, in place of what was there."""
    shutil.rmtree(destination, ignore_errors=True)
    destination.parent.mkdir(parents=True, exist_ok=True)
    convert.export(source, destination, weights, *options)
    size = sum(file.stat().st_size for file in destination.iterdir())
    print(f"{destination}: {weights}, {size / 2**20:.1f} MiB")


def main() -> None:
    """Export what there is of a pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--target-weights", choices=WEIGHTS, default="fp32")
    parser.add_argument("--draft-weights", choices=WEIGHTS, default="int8")
    arguments = parser.parse_args()
    weights = {"target": arguments.target_weights, "draft": arguments.draft_weights}
    found = [role for role in weights if (arguments.source / role).is_dir()]
    if not found:
        parser.error(f"{arguments.source} has neither target/ nor draft/")
    for role in found:
        export(arguments.source / role, arguments.destination / role, weights[role])


if __name__ == "__main__":
    main()
