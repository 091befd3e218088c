"""Prompts × settings × repeats, as rows and one report. Page, terminal and Python interface import this."""
