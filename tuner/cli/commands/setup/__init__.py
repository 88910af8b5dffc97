"""Commands that show what a study can use on this machine."""
