"""Random faults at random instants of studies, and what must hold after each."""
