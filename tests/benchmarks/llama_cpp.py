"""llama.cpp beside OpenVINO on the same GGUF file: milliseconds a token, plain and greedy, in turns.

    python -m tests.benchmarks.llama_cpp [--model NAME|FILE] [--repeats 10] [--tokens 96] [--threads N]

llama.cpp's server runs in a process of its own and reports its decoding time itself; ours are steps by our clock, in
each engine and form of weights, with the target's initial settings. Prompts are the bundled ones; turns are in random
order. Printed are medians and quartiles, and the ratio to llama.cpp within each repeat; the goal is at most 1.25.
"""

import argparse
import os
import subprocess
import sys
from contextlib import closing
from itertools import product
from random import Random
from statistics import median, quantiles

import httpx

from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.models.converted import convert_pair
from specdemo.models.library import resolve
from specdemo.models.pairs import bundled_prompts, default_pair, initial_runtime, pair_of
from specdemo.race import run_alone
from specdemo.records import Request
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName

GOAL = 1.25


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file or its name (default: the default pair's target)")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=0, help="of both (default: OpenVINO's choice, and all cores)")
    arguments = parser.parse_args()
    target = resolve(arguments.model) if arguments.model else default_pair().target
    assert target.path is not None
    prompts = bundled_prompts("base")
    runtime = initial_runtime(target).model_copy(update={"inference_num_threads": arguments.threads})
    engines: dict[str, Engine] = {}
    names: tuple[EngineName, ...] = ("genai", "traced")
    for engine_name, form in product(names, ("exact", "int8")):
        pair = pair_of(target, runtime=runtime.model_copy(update={"weights": form}))
        for _ in convert_pair(pair):
            pass
        engines[f"{engine_name}, {form}"] = load_engine(engine_name, pair)
    settings = GenerationSettings(
        drafter="lookup", ignore_eos=True, max_new_tokens=arguments.tokens, apply_chat_template=False
    )
    seconds: dict[str, list[float]] = {"llama.cpp": [], **{name: [] for name in engines}}
    random = Random(0)
    threads = arguments.threads or os.cpu_count() or 1
    command = [sys.executable, "-m", "tests.support.llama_server", str(target.path), "", str(threads)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        try:
            with closing(httpx.Client(base_url=address, timeout=120)) as client:
                for repeat in range(-1, arguments.repeats):  # one more, to warm up
                    prompt = prompts[repeat % len(prompts)]
                    for name in random.sample(sorted(seconds), len(seconds)):
                        if name == "llama.cpp":
                            value = theirs(client, prompt, arguments.tokens)
                        else:
                            value = ours(engines[name], prompt, settings)
                        if repeat >= 0:
                            seconds[name].append(value)
        finally:
            server.kill()
    for engine in engines.values():
        engine.close()
    print(f"{target.name}, {arguments.tokens} tokens, {arguments.repeats} repeats\n")
    print("| | ms a token | to llama.cpp | at most 1.25 |\n|---|---|---|---|")
    for name, values in seconds.items():
        ratios = [value / other for value, other in zip(values, seconds["llama.cpp"], strict=True)]
        goal = "" if name == "llama.cpp" else ("met" if median(ratios) <= GOAL else "missed")
        print(f"| {name} | {shown([1000 * value for value in values], 1)} | {shown(ratios, 2)} | {goal} |")


def shown(values: list[float], digits: int) -> str:
    """Median and quartiles."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    low, middle, high = quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def theirs(client: httpx.Client, prompt: str, tokens: int) -> float:
    """Seconds a token of llama.cpp's decoding, by its own clock."""
    body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    answer = client.post("/completion", json=body)
    answer.raise_for_status()
    return float(answer.json()["timings"]["predicted_per_token_ms"]) / 1000


def ours(engine: Engine, prompt: str, settings: GenerationSettings) -> float:
    """Seconds a token of plain decoding after the prefill, by our clock."""
    run = run_alone(engine.decoder(Request.of(prompt, settings).plain))
    return sum(step.seconds for step in run.rounds) / len(run.rounds)


if __name__ == "__main__":
    main()
