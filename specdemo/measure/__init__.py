"""Measurements on engines: races, step costs, trials, load, hardware."""
