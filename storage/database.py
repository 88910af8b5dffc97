"""Open a database: its URL, its SQLAlchemy engine, its schema, and its errors as one line without the password."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
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

from storage.errors import StorageError, database_reason, first_line
from storage.tables import METADATA

VERSION_TABLE = "tuner_alembic_version"
BUSY_TIMEOUT_S = 30
_CONNECT_TIMEOUT_S = 10
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
"""Settings of libpq; the last one is in milliseconds, the others in seconds."""
_MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0x74756E6572  # "tuner" in ASCII; PostgreSQL's advisory lock that serialises migrations
_UPGRADE_LOCK = threading.Lock()  # alembic.context is a global of the process
_WRITE_OPTION = "tuner_write"
_POSTGRESQL_SCHEMES = ("postgres://", "postgresql://")
_SUPPORTED = "use SQLite (a file such as study.db) or PostgreSQL (postgresql://user:password@host:port/database)"


def normalise_url(text: str) -> str:
    """Return the SQLAlchemy URL of a path or a URL: a path becomes SQLite, PostgreSQL gets the driver psycopg.

    Args:
        text: a path such as `study.db`, or a URL such as `postgresql://user:password@host:port/database`.

    Raises:
        StorageError: if the text is empty.
    """
    text = text.strip()
    if not text:
        raise StorageError("the storage is empty: give a file such as study.db, or a URL such as postgresql://host/db")
    for scheme in _POSTGRESQL_SCHEMES:
        if text.startswith(scheme):
            return "postgresql+psycopg://" + text.removeprefix(scheme)
    if "://" in text:
        return text
    path = Path(os.path.expanduser(text))
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def mask_password(url: URL) -> str:
    """Return the URL as text, with every password in it replaced by `***`."""
    secret = [key for key in url.query if "pass" in key.lower()]
    return url.update_query_dict(dict.fromkeys(secret, "***")).render_as_string(hide_password=True)


@contextmanager
def storage_errors(url: URL) -> Iterator[None]:
    """Raise errors of SQLAlchemy and Alembic as `StorageError`: one line with the URL, the reason and what to do.

    Raises:
        StorageError: for each of their errors.
    """
    try:
        yield
    except (SQLAlchemyError, CommandError) as error:
        reason = database_reason(error) or first_line(error)
        raise StorageError(f"cannot use the database {mask_password(url)}: {reason}; {_remedy(url)}") from error


def _remedy(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return (
            "check that the file is a database of the tuner, that it and its folder are writable, and the disk's space"
        )
    return "check host, port, user and password, that the database exists, and that the user may create tables in it"


def parse_url(text: str) -> URL:
    """Return the URL of a path or a URL, see `normalise_url`.

    Raises:
        StorageError: if the text is not a URL.
    """
    try:
        return make_url(normalise_url(text))
    except (ArgumentError, ValueError):
        message = "the storage is not a database URL; write postgresql://user:password@host:port/database"
        raise StorageError(f"{message} (in a password, write @ / : as %40 %2F %3A)") from None


def parse_storage_url(text: str) -> URL:
    """Return the URL of a path or a URL, see `normalise_url`.

    Raises:
        StorageError: if the text is not a URL, or names a database in memory or a file in a folder that does not exist.
    """
    url = parse_url(text)
    if url.get_backend_name() == "sqlite":
        _check_sqlite_file(url)
    return url


def sqlite_path(url: URL) -> Path:
    """Return the path of an SQLite database.

    Raises:
        StorageError: if it is in memory.
    """
    name = url.database
    if not name or name == ":memory:" or "mode=memory" in name or url.query.get("mode") == "memory":
        raise StorageError("a database in memory is lost when the command ends: give a file such as study.db")
    return Path(name.removeprefix("file:").partition("?")[0] if name.startswith("file:") else name)


def _check_sqlite_file(url: URL) -> None:
    path = sqlite_path(url)
    if (url.database or "").startswith("file:"):
        return
    if not path.parent.is_dir():
        raise StorageError(f"cannot use the database {path}: its folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise StorageError(f"cannot use the database {path}: that is a folder; give a file in it, such as study.db")


def create_database_engine(url: URL, busy_s: float = BUSY_TIMEOUT_S) -> Engine:
    """Return an engine for the URL, with the timeouts and SQLite settings that the store needs; nothing connects yet.

    Args:
        url: of the database.
        busy_s: how long SQLite waits for a locked file, in seconds.

    Raises:
        StorageError: if the kind of database is not supported, or its driver is not installed.
    """
    backend = url.get_backend_name()
    connect_args = {"timeout": busy_s} if backend == "sqlite" else dict(connect_arguments(url))
    try:
        engine = create_engine(url, connect_args=connect_args, pool_pre_ping=backend != "sqlite")
    except NoSuchModuleError:
        raise StorageError(f"{url.drivername} is not a supported database: {_SUPPORTED}") from None
    except ModuleNotFoundError as error:
        raise StorageError(_missing_driver(url, error.name)) from None
    if backend == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def open_engine(url: str, busy_s: float = BUSY_TIMEOUT_S) -> Engine:
    """Open a database, create the tuner's tables or migrate them, and return an engine for it.

    Args:
        url: as for `storage.open_store`, whose errors it raises.
        busy_s: how long the engine waits for a locked SQLite file, in seconds; the migration waits longer.
    """
    parsed = parse_storage_url(url)
    engine = create_database_engine(parsed)
    try:
        upgrade_schema(engine)
    except BaseException:
        engine.dispose()
        raise
    if busy_s == BUSY_TIMEOUT_S:
        return engine
    engine.dispose()
    return create_database_engine(parsed, busy_s)


def connect_arguments(url: URL) -> Mapping[str, float]:
    """Return the timeouts of PostgreSQL's connections: a server whose host is gone is noticed within about a minute."""
    if url.get_backend_name() != "postgresql":
        return {}
    libpq = url.get_driver_name() in ("psycopg", "psycopg2")
    arguments = {"connect_timeout": _CONNECT_TIMEOUT_S, **(_KEEPALIVE if libpq else {})}
    return {name: value for name, value in arguments.items() if name not in url.query}


def _missing_driver(url: URL, module: str | None) -> str:
    backend = url.get_backend_name()
    if backend == "postgresql":
        return f"the driver {module} of {url.drivername} is not installed: `pip install 'psycopg[binary]'`"
    if backend == "sqlite":
        return f"the driver {module} of {url.drivername} is not installed: pip install {module}, or give a file"
    return f"{url.drivername} is not a supported database: {_SUPPORTED}"


def writing_engine(engine: Engine) -> Engine:
    """Return the engine for transactions that write; on SQLite they take the write lock before they read."""
    return engine.execution_options(**{_WRITE_OPTION: True})


def _prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    # The driver opens a transaction at the first write, after earlier reads; `_begin_sqlite` opens it before them.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITE_OPTION) else "BEGIN")


def upgrade_schema(engine: Engine) -> None:
    """Create the tables or migrate them to the newest version, and check that the database is writable.

    One transaction does it. Concurrent processes wait for each other.

    Raises:
        StorageError: if the schema is newer than this program, or the database cannot be written.
    """
    with storage_errors(engine.url):
        if engine.dialect.name == "sqlite":
            _switch_to_wal(engine)
        with writing_engine(engine).begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            _migrate(connection)
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = version_num"))


def _switch_to_wal(engine: Engine) -> None:
    """Switch the file to WAL for good, and retry while another program holds it.

    SQLite's own busy timeout does not cover this switch.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        mode = _try_wal(engine)
        if mode == "wal":
            return
        if time.monotonic() > deadline:
            raise StorageError(
                f"cannot use the database {engine.url.database}: SQLite cannot switch to its WAL journal ({mode}); end "
                "the program that holds the file open, move the file to a local disk, or use PostgreSQL"
            )
        time.sleep(0.05)


def _try_wal(engine: Engine) -> str:
    """Try to set WAL; return the journal mode that the file has now, or SQLite's message if the file is locked."""
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


def _migrate(connection: Connection) -> None:
    """Create today's tables in a database that has none, or migrate those of an older version."""
    config = Config()  # replaces the file alembic.ini
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    head = scripts.get_current_head()
    if current == head:
        return
    if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
        raise StorageError(
            f"a newer tuner wrote the database {mask_password(connection.engine.url)} (its schema is {current}, this "
            f"version's is {head}): upgrade the tuner, or use another database"
        )
    with _UPGRADE_LOCK:
        if current is None:
            METADATA.create_all(connection, checkfirst=False)
            command.stamp(config, "head")
        else:
            command.upgrade(config, "head")
