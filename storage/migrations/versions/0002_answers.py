"""What servers answered in quality checks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "tuner_answers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("weights", sa.String(length=64), nullable=False),
        sa.Column("formats", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("asked", sa.String(length=64), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("answers", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_answers"),
        sa.UniqueConstraint("digest", name="uq_tuner_answers_digest"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("tuner_answers")
