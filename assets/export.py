"""Export a Hugging Face target and draft to the OpenVINO IR folders that the app loads.

    python assets/export.py SOURCE assets/story-pair

SOURCE holds `target/` and `draft/` in Hugging Face format, or one of them: the other stays as it is. Run it in the
environment that `export-requirements.txt` describes.
"""

import argparse
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import openvino
from openvino import opset13 as opset

WEIGHTS = ("fp32", "fp16", "int8", "int8-f32")  # the last is ours: see `quantize`
NEEDED = ("config.json", "generation_config.json", "openvino_*.xml", "openvino_*.bin")
SMALL = 10_000  # numbers: the norms' weights, which are not worth it


def export(source: Path, destination: Path, weights: str, *options: str) -> None:
    """Export one model with tokenizer and detokenizer, in place of what was there."""
    shutil.rmtree(destination, ignore_errors=True)
    destination.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", str(source)]
    stored = "fp32" if weights == "int8-f32" else weights
    command += ["--task", "text-generation-with-past", "--weight-format", stored, *options]
    subprocess.run([*command, str(destination)], check=True)
    for file in destination.iterdir():
        if not any(fnmatch(file.name, pattern) for pattern in NEEDED):
            file.unlink()
    if weights == "int8-f32":
        quantize(destination)
    size = sum(file.stat().st_size for file in destination.iterdir())
    print(f"{destination}: {weights}, {size / 2**20:.1f} MiB")


def quantize(folder: Path) -> None:
    """Store matrices in int8 with a scale per row, and have OpenVINO compute them in f32.

    Multiplied by one they are a computed constant, which OpenVINO folds when it loads the model. Otherwise compressed
    weights run other kernels, whose passes over several tokens round differently and cost more.
    """
    file, scratch = folder / "openvino_model.xml", folder / "quantized.xml"
    model = openvino.Core().read_model(file)
    one = opset.constant(np.float32(1))
    for node in model.get_ordered_ops():
        floats = node.get_type_name() == "Constant" and node.get_element_type() == openvino.Type.f32
        if not floats or len(node.shape) != 2 or node.data.size < SMALL:
            continue
        readers = list(node.output(0).get_target_inputs())
        scales = (np.abs(node.data).max(axis=1, keepdims=True) / 127).astype(np.float16)
        codes = np.rint(node.data / np.where(scales, scales, 1)).clip(-127, 127).astype(np.int8)
        stored = opset.constant(codes, name=f"{node.get_friendly_name()}/int8")
        scaled = opset.multiply(opset.convert(stored, "f16"), opset.constant(scales))
        folded = opset.multiply(opset.convert(scaled, "f32"), one)
        folded.set_friendly_name(node.get_friendly_name())
        for reader in readers:
            reader.replace_source_output(folded.output(0))
    openvino.save_model(model, scratch, compress_to_fp16=False)
    del model  # which maps the old file
    for new in (scratch, scratch.with_suffix(".bin")):
        new.replace(file.with_suffix(new.suffix))


def main() -> None:
    """Export what there is of a pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--target-weights", choices=WEIGHTS, default="int8-f32")
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
