"""The type of a failure, read from the server's log."""
