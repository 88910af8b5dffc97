"""Opening a database: its URL, its engine, its schema, and errors in one line without the password."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from storage.errors import StorageError

VERSION_TABLE = "tuner_alembic_version"
BUSY_TIMEOUT_S = 30
_CONNECT_TIMEOUT_S = 10
_MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0x74756E6572  # "tuner": one migration at a time in a PostgreSQL database
_ONE_UPGRADE = threading.Lock()  # alembic.context is one global of the process
_WRITE = "tuner_write"
_POSTGRESQL = ("postgres://", "postgresql://")


def normalise_url(text: str) -> str:
    """Return an SQLAlchemy URL for what a user wrote: a path becomes SQLite, PostgreSQL gets the driver psycopg.

    Raises:
        StorageError: if it is empty.
    """
    text = text.strip()
    if not text:
        raise StorageError("the storage is empty: give a file such as study.db, or a URL such as postgresql://host/db")
    for scheme in _POSTGRESQL:
        if text.startswith(scheme):
            return "postgresql+psycopg://" + text.removeprefix(scheme)
    if "://" in text:
        return text
    path = Path(text).expanduser()
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def masked(url: URL) -> str:
    """Return the URL without its password, wherever it stands."""
    secret = [key for key in url.query if "pass" in key.lower()]
    return url.update_query_dict(dict.fromkeys(secret, "***")).render_as_string(hide_password=True)


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn a database's errors into one line with the masked URL and the next step.

    Raises:
        StorageError: instead of SQLAlchemy's and Alembic's own.
    """
    try:
        yield
    except (SQLAlchemyError, CommandError) as error:
        raise StorageError(f"cannot use the database {masked(url)}: {_reason(error)}; {_remedy(url)}") from error


def _reason(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(cause).strip().splitlines()
    return lines[0].rstrip(".:; ") if lines else type(cause).__name__


def _remedy(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return "check that the file is a database of the tuner, that it and its folder are writable, and disk space"
    return "check host, port, user and password, that the database exists, and the right to create tables in it"


def parse(text: str) -> URL:
    """Parse and check a storage URL.

    Raises:
        StorageError: if it is no URL, a database in memory, or a file in a folder that does not exist.
    """
    try:
        url = make_url(normalise_url(text))
    except (ArgumentError, ValueError):
        message = "the storage is not a database URL; write dialect://user:password@host:port/database"
        raise StorageError(f"{message} (a password's @ / : as %40 %2F %3A)") from None
    if url.get_backend_name() == "sqlite":
        _check_sqlite_file(url)
    return url


def _check_sqlite_file(url: URL) -> None:
    name = url.database
    if not name or name == ":memory:" or "mode=memory" in name or url.query.get("mode") == "memory":
        raise StorageError("a database in memory would be lost with the command: give a file such as study.db")
    if name.startswith("file:"):
        return
    path = Path(name)
    if not path.parent.is_dir():
        raise StorageError(f"cannot use the database {path}: its folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise StorageError(f"cannot use the database {path}: that is a folder; give a file in it, such as study.db")


def connect(url: URL) -> Engine:
    """Return an engine for the URL; nothing is opened yet.

    Raises:
        StorageError: if the database's driver is missing or unknown.
    """
    backend = url.get_backend_name()
    connect_args: dict[str, int] = {}
    if backend == "sqlite":
        connect_args = {"timeout": BUSY_TIMEOUT_S}
    elif backend == "postgresql" and "connect_timeout" not in url.query:
        connect_args = {"connect_timeout": _CONNECT_TIMEOUT_S}
    try:
        engine = create_engine(url, connect_args=connect_args, pool_pre_ping=backend != "sqlite")
    except NoSuchModuleError:
        raise StorageError(f"no database is called {url.drivername!r}; use sqlite or postgresql") from None
    except ModuleNotFoundError as error:
        step = "pip install 'tuner[postgresql]'" if backend == "postgresql" else f"pip install {error.name}"
        raise StorageError(f"the driver {error.name} of {url.drivername} is not installed: {step}") from None
    if backend == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def writing(engine: Engine) -> Engine:
    """Return the same engine for transactions that write: on SQLite they take the lock first, then read."""
    return engine.execution_options(**{_WRITE: True})


def _prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    # The driver would open transactions late, after the first reads; `_begin_sqlite` opens them instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITE) else "BEGIN")


def prepare(engine: Engine) -> None:
    """Bring the schema to the newest version, in one transaction, one process at a time; prove that it is writable.

    Raises:
        StorageError: if the schema is newer than this program, or the database cannot be written.
    """
    with translated(engine.url):
        if engine.dialect.name == "sqlite":
            _switch_to_wal(engine)
        with writing(engine).begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            _migrate(connection)
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = version_num"))


def _switch_to_wal(engine: Engine) -> None:
    """Set WAL, which the file remembers. SQLite's own busy timeout does not cover this switch."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        mode = _try_wal(engine)
        if mode == "wal":
            return
        if time.monotonic() > deadline:
            raise StorageError(
                f"cannot use the database {engine.url.database}: no WAL journal ({mode}); end the program that holds "
                "it open, or use a local disk or PostgreSQL"
            )
        time.sleep(0.05)


def _try_wal(engine: Engine) -> str:
    """Return the journal's mode after trying to set it, or why that was not possible for now."""
    dbapi = engine.dialect.loaded_dbapi
    try:
        with closing(engine.raw_connection()) as connection:
            cursor = connection.cursor()
            cursor.execute("PRAGMA journal_mode = WAL")
            return str(cursor.fetchall()[0][0])
    except dbapi.Error as error:
        if "locked" in str(error):
            return str(error)
        raise DBAPIError.instance(None, None, error, dbapi.Error, dialect=engine.dialect) from error


def migration_config(connection: Connection) -> Config:
    """Return Alembic's configuration for a connection; there is no alembic.ini."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _migrate(connection: Connection) -> None:
    config = migration_config(connection)
    scripts = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    head = scripts.get_current_head()
    if current == head:
        return
    if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
        raise StorageError(
            f"the database {masked(connection.engine.url)} was written by a newer tuner (schema {current}; this one "
            f"knows {head}): upgrade the tuner, or give another --storage"
        )
    with _ONE_UPGRADE:
        command.upgrade(config, "head")
