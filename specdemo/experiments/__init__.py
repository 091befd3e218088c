"""Experiments: prompts × settings × repeats → rows → one report with one conclusion."""
