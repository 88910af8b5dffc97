"""Pages: all that one command prints at its end."""
