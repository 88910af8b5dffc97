"""The tuner's own cost: seconds and memory besides the measurements."""
