"""The warm-up of a trial's server: its windows, whether they settled, and benchmarks that were measured again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision: str | None = "0005"

TABLE = "tuner_server_facts"


def upgrade() -> None:
    """Add the columns."""
    op.add_column(TABLE, sa.Column("warmup_windows", sa.Integer(), nullable=True))
    op.add_column(TABLE, sa.Column("warmup_settled", sa.Boolean(), nullable=True))
    op.add_column(TABLE, sa.Column("benchmarks_again", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    for name in ("warmup_windows", "warmup_settled", "benchmarks_again"):
        op.drop_column(TABLE, name)
