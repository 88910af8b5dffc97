"""New databases of MLflow, copied from a kept empty one. MLflow's migrations are a table and a row here."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import mlflow
import pytest

from dashboards.mlflow.empty_database import create_database
from dashboards.mlflow.log import new_database
from dashboards.mlflow.ui import embedded_uri

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")

TABLES = """
CREATE TABLE alembic_version (version_num TEXT);
INSERT INTO alembic_version VALUES ('a1');
CREATE TABLE experiments (name TEXT);
INSERT INTO experiments VALUES ('Default');
CREATE TABLE runs (name TEXT);
"""


class Migrations:
    """Makes the tables, and counts how often."""

    def __init__(self) -> None:
        self.databases: list[str] = []

    def __call__(self, database: Path) -> None:
        self.databases.append(database.name)
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript(TABLES)


@pytest.fixture
def migrate() -> Migrations:
    return Migrations()


def rows(database: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [name for (name,) in connection.execute(f"SELECT * FROM {table}")]


def test_the_second_database_is_a_copy_without_the_folder_of_the_first(tmp_path: Path, migrate: Migrations) -> None:
    kept = tmp_path / "home" / "mlflow" / "empty-3.db"
    create_database(tmp_path / "a.db", kept, migrate)
    create_database(tmp_path / "b.db", kept, migrate)
    assert migrate.databases == ["a.db.part"]
    assert [rows(tmp_path / name, "alembic_version") for name in ("a.db", "b.db")] == [["a1"], ["a1"]]
    assert rows(tmp_path / "a.db", "experiments") == ["Default"]
    assert rows(tmp_path / "b.db", "experiments") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "b.db", "home"]
    assert [path.name for path in kept.parent.iterdir()] == ["empty-3.db"]


def test_a_database_that_exists_stays(tmp_path: Path, migrate: Migrations) -> None:
    create_database(tmp_path / "a.db", tmp_path / "kept.db", migrate)
    (tmp_path / "b.db").write_text("somebody's")
    create_database(tmp_path / "b.db", tmp_path / "kept.db", migrate)
    assert (tmp_path / "b.db").read_text() == "somebody's"


def cut_off(kept: Path) -> None:
    kept.write_bytes(kept.read_bytes()[:8192])


def without_tables(kept: Path) -> None:
    kept.write_bytes(b"")


def no_database(kept: Path) -> None:
    kept.write_bytes(b"\0" * 16384)


def without_a_version(kept: Path) -> None:
    with closing(sqlite3.connect(kept)) as connection, connection:
        connection.execute("DELETE FROM alembic_version")


@pytest.mark.parametrize("damage", [cut_off, without_tables, no_database, without_a_version])
def test_a_damaged_copy_is_made_again(damage: Callable[[Path], None], tmp_path: Path, migrate: Migrations) -> None:
    kept = tmp_path / "kept.db"
    create_database(tmp_path / "a.db", kept, migrate)
    damage(kept)
    for name in ("b.db", "c.db"):
        create_database(tmp_path / name, kept, migrate)
        assert rows(tmp_path / name, "alembic_version") == ["a1"]
    assert migrate.databases == ["a.db.part", "b.db.part"]


def test_a_home_that_cannot_be_written_costs_the_migrations_only(tmp_path: Path, migrate: Migrations) -> None:
    (tmp_path / "home").write_text("a file")
    create_database(tmp_path / "a.db", tmp_path / "home" / "kept.db", migrate)
    create_database(tmp_path / "b.db", None, migrate)
    assert [rows(tmp_path / name, "alembic_version") for name in ("a.db", "b.db")] == [["a1"], ["a1"]]


def test_the_journal_of_a_killed_maker_does_not_spoil_the_next_database(tmp_path: Path, migrate: Migrations) -> None:
    kept, killed = tmp_path / "kept.db", tmp_path / "killed.db"
    create_database(tmp_path / "a.db", kept, migrate)
    migrate(killed)
    with closing(sqlite3.connect(killed)) as connection:
        connection.execute("PRAGMA cache_size = 1")  # SQLite writes to the file before the end of the transaction
        connection.executemany("INSERT INTO runs VALUES (?)", [("x" * 1000,)] * 100)
        for suffix in ("", "-journal"):
            (tmp_path / f"b.db.part{suffix}").write_bytes((tmp_path / f"killed.db{suffix}").read_bytes())
        connection.rollback()
    (tmp_path / "b.db.part-journal").stat()
    create_database(tmp_path / "b.db", kept, migrate)
    assert rows(tmp_path / "b.db", "experiments") == []
    assert not (tmp_path / "b.db.part-journal").exists()


def test_of_two_makers_of_one_database_the_second_waits(tmp_path: Path, migrate: Migrations) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(database: Path) -> None:
        began.set()
        assert may_end.wait(60)
        migrate(database)

    def never(database: Path) -> None:
        raise AssertionError(f"{database} is made twice")

    first = threading.Thread(target=create_database, args=(tmp_path / "a.db", None, slow))
    first.start()
    assert began.wait(60)
    threading.Timer(0.05, may_end.set).start()
    create_database(tmp_path / "a.db", None, never)
    first.join()
    assert rows(tmp_path / "a.db", "experiments") == ["Default"]


def test_mlflow_opens_a_copy_and_each_version_has_its_own(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        new_database(tmp_path / name / "mlflow.db", cache)
    assert (cache / f"empty-{mlflow.__version__}.db").exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    client = mlflow.MlflowClient(tracking_uri=embedded_uri(tmp_path / "second"))
    [default] = client.search_experiments()
    assert (default.name, default.artifact_location) == ("Default", str(tmp_path / "here" / "mlruns" / "0"))

    made: list[Path] = []
    monkeypatch.setattr("dashboards.mlflow.log._migrate", made.append)
    monkeypatch.setattr("dashboards.mlflow.log.mlflow.__version__", "3.18.0")
    with pytest.raises(FileNotFoundError):  # the stand-in makes no file
        new_database(tmp_path / "third.db", cache)
    assert made == [tmp_path / "third.db.part"]
