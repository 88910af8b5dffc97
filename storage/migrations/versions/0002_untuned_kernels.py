"""Kernels of a server for which its engine has no tuned settings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column."""
    op.add_column("tuner_server_facts", sa.Column("untuned_kernels", sa.Text(), nullable=True))
