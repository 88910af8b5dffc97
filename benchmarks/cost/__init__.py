"""The tuner's own cost: seconds and memory besides the measurements, and the wall-clock of a whole command."""
