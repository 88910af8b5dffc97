"""Commands that read the studies of a database."""
