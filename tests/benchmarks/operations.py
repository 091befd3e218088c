"""Where the time of a step goes: milliseconds by kind of operation, at 1 and at 4 tokens, for each form of weights.

    python -m tests.benchmarks.operations [--model NAME|FILE] [--form exact int8] [--tokens 1 4] [--passes 40]

Figures come from OpenVINO's own counters of a stateful network, whose passes take a few per cent longer with them
than without; both are printed.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino

from specdemo.models.converted import converted_folder, pass_inputs
from specdemo.models.devices import device_name, properties
from specdemo.models.gguf_convert import Forms, convert_gguf
from specdemo.models.library import resolve
from specdemo.models.pairs import default_pair, initial_runtime

CONTEXT = 64
WARM_UP = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file or its name (default: the default pair's target)")
    parser.add_argument("--form", choices=("exact", "int8"), nargs="*", default=["exact", "int8"])
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--top", type=int, default=12)
    arguments = parser.parse_args()
    model = resolve(arguments.model) if arguments.model else default_pair().target
    assert model.path is not None
    assert model.path.is_file(), "a GGUF file has forms"
    compiled_with = properties(initial_runtime(model).model_copy(update={"model_cache": False}), "CPU")
    print(f"{model.name} on {device_name('CPU')}, {compiled_with}\n")
    for form in arguments.form:
        for _ in convert_gguf(model.path, Forms(form)):
            pass
        folder = converted_folder(model.path, form)
        assert folder is not None
        for tokens in arguments.tokens:
            show(folder, form, tokens, arguments.passes, arguments.top, compiled_with)


def show(folder: Path, form: str, tokens: int, passes: int, top: int, compiled_with: dict[str, str]) -> None:
    """One table."""
    bare = seconds(folder, tokens, passes, compiled_with)[0]
    counted, kinds = seconds(folder, tokens, passes, compiled_with | {"PERF_COUNT": "YES"})
    whole = sum(milliseconds for _, milliseconds in kinds.values())
    print(f"{form}, {tokens} token{'s' * (tokens > 1)}: {bare:.2f} ms a pass, {counted:.2f} with counters,")
    print(f"of these {whole:.2f} in operations\n")
    print("| operation, as it runs | number | ms | share |\n|---|---|---|---|")
    ranked = sorted(kinds.items(), key=lambda item: -item[1][1])
    for kind, (number, milliseconds) in ranked[:top]:
        print(f"| {kind} | {number} | {milliseconds:.2f} | {milliseconds / whole:.0%} |")
    print(flush=True)


def seconds(
    folder: Path, tokens: int, passes: int, compiled_with: dict[str, str]
) -> tuple[float, dict[str, tuple[int, float]]]:
    """Median milliseconds of a pass; number and mean milliseconds of each kind of operation, where they are counted.

    OpenVINO's counters are means over all passes of a network, so those of the first passes are taken out again.
    """
    network = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", compiled_with)
    request = network.create_infer_request()
    length, times, before = 0, [], dict[str, tuple[int, float]]()
    for index, count in enumerate((CONTEXT, *[tokens] * (WARM_UP + passes))):
        inputs = pass_inputs(length, count)
        began = perf_counter()
        request.infer(inputs)
        times.append(perf_counter() - began)
        length += count
        if index == WARM_UP:
            before = counters(request)
    first = WARM_UP + 1
    after = counters(request)
    kinds = {
        kind: (number, (mean * (first + passes) - before.get(kind, (0, 0.0))[1] * first) / passes)
        for kind, (number, mean) in after.items()
    }
    return float(np.median(times[first:])) * 1000, kinds


def counters(request: openvino.InferRequest) -> dict[str, tuple[int, float]]:
    """Number and milliseconds of each kind of operation, means over all passes; empty without counters."""
    found: dict[str, list[float]] = defaultdict(list)
    try:
        nodes = request.profiling_info
    except RuntimeError:  # they are off
        return {}
    for node in nodes:
        if str(node.status).endswith("EXECUTED"):
            found[node.node_type].append(node.real_time.total_seconds() * 1000)
    return {kind: (len(times), sum(times)) for kind, times in found.items()}


if __name__ == "__main__":
    main()
