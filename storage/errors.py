"""What the store raises; free of SQLAlchemy so that a command can catch it without loading the database's library."""

from __future__ import annotations


class StorageError(Exception):
    """The database cannot be used, or refuses what it was asked; one line with the reason and the next step."""
