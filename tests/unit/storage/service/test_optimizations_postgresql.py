"""The store of optimizations on PostgreSQL: the contract."""

from __future__ import annotations

import pytest

from tests.contracts.optimizations_contract import OptimizationContract, OptimizationRaceContract


@pytest.fixture
def url(empty_database: str) -> str:
    """An empty database."""
    return empty_database


class TestPostgresqlOptimizations(OptimizationContract):
    """Optimizations on PostgreSQL."""


class TestPostgresqlOptimizationRaces(OptimizationRaceContract):
    """Threads on PostgreSQL."""
