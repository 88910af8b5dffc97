"""Webhooks: which one a submission names, and the messages that are still to be sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add the column and create the table."""
    op.add_column("tuner_submissions", sa.Column("webhook", sa.String(length=64), nullable=True))
    op.create_table(
        "tuner_messages",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("webhook", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("next_at", TIME, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_messages"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_tuner_messages_next_at", "tuner_messages", ["next_at", "id"])


def downgrade() -> None:
    """Drop both."""
    op.drop_table("tuner_messages")
    op.drop_column("tuner_submissions", "webhook")
