"""The tuner's own tables beside Optuna's, and the records that the whole project speaks in.

`storage.records` and `storage.metrics` need nothing but the standard library; SQLAlchemy is loaded when the store is
first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.errors import StorageError

if TYPE_CHECKING:
    from storage.database import normalise_url
    from storage.mapping import FailedAttempt
    from storage.store import Store, open_store

__all__ = ["FailedAttempt", "StorageError", "Store", "normalise_url", "open_store"]

if not TYPE_CHECKING:
    _HOMES = {
        "FailedAttempt": "storage.mapping",
        "Store": "storage.store",
        "normalise_url": "storage.database",
        "open_store": "storage.store",
    }

    def __getattr__(name: str) -> object:
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
