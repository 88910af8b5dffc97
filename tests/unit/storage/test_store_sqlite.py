"""The store on SQLite: the contract, and the errors of database files."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from storage import StorageError, database, open_store
from tests import store_samples as samples
from tests.contracts.store_contract import StoreContract


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A file that does not exist yet, with characters that have a meaning in URLs."""
    return str(tmp_path / "a study?100%#.db")


class TestSqliteStore(StoreContract):
    """The contract on SQLite."""


def test_the_file_has_the_given_name_and_a_wal_journal(url: str) -> None:
    open_store(url).close()
    with sqlite3.connect(url) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_missing_folder_is_reported_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"its folder {tmp_path / 'none'} does not exist"):
        open_store(str(tmp_path / "none" / "study.db"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="that is a folder"):
        open_store(str(tmp_path))


def test_a_file_of_another_kind_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at\n" * 50)
    with pytest.raises(StorageError, match=r"cannot use the database .*file is not a database; check") as raised:
        open_store(str(path))
    assert "\n" not in str(raised.value)
    assert path.read_text().startswith("not a database")


def test_a_database_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    open_store(str(path)).close()
    with pytest.raises(StorageError, match=r"attempt to write a readonly database; check"):
        open_store(f"sqlite:///file:{path}?mode=ro&uri=true")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", ":memory:"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(StorageError, match="is lost when the command ends"):
        open_store(url)


def test_foreign_keys_are_enforced(url: str) -> None:

    store = open_store(url)
    store.create_study(samples.study())
    store.close()
    engine = database.writing_engine(database.create_database_engine(database.parse_storage_url(url)))
    insert = text("INSERT INTO tuner_syncs (trial_id, run_id, synced_at) VALUES (7, 'r', '2026-01-01')")
    with pytest.raises(IntegrityError, match="FOREIGN KEY"), engine.begin() as connection:
        connection.execute(insert)
    engine.dispose()


def test_an_unopenable_file_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="unable to open database file; check") as raised:
        open_store(f"sqlite:///file:{tmp_path}/none/study.db?uri=true")
    assert "\n" not in str(raised.value)


def test_threads_open_different_files_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for store in pool.map(open_store, [str(tmp_path / f"{number}.db") for number in range(8)]):
            assert store.studies() == []
            store.close()


def test_opening_waits_for_a_writer_that_is_not_in_wal_mode(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []
    tried = threading.Event()
    original = database._try_wal

    def recorded(engine: Engine) -> str:
        tries.append(original(engine))
        tried.set()
        return tries[-1]

    monkeypatch.setattr(database, "_try_wal", recorded)
    other = sqlite3.connect(url, isolation_level=None)
    other.execute("CREATE TABLE theirs (x)")
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_store, url)
        assert tried.wait(60)
        other.execute("COMMIT")
        opening.result(60).close()
    other.close()
    assert (tries[0], tries[-1]) == ("database is locked", "wal")
