"""The first schema. A new database gets today's tables at once (`storage.database`): none is migrated to this one."""

from __future__ import annotations

revision = "0001"
down_revision: str | None = None


def upgrade() -> None:
    """Do nothing."""
