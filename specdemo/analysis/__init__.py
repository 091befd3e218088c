"""What follows from records, in numbers and words. Pure functions of what was measured."""
