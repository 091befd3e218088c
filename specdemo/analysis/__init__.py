"""What follows from records, in numbers and in words. Pure functions of what was measured."""
