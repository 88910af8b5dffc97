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


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One process for the tests of a module whose requests are refused: each checks that nothing is stored."""
    with serving(tmp_path_factory.mktemp("refusing")) as api:
        yield api
