"""The output of the commands on the terminal."""
