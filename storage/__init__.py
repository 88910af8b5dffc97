"""Studies and trials in a database, in tables beside Optuna's, and the records that describe them.

Importing `storage`, `records.trials` and `records.metrics` loads the standard library only. SQLAlchemy is loaded with
the first use of `open_store`, `Store` or `normalise_url`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from records.trials import FailedAttempt
from storage.errors import StorageError

if TYPE_CHECKING:
    from storage.database import normalise_url
    from storage.store import Store, open_store

__all__ = ["FailedAttempt", "StorageError", "Store", "normalise_url", "open_store"]

if not TYPE_CHECKING:
    _HOMES = {
        "Store": "storage.store",
        "normalise_url": "storage.database",
        "open_store": "storage.store",
    }

    def __getattr__(name: str) -> object:
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
