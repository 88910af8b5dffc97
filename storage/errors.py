"""The store's exception, and the database's own message in an exception. Importing this loads no SQLAlchemy."""

from __future__ import annotations


class StorageError(Exception):
    """The database cannot be used, or it refuses an operation. The message is one line: the reason, then what to do."""


class StorageUnavailable(StorageError):
    """The database, or a lock in it, was lost during a run: a failure of the infrastructure, not of the input."""


class WaitInterrupted(StorageUnavailable):
    """The user ended a wait for the database."""


class NotYetAvailable(StorageUnavailable):
    """The database refuses an operation that it will accept soon."""


def database_reason(error: BaseException) -> str | None:
    """Return the first line of the database's message if a database error caused `error`; else None.

    Optuna wraps such errors in one of its own, whose text names no cause. Chained causes are searched.
    """
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__module__.startswith("sqlalchemy."):
            return first_line(getattr(cause, "orig", None) or cause)
        cause = cause.__cause__
    return None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, at most 200 characters and without its final punctuation.

    An error without text gives the name of its class.
    """
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(".:; ") if lines else type(error).__name__
