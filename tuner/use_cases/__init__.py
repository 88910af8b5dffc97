"""The use cases: what each command does, without its command line. The CLI and the Python API call them."""
