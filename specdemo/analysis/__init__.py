"""Figures and words derived from records by pure functions."""
