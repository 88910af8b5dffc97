"""The schema: migrations create the models' tables, ignore Optuna's, and a newer schema is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, inspect, text

from storage import StorageError, database, open_store
from storage.tables import METADATA
from tests import store_samples as samples


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


def test_an_older_schema_is_migrated(url: str, engine: Engine) -> None:
    open_store(url).close()
    with database.writing_engine(engine).begin() as connection:
        connection.execute(text("ALTER TABLE tuner_server_facts DROP COLUMN untuned_kernels"))
        connection.execute(text("UPDATE tuner_alembic_version SET version_num = '0001'"))
    assert differences(engine) != []
    open_store(url).close()
    assert differences(engine) == []


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
        StorageError, match=r"a newer tuner wrote .* \(its schema is 9999, this version's is 0002\): upgrade"
    ):
        open_store(url)
    assert _rows(engine, "tuner_alembic_version") == [("9999",)]


def _rows(engine: Engine, table: str) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(f'SELECT * FROM "{table}"'))]
