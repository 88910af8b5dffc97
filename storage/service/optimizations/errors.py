"""What the store refuses of optimizations. Importing this loads no SQLAlchemy."""

from __future__ import annotations

from storage.errors import StorageError


class UnknownOptimization(StorageError):
    """There is no optimization of that id, or none that its caller may read."""

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no optimization {id!r}")


class OptimizationExists(StorageError):
    """There is another optimization of that id."""


class NotOwner(StorageError):
    """Only the owner and admins change an optimization."""

    def __init__(self, id: str, owner: str) -> None:
        super().__init__(f"the optimization {id!r} is {owner}'s; only its owner and admins change it")


class UnknownTrial(StorageError):
    """The optimization has no trial of that number."""

    def __init__(self, id: str, number: int) -> None:
        super().__init__(f"the optimization {id!r} has no trial {number}")


class NotYourTrial(StorageError):
    """Another client has the trial: its own one gave no sign for too long."""


class TrialEnded(StorageError):
    """The trial has ended with another result."""


class MissingMetric(StorageError):
    """A trial lacks a metric that is an objective, `metric`."""

    def __init__(self, metric: str) -> None:
        super().__init__(f"the objective {metric!r} is missing; give every objective, or call the trial infeasible")
        self.metric = metric


class TooManyActive(StorageError):
    """The optimization has too many active trials."""


class StillActive(StorageError):
    """The optimization is active, and only others can be deleted."""
