"""The store of optimizations on SQLite: the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.optimizations_contract import OptimizationContract, OptimizationRaceContract


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A file that does not exist yet."""
    return str(tmp_path / "tuner.db")


class TestSqliteOptimizations(OptimizationContract):
    """Optimizations on SQLite."""


class TestSqliteOptimizationRaces(OptimizationRaceContract):
    """Threads on SQLite."""
