"""What runs engines against a clock: the race, step costs, trials, load, the hardware."""
