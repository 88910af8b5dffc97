"""pandas frames computed from the trials of a study and from their files."""
