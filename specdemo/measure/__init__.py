"""What runs engines against a clock: the race, step costs, trials and sweeps, the machine itself."""
