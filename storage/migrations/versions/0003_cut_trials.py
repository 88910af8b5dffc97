"""Trials that were cut short."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column."""
    op.add_column("tuner_trials", sa.Column("cut", sa.JSON(none_as_null=True), nullable=True))
