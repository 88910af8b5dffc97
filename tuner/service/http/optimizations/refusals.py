"""What the store refuses of optimizations, as answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from storage.errors import StorageError
from storage.service.optimizations.errors import (
    MissingMetric,
    NotOwner,
    NotYourTrial,
    OptimizationExists,
    StillActive,
    TooManyActive,
    TrialEnded,
    UnknownOptimization,
    UnknownTrial,
)
from tuner.service.http.problems import Problem
from tuner.service.optimizer.draws import NoConfiguration

_STATUSES: dict[type[StorageError], int] = {
    UnknownOptimization: 404,
    UnknownTrial: 404,
    NotOwner: 403,
    NotYourTrial: 409,
    OptimizationExists: 409,
    StillActive: 409,
    TrialEnded: 409,
}
_FIELDS: dict[type[StorageError], str] = {
    NotYourTrial: "client_id",
    OptimizationExists: "id",
    TooManyActive: "count",
    NoConfiguration: "space",
}


@contextmanager
def refusals() -> Iterator[None]:
    """Raise what the store refuses as problems."""
    try:
        yield
    except MissingMetric as error:
        rule = "every objective is needed"
        raise Problem(422, str(error), f"metrics.{error.metric}", None, rule) from None
    except StorageError as error:
        kind = type(error)
        if kind not in _STATUSES and kind not in _FIELDS:
            raise
        raise Problem(_STATUSES.get(kind, 422), str(error), _FIELDS.get(kind)) from None
