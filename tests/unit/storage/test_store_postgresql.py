"""The store on a real PostgreSQL server: the contract, and the errors of database servers."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from storage import StorageError, database, open_store
from tests.contracts.store_contract import StoreContract
from tests.ports import free_port
from tests.postgres import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A new, empty database."""
    return postgres.new_database()


class TestPostgresqlStore(StoreContract):
    """The contract on PostgreSQL."""


@pytest.mark.parametrize("place", ["me:s3cr%40t@", "me@"])
def test_an_unreachable_server_gives_one_line_without_the_password(place: str) -> None:
    query = "" if ":" in place else "?password=s3cr%40t"
    with pytest.raises(StorageError) as raised:
        open_store(f"postgresql://{place}127.0.0.1:{free_port()}/db{query}")
    message = str(raised.value)
    assert message.startswith("cannot use the database postgresql+psycopg://me")
    assert "check host, port, user and password" in message
    assert "\n" not in message
    assert "s3cr" not in message


def test_the_error_for_an_invalid_url_hides_its_password() -> None:
    with pytest.raises(StorageError, match="not a database URL") as raised:
        open_store("postgresql://me@host:s3cret/db")
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_missing_database_is_reported(postgres: PostgresServer) -> None:
    with pytest.raises(StorageError, match='database "none" does not exist; check'):
        open_store(f"postgresql://tuner@/none?host={postgres.socket}")


def test_a_database_that_cannot_be_written_is_refused(postgres: PostgresServer, url: str) -> None:
    open_store(url).close()
    with pytest.raises(StorageError, match="in a read-only transaction; check"):
        open_store(f"{url}&options=-cdefault_transaction_read_only%3Don")


def test_the_store_reconnects_after_the_server_closed_its_connection(postgres: PostgresServer, url: str) -> None:
    store = open_store(url)
    assert store.studies() == []
    with psycopg.connect(host=str(postgres.socket), user="tuner", dbname="postgres", autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    assert store.studies() == []
    store.close()


def test_an_unknown_kind_of_database_lists_the_supported_ones() -> None:
    with pytest.raises(StorageError, match=r"oracel is not a supported database: use SQLite .* or PostgreSQL"):
        open_store("oracel://host/db")


def test_a_second_process_waits_for_a_running_migration(postgres: PostgresServer, url: str) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    name = url.split("/")[3].split("?")[0]
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(host=str(postgres.socket), user="tuner", dbname=name) as first,
    ):
        first.execute("SELECT pg_advisory_xact_lock(%s)", [database.MIGRATION_LOCK])
        second = pool.submit(open_store, url)
        while first.execute(waiting).fetchone() == (0,):
            assert not second.done()
        assert first.execute("SELECT to_regclass('tuner_studies')").fetchone() == (None,)
        first.rollback()
        store = second.result(timeout=60)
    assert store.studies() == []
    store.close()
