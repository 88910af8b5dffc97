"""One module per command of the `tuner` command line."""
