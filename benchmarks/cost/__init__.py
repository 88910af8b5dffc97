"""What a study costs besides its measurements."""
