"""How often intervals of the speedup hold the true one, and how often a clear headline names the wrong side.

    python -m tests.benchmarks.coverage --record races.jsonl.gz [--processes 4] [--pairs story-pair smollm2]
    python -m tests.benchmarks.coverage [races.jsonl.gz]

The first records races of both bundled pairs: each prompt and setting is raced with a repeat on a quiet machine,
beside programs that ask for 25, 50 and 90 % of every core in bursts, beside a browser that draws, and beside a build;
then all of it in another process. That takes about 10 minutes for each process, on a machine that does nothing else.
The second prints the table for recorded races, by default those that the tests use. A race's truth is the ratio of
seconds in quiet races of the other processes, so intervals must also cover how much processes differ.
"""

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from random import Random
from signal import SIGKILL
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

from specdemo.engines import load_engine
from specdemo.experiments.prompts import bundled_tasks
from specdemo.models.catalogue import bundled_pair, default_pair, pair_settings
from specdemo.models.converted import convert_pair
from specdemo.racing.race import race
from specdemo.racing.trials import repeats
from specdemo.records import Comparison
from specdemo.results.estimate import BUSY_SHARE, of_comparison
from tests.support.recorded import RECORDED, Recorded, packed, recorded_races

BESIDE = ("nothing", "25 %", "browser", "50 %", "build", "90 %", "nothing")
_CONSTANT = {"policy": "constant"}
_DRAWN = _CONSTANT | {"do_sample": True, "top_k": 0}
SETTINGS: dict[str, list[dict[str, Any]]] = {  # the pair's own first; speedups above, near and below 1×
    "smollm2": [
        {},
        _CONSTANT | {"num_assistant_tokens": 2},
        _CONSTANT | {"drafter": "lookup", "num_assistant_tokens": 3},
        _CONSTANT | {"num_assistant_tokens": 8},
    ],
    "story-pair": [
        {},
        _CONSTANT | {"drafter": "lookup", "num_assistant_tokens": 2},
        _DRAWN | {"num_assistant_tokens": 8, "temperature": 1.0},
        _DRAWN | {"num_assistant_tokens": 12, "temperature": 2.0},
    ],
}
TOKENS = {"smollm2": (96, 64), "story-pair": (128, 96)}  # of two prompts
_BURSTS = (0.05, 0.5)  # seconds
_ANIMATION = """<canvas id=c width=1200 height=800></canvas><div id=d></div><script>
const pen = c.getContext("2d"); let n = 0;
(function draw() {
  pen.fillStyle = `hsl(${++n % 360}, 80%, 50%)`;
  for (let i = 0; i < 400; i++) { pen.beginPath(); pen.arc(Math.random() * 1200, Math.random() * 800, 20, 0, 7); pen.fill(); }
  d.innerHTML = Array.from({ length: 200 }, (_, i) => `<p style="color: hsl(${(i * n) % 360}, 50%, 50%)">${i * n}</p>`).join("");
  requestAnimationFrame(draw);
})()</script>"""  # noqa: E501


def burn(share: float, seed: int) -> None:
    """Keep a core busy in bursts until the parent is gone."""
    random, parent = Random(seed), os.getppid()
    while os.getppid() == parent:
        burst = random.uniform(*_BURSTS)
        end = perf_counter() + burst
        while perf_counter() < end:
            pass
        sleep(burst * (1 - share) / share)


def beside(what: str, folder: Path) -> AbstractContextManager[None]:
    if what == "nothing":
        return nullcontext()
    if what == "browser":
        page = folder / "busy.html"
        page.write_text(_ANIMATION)
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--remote-debugging-port=0"]
        return running([["chromium-headless-shell", *options, f"--user-data-dir={folder}/browser", page.as_uri()]])
    if what == "build":
        library = json.__file__.removesuffix("json/__init__.py")
        return running([["bash", "-c", f"while true; do {sys.executable} -m compileall -q -f {library}; done"]])
    share = float(what.removesuffix(" %")) / 100
    call = "from tests.benchmarks.coverage import burn; burn({}, {})"
    return running([[sys.executable, "-c", call.format(share, seed)] for seed in range(os.cpu_count() or 1)])


@contextmanager
def running(commands: Sequence[Sequence[str]]) -> Iterator[None]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    programs = [subprocess.Popen(command, **quiet) for command in commands]  # type: ignore[call-overload]
    try:
        sleep(3.0)
        yield
    finally:
        for program in programs:
            os.killpg(program.pid, SIGKILL)
            program.wait()


def record(name: str, path: Path) -> None:
    """Append this process's races of a pair."""
    pair = bundled_pair() if name == "story-pair" else default_pair()
    for _ in convert_pair(pair):
        pass
    tasks = bundled_tasks("base" if name == "story-pair" else "chat")
    Random(1).shuffle(tasks)
    with closing(load_engine("traced", pair)) as engine, TemporaryDirectory() as folder:
        for task, tokens in zip(tasks, TOKENS[name], strict=False):
            shared = {"engine": "traced", "max_new_tokens": tokens, "ignore_eos": True}
            variants = [pair_settings(pair, **shared | changes) for changes in SETTINGS[name]]
            for what in BESIDE:
                with beside(what, Path(folder)):
                    for settings in variants:
                        *_, raced = race(engine, task.prompt, settings)
                        assert isinstance(raced, Comparison)
                        *_, raced = raced, *repeats(engine, raced, number=2 if what == "nothing" else 1)
                        setting = f"{settings.drafter}, {settings.strategy.description}"
                        where = {"pair": name, "setting": setting, "prompt": task.name, "beside": what}
                        with gzip.open(path, "at") as file:
                            file.write(json.dumps({**where, "process": str(os.getpid()), **packed(raced)}) + "\n")
                print(f"{name}, {task.name}, beside {what}", file=sys.stderr, flush=True)


def table(races: Sequence[Recorded]) -> Iterator[str]:
    yield "| races | number | load | true speedups | interval holds the truth | clear, of them wrong | half-width |"
    yield "|" + "---|" * 7
    pairs = list(dict.fromkeys(each.pair for each in races))
    for pair in [*pairs, "both pairs"]:
        mine = [each for each in races if pair in (each.pair, "both pairs")]
        for what in dict.fromkeys(BESIDE):
            yield _row(f"{pair}, beside {what}", [each for each in mine if each.beside == what])
    for setting in dict.fromkeys((each.pair, each.setting) for each in races):
        yield _row(": ".join(setting), [each for each in races if (each.pair, each.setting) == setting])
    for title, busy in (("others took little", False), (f"others took over {BUSY_SHARE * 100:.0f} %", True)):
        yield _row(title, [each for each in races if (each.load > BUSY_SHARE) == busy])
    yield _row("all", races)


def _row(title: str, races: Sequence[Recorded]) -> str:
    found = [(each.truth, speedup) for each in races if (speedup := of_comparison(each.comparison)) is not None]
    if not found:
        return f"| {title} | 0 |" + " – |" * 5
    held = sum(speedup.low <= truth <= speedup.high for truth, speedup in found) / len(found)
    clear = [(speedup.ratio > 1) == (truth > 1) for truth, speedup in found if speedup.state == "clear"]
    width = median(math.sqrt(speedup.high / speedup.low) - 1 for _, speedup in found)
    truths, load = [truth for truth, _ in found], median(each.load for each in races)
    cells = [
        title, len(found), f"{load * 100:.0f} %", f"{min(truths):.2f}–{max(truths):.2f}",
        f"{held * 100:.0f} %", f"{len(clear)}, {clear.count(False)}", f"±{width * 100:.0f} %",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("races", type=Path, nargs="?", default=RECORDED)
    parser.add_argument("--record", type=Path, metavar="PATH")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--pairs", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    options = parser.parse_args()
    if options.record is not None and options.processes > 0:
        for pair in options.pairs * options.processes:
            command = [sys.executable, "-m", "tests.benchmarks.coverage", "--processes", "0", "--pairs", pair]
            subprocess.run([*command, "--record", str(options.record)], check=True)
    elif options.record is not None:
        record(options.pairs[0], options.record)
    print("\n".join(table([*recorded_races(options.record or options.races)]))) if options.processes else None


if __name__ == "__main__":
    main()
