"""An API process for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer, postgres_server
from tests.unit.service.http.optimizations.api import Api, serving


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the tests of this folder."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A client of an API process with an empty database."""
    with serving(tmp_path) as api:
        yield api
