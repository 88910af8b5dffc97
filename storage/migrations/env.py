"""Alembic's entry: runs on the connection it is given, sees only the tuner's tables, has a version table of its own."""

from __future__ import annotations

from alembic import context

from storage.database import VERSION_TABLE
from storage.models import TABLE_PREFIX, Base


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    """Leave Optuna's tables out of every comparison."""
    return kind != "table" or (name is not None and name.startswith(TABLE_PREFIX) and name != VERSION_TABLE)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    include_name=include_name,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
