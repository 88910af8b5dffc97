"""One PostgreSQL server for all tests of the store."""

from collections.abc import Iterator

import pytest

from tests.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server, ended after the last test."""
    with postgres_server() as server:
        yield server
