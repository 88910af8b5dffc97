"""The first schema. A new database gets today's tables at once (`storage.database`): none is migrated to this one.

Its number is that of the last development version, whose databases have this schema.
"""

from __future__ import annotations

revision = "0004"
down_revision: str | None = None


def upgrade() -> None:
    """Do nothing."""
