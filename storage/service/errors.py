"""Errors of the service's store. Importing this module loads no SQLAlchemy."""

from __future__ import annotations

from storage.errors import StorageError
from storage.service.records import SubmissionState


class SubmissionExists(StorageError):
    """There is another submission of that id."""


class TooMany(StorageError):
    """An owner has as many as are allowed. `rule` is the limit."""

    def __init__(self, rule: str, remedy: str) -> None:
        super().__init__(f"{rule}; {remedy}")
        self.rule = rule


class UnknownSubmission(StorageError):
    """There is no submission of that id."""


class WrongState(StorageError):
    """The submission's state does not allow the change. `state` is that state."""

    def __init__(self, id: str, state: SubmissionState, rule: str) -> None:
        super().__init__(f"the study {id!r} is {state.value}: {rule}")
        self.state = state


class NotYours(StorageError):
    """The submission is no longer that of this driver, which has to end without writing to the study."""


class InvalidCursor(StorageError):
    """A cursor that no page has."""


class TokenExists(StorageError):
    """There is another token of that name or digest."""


class UnknownToken(StorageError):
    """There is no token of that name."""
