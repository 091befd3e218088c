"""Timing an engine: races, their warm-up, step costs and repeats, and the process that runs them. Experiments, page,
terminal and Python interface import this.
"""
