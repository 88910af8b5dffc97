"""What servers answered to the questions of a quality check."""
