"""Comparisons as files, and settings as code for other software."""
