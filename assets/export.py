"""Export a Hugging Face target and draft to the OpenVINO IR folders that the app loads.

    python assets/export.py SOURCE assets/story-pair

SOURCE holds `target/` and `draft/` in Hugging Face format. Run it in the environment that
`export-requirements.txt` describes.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

NEEDED = ("config.json", "generation_config.json", "tokenizer_config.json", "openvino_*.xml", "openvino_*.bin")
WEIGHTS = ("fp32", "fp16", "int8")


def export(source: Path, destination: Path, weights: str, *options: str) -> None:
    """Export one model with tokenizer and detokenizer, if any; keep only the files that OpenVINO GenAI reads."""
    with tempfile.TemporaryDirectory() as scratch:
        task = ["--task", "text-generation-with-past", "--weight-format", weights, *options]
        subprocess.run(["optimum-cli", "export", "openvino", "--model", source, *task, scratch], check=True)
        shutil.rmtree(destination, ignore_errors=True)
        destination.mkdir(parents=True)
        for pattern in NEEDED:
            for file in Path(scratch).glob(pattern):
                shutil.copyfile(file, destination / file.name)
    size = sum(file.stat().st_size for file in destination.iterdir())
    print(f"{destination}: {weights}, {size / 2**20:.1f} MiB")


def main() -> None:
    """Export both models of the pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--target-weights", choices=WEIGHTS, default="fp32")
    parser.add_argument("--draft-weights", choices=WEIGHTS, default="int8")
    arguments = parser.parse_args()
    export(arguments.source / "target", arguments.destination / "target", arguments.target_weights)
    export(arguments.source / "draft", arguments.destination / "draft", arguments.draft_weights)


if __name__ == "__main__":
    main()
