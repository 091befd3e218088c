"""Train a target and distil its drafts, on a GPU or two cores.

    python assets/training/make_pair.py large WORK --corpus ../shared/corpus
    python assets/training/make_pair.py bundled WORK --corpus ../shared/corpus --target ../shared/story-pair/target

Everything gathers in WORK: token files, checkpoints, and at the end the models in Hugging Face format, which
`assets/export.py` takes, and `report.md`. What was stopped goes on where it was when it is started again. Recipes are
in `recipes.toml`; with --target, that model and its tokenizer are taken instead of training others. --compare adds
other models with the same tokenizer to the report.
"""

import argparse
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

import evaluate
from fit import DEVICE, fit, from_teacher, from_text, llama, windows
from own_text import write_own_text
from texts import read_tokens, sources, split, train_tokenizer, write_tokens

RECIPES = tomllib.loads((Path(__file__).parent / "recipes.toml").read_text(encoding="utf-8"))
DOMAINS = ("children", "novels", "python")  # a pair is judged on all of them


def load(folder: Path, dtype: str) -> LlamaForCausalLM:
    """A model to judge, in float32, or to teach, for which bfloat16 is exact enough and fast."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype).to(DEVICE).eval()


def prepare(recipe: dict[str, Any], corpus: Path, given: Path | None, work: Path) -> PreTrainedTokenizerFast:
    """Token files of all domains and the tokenizer, unless they are there."""
    marker = work / "tokenizer"
    if not marker.exists():
        kept = recipe.get("documents")
        texts = {name: split(sources(name, corpus)[:kept], recipe["held_out"]) for name in DOMAINS}
        if given:
            tokenizer = AutoTokenizer.from_pretrained(given)
        else:
            repeated = [text for name, weight in recipe["weights"].items() for text in texts[name][0] * weight]
            tokenizer = train_tokenizer(repeated, recipe["vocabulary"])
        for name, (learnt, held_out) in texts.items():
            if name in recipe["weights"]:
                write_tokens(tokenizer, learnt, work / f"{name}-train.bin")
            write_tokens(tokenizer, held_out, work / f"{name}-held-out.bin")
            print(f"{name}: {len(learnt)} documents to learn from, {len(held_out)} held out", flush=True)
        tokenizer.save_pretrained(marker)
    return AutoTokenizer.from_pretrained(marker)


def trained(name: str, recipe: dict[str, Any], work: Path, vocabulary: int, lessons: dict[str, Any]) -> Path:
    """The folder of a model that took its lessons, (loss, batches) by name, one after the other."""
    folder = work / name
    if not folder.exists():
        model = llama(recipe["shape"], vocabulary)
        print(f"{name}: {model.num_parameters() / 1e6:.1f}M parameters on {DEVICE}", flush=True)
        for lesson, (loss, batches_of) in lessons.items():
            plan = recipe[lesson]
            batches = batches_of(batch=plan["batch"], length=plan["length"])
            fit(model, loss, batches, plan["steps"], plan["learning_rate"], work / f"{name}-{lesson}.pt")
        model.half().save_pretrained(folder)
    return folder


def main() -> None:
    """Make what is not there yet of a recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("work", type=Path)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--target", type=Path, help="folder of a trained target, in Hugging Face format")
    parser.add_argument("--only", nargs="+", help="names of the drafts to make; default: all of the recipe")
    parser.add_argument("--compare", type=Path, nargs="+", default=[], help="folders of other drafts for the report")
    arguments = parser.parse_args()
    recipe, work = RECIPES[arguments.recipe], arguments.work
    if "target" not in recipe and not arguments.target:
        parser.error(f"the recipe {arguments.recipe!r} is for a target that exists; give it with --target")
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = prepare(recipe, arguments.corpus, arguments.target, work)
    texts = {name: read_tokens(work / f"{name}-train.bin") for name in recipe["weights"]}
    corpus = partial(windows, texts, recipe["weights"])
    lessons = {"corpus": (from_text, corpus)}
    folder = arguments.target or trained("target", recipe["target"], work, len(tokenizer), lessons)
    teacher = load(folder, "bfloat16")
    domain = max(texts, key=lambda name: recipe["weights"][name])
    own = write_own_text(teacher, texts[domain], **recipe["own_text"], file=work / "own-text.bin")
    taught, rows = from_teacher(teacher), partial(windows, {"own": own.reshape(-1)}, {"own": 1}, stride=own.shape[1])
    lessons = {"corpus": (taught, corpus), "own_text": (taught, rows)}
    models = {"target": load(folder, "float32")}
    for name in arguments.only or recipe["drafts"]:
        models[name] = load(trained(name, recipe["drafts"][name], work, len(tokenizer), lessons), "float32")
        tokenizer.save_pretrained(work / name)
    for other in arguments.compare:
        models[str(other)] = load(other, "float32")
    held_out = {name: np.array(read_tokens(work / f"{name}-held-out.bin")) for name in DOMAINS}
    text = evaluate.report(models, tokenizer, held_out, list(recipe["weights"]))
    (work / "report.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
