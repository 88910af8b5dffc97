"""Importing records and metrics loads no heavy library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import storage

ROOT = Path(__file__).parents[3]
HEAVY = {"sqlalchemy", "alembic", "pandas", "numpy", "psycopg"}


def loaded_after(statement: str) -> set[str]:
    """Return which heavy libraries a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return HEAVY & set(done.stdout.split())


def test_records_metrics_and_the_error_load_no_library() -> None:
    assert loaded_after("import records.trials, records.metrics; from storage import StorageError") == set()


def test_the_store_loads_sqlalchemy_and_no_pandas() -> None:
    assert loaded_after("from storage import open_store") == {"sqlalchemy", "alembic"}


def test_every_public_name_can_be_imported() -> None:
    for name in storage.__all__:
        assert getattr(storage, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        storage.nothing  # type: ignore[attr-defined]  # noqa: B018
