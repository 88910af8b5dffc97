"""Answers of studies without trials, and deployed servers that are watched for a study."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns."""
    for name in ("answer", "watch"):
        op.add_column("tuner_submissions", sa.Column(name, sa.JSON(none_as_null=True), nullable=True))
