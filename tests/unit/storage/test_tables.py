"""The tables: columns, migrations, records, and capacities."""

import math
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, Table, inspect, make_url, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import OperationalError

import storage
from records.measured import capacity_of
from records.trials import Phase
from storage import StorageError, database, normalise_url, open_store
from storage.columns import columns, record_of, values_of
from storage.database import create_database_engine, mask_password, parse_storage_url
from storage.errors import database_reason
from storage.tables import METADATA
from tests import store_samples as samples


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("study.db", "sqlite:///study.db"),
        (" runs/study.db ", "sqlite:///runs/study.db"),
        ("/data/a b.db", "sqlite:////data/a b.db"),
        ("sqlite:///study.db", "sqlite:///study.db"),
        ("postgres://u:p@h:1/d", "postgresql+psycopg://u:p@h:1/d"),
        ("postgresql://h/d", "postgresql+psycopg://h/d"),
        ("postgresql+psycopg2://h/d", "postgresql+psycopg2://h/d"),
    ],
)
def test_a_path_or_a_url_is_normalised(text: str, url: str) -> None:
    assert normalise_url(text) == url


@pytest.mark.parametrize("name", ["a?b.db", "a#b.db", "100%.db", "%41.db"])
def test_special_characters_of_a_file_name_are_preserved(name: str) -> None:
    assert make_url(normalise_url(name)).database == name


def test_a_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert normalise_url("~/study.db") == "sqlite:////home/me/study.db"


def test_an_empty_storage_is_refused() -> None:
    with pytest.raises(StorageError, match="the storage is empty"):
        normalise_url("  ")


def test_every_password_in_a_url_is_masked() -> None:
    url = parse_storage_url("postgresql://me:s3cret@host/db?password=s3cret&connect_timeout=3")
    assert "s3cret" not in mask_password(url)
    assert mask_password(url).startswith("postgresql+psycopg://me:***@host/db?")
    assert "connect_timeout=3" in mask_password(url)


@pytest.mark.parametrize("url", ["mysql://me:s3cret@host/db", "mysql+nodriver://host/db", "oracel://host/db"])
def test_an_unsupported_database_lists_the_supported_ones(url: str) -> None:
    with pytest.raises(StorageError, match=r"is not a supported database: use SQLite .* or PostgreSQL") as raised:
        create_database_engine(parse_storage_url(url))
    assert "pip install" not in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_the_error_for_a_missing_driver_names_the_package() -> None:
    with pytest.raises(StorageError, match=r"the driver .* is not installed: `pip install 'psycopg\[binary\]'`"):
        create_database_engine(parse_storage_url("postgresql+asyncpg://host/db"))


def test_a_wrapped_database_error_has_its_reason() -> None:
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = OperationalError("SELECT 1", {}, sqlite3.OperationalError("database is locked.\nmore"))
    assert database_reason(wrapped) == "database is locked"
    assert database_reason(RuntimeError("other")) is None


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Made:
    """A record with a field of each kind; `inner` is no column."""

    phase: Phase
    last: Phase | None
    words: tuple[str, ...]
    facts: Mapping[str, Any] | None
    at: datetime
    seconds: float
    count: int
    big: int
    inner: object = None


TABLE = Table(
    "made", MetaData(), Column("id", Integer, primary_key=True), *columns(Made, without=("inner",), big=BigInteger())
)
MADE = Made(Phase.LAUNCH, None, ("a", "b"), {"x": (1, 2.5)}, NOON, 0.5, 3, 2**40)
ROW = {
    "phase": "launch",
    "last": None,
    "words": ["a", "b"],
    "facts": {"x": [1, 2.5]},
    "at": NOON,
    "seconds": 0.5,
    "count": 3,
    "big": 2**40,
}


def test_a_field_s_type_decides_the_column() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    types = {each.name: (each.type.compile(dialect), each.nullable) for each in TABLE.columns}
    assert types == {
        "id": ("INTEGER", False),
        "phase": ("VARCHAR(64)", False),
        "last": ("VARCHAR(64)", True),
        "words": ("JSON", False),
        "facts": ("JSON", True),
        "at": ("TIMESTAMP WITH TIME ZONE", False),
        "seconds": ("DOUBLE PRECISION", False),
        "count": ("INTEGER", False),
        "big": ("BIGINT", False),
    }


def test_a_row_has_plain_values_and_the_record_is_restored() -> None:
    assert values_of(TABLE, MADE) == ROW
    restored = record_of(Made, SimpleNamespace(**ROW), inner=1)
    assert (restored.phase, restored.last, restored.words, restored.inner) == (Phase.LAUNCH, None, ("a", "b"), 1)
    assert isinstance(restored.phase, Phase)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": math.inf}, "repeat 2: seconds is inf: only finite numbers"),
        ({"facts": {"a": [math.nan]}}, r"repeat 2: facts\.a\[0\] is nan"),
        ({"facts": {"when": NOON}}, r"repeat 2: facts\.when is a datetime, which JSON cannot hold"),
    ],
)
def test_a_value_that_cannot_be_stored_is_located(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StorageError, match=message):
        values_of(TABLE, Made(**{**vars(MADE), **change}), "repeat 2: ")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.program("postgresql"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/study.db"
    new: str = request.getfixturevalue("postgres").new_database()
    return new


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """A second engine on the same database, for inspection."""
    engine = database.create_database_engine(database.parse_storage_url(url))
    yield engine
    engine.dispose()


def differences(engine: Engine) -> list[object]:
    """Return the changes that would turn the tuner's tables into the models."""
    options = {
        "version_table": database.VERSION_TABLE,
        "compare_type": True,
        "include_name": lambda name, kind, _: kind != "table" or (name or "").startswith("tuner_"),
    }
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), METADATA))


def test_migrations_create_the_tables_of_the_models(url: str, engine: Engine) -> None:
    assert differences(engine) != []
    open_store(url).close()
    assert differences(engine) == []
    assert set(inspect(engine).get_table_names()) == {*METADATA.tables, "tuner_alembic_version"}


SECOND = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0005", "0004"
def upgrade():
    op.add_column("tuner_trials", sa.Column("cut", sa.JSON(none_as_null=True), nullable=True))
"""


def test_an_older_schema_is_migrated(url: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(url).close()
    with database.writing_engine(engine).begin() as connection:
        connection.execute(text("ALTER TABLE tuner_trials DROP COLUMN cut"))
    assert differences(engine) != []
    shutil.copytree(database._MIGRATIONS, tmp_path / "migrations")
    (tmp_path / "migrations" / "versions" / "0005_second.py").write_text(SECOND)
    monkeypatch.setattr(database, "_MIGRATIONS", tmp_path / "migrations")
    open_store(url).close()
    assert differences(engine) == []
    assert _rows(engine, "tuner_alembic_version") == [("0005",)]


def test_opening_again_keeps_the_studies(url: str) -> None:
    store = open_store(url)
    store.create_study(samples.study())
    store.close()
    store = open_store(url)
    assert store.studies() == [samples.study()]
    store.close()


def test_tables_and_version_of_optuna_are_unchanged(url: str, engine: Engine) -> None:
    optuna_url = database.normalise_url(url)
    study = optuna.create_study(storage=optuna_url, study_name="s")
    study.tell(study.ask(), 1.0)
    before = {name: _rows(engine, name) for name in inspect(engine).get_table_names()}
    assert "alembic_version" in before

    store = open_store(url)
    store.create_study(samples.study())
    store.close()

    assert {name: _rows(engine, name) for name in before} == before
    assert optuna.load_study(storage=optuna_url, study_name="s").best_value == 1.0


def test_optuna_can_create_its_tables_later(url: str, engine: Engine) -> None:
    open_store(url).close()
    optuna.create_study(storage=database.normalise_url(url), study_name="s")
    assert differences(engine) == []
    open_store(url).close()


def test_a_newer_schema_is_refused_and_unchanged(url: str, engine: Engine) -> None:
    open_store(url).close()
    with database.writing_engine(engine).begin() as connection:
        connection.execute(text("UPDATE tuner_alembic_version SET version_num = '9999'"))
    with pytest.raises(
        StorageError, match=r"a newer tuner wrote .* \(its schema is 9999, this version's is 0004\): upgrade"
    ):
        open_store(url)
    assert _rows(engine, "tuner_alembic_version") == [("9999",)]


def _rows(engine: Engine, table: str) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(f'SELECT * FROM "{table}"'))]


EFFECTS = [{"name": "max_num_seqs", "ratio": 1.2}]


@pytest.mark.parametrize(("round_", "name"), [(0, "#12"), (2, "#12 r2")])
def test_a_trial_has_a_short_name(round_: int, name: str) -> None:
    assert samples.pending(12, round_).name == name


@pytest.mark.parametrize(
    ("conclusion", "effects"),
    [
        ({"winner": 1, "flag_effects": EFFECTS}, EFFECTS),
        ({"winner": 1, "flag_effects": []}, []),
        ({"winner": 1}, ()),
        (None, ()),
    ],
)
def test_flag_effects_are_those_of_the_conclusion(conclusion: Mapping[str, Any] | None, effects: object) -> None:
    assert replace(samples.study(), conclusion=conclusion).flag_effects == effects


@pytest.mark.parametrize(
    ("rates", "capacity"),
    [
        ([], None),
        ([(4, True), (8, True)], 8),
        ([(4, True), (8, False), (6, True)], 6),
        ([(4, False), (2, False)], None),
        # a rate that held above one that missed does not count
        ([(4, True), (8, False), (16, True)], 4),
        ([(8, True), (4, False)], None),
    ],
)
def test_capacity(rates: list[tuple[float, bool]], capacity: float | None) -> None:
    assert capacity_of(rates) == capacity


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
