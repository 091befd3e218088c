"""Draft training for a target that has none: text, labels, training, export, report; or a table of n-grams.

Importing this package does not need PyTorch; `specdemo.train.pipeline`, which trains, does.
"""

from specdemo.train.corpus import is_corpus, sources_in
from specdemo.train.prompts import Prompt, read_passages, read_prompts
from specdemo.train.request import CHAIN, FULL, KINDS, OBJECTIVES, VOCABULARY, Effort, Request
from specdemo.train.table import make_table
from specdemo.train.text import Sources

__all__ = [
    "CHAIN",
    "FULL",
    "KINDS",
    "OBJECTIVES",
    "VOCABULARY",
    "Effort",
    "Prompt",
    "Request",
    "Sources",
    "is_corpus",
    "make_table",
    "read_passages",
    "read_prompts",
    "sources_in",
]
