"""What a command does, without its command line: the CLI and the Python API call these."""
