"""A new SQLite database with empty tables, the tuner's and Optuna's: to make them takes longer than many a test."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from storage import normalise_url, open_store
from tuner.study.optuna_storage import open_durable


@cache
def _tables() -> bytes:
    """Return the file, whose connections are closed, so that no log is beside it."""
    with TemporaryDirectory() as name:
        path = Path(name) / "t.db"
        open_store(str(path)).close()
        storage = open_durable(normalise_url(str(path)))
        storage.remove_session()
        storage.engine.dispose()
        return path.read_bytes()


def write_empty_database(path: Path) -> None:
    """Write the file, unless it exists."""
    if not path.exists():
        path.write_bytes(_tables())
