"""Start, record, find and end processes, with everything that they start."""
