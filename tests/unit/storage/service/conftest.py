"""One PostgreSQL database for all tests of a module, emptied before each: creating one takes a second."""

import psycopg
import pytest

from storage.service.store import open_service_store
from storage.tables import METADATA
from tests.postgres import PostgresServer


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """A database with the tuner's tables."""
    url = postgres.new_database()
    open_service_store(url).close()
    return url


@pytest.fixture
def empty_database(database: str) -> str:
    """The same database with empty tables, whose rows are numbered from 1."""
    with psycopg.connect(database) as connection:
        connection.execute(f"TRUNCATE {', '.join(METADATA.tables)} RESTART IDENTITY CASCADE")
    return database
