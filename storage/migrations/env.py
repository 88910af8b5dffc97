"""Alembic's entry point: migrate the tuner's tables on the given connection, with a version table of their own."""

from __future__ import annotations

from alembic import context

from storage.database import VERSION_TABLE
from storage.tables import METADATA, TABLE_PREFIX


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    """Return True for the tuner's own tables, so that comparisons ignore Optuna's."""
    return kind != "table" or (name is not None and name.startswith(TABLE_PREFIX) and name != VERSION_TABLE)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    include_name=include_name,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
