"""The service: submissions with their events and uses, owners, tokens, leases and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"

TIME = sa.DateTime(timezone=True)
JSON = sa.JSON(none_as_null=True)
ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables."""
    _submissions()
    _events()
    _uses()
    _owners()
    _tokens()
    _leases()
    _audit()


def downgrade() -> None:
    """Drop the tables."""
    for table in ("audit", "leases", "tokens", "owners", "uses", "events", "submissions"):
        op.drop_table(f"tuner_{table}")


def _submissions() -> None:
    op.create_table(
        "tuner_submissions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("owner", sa.String(length=512), nullable=False),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("culprit", sa.String(length=64), nullable=True),
        sa.Column("settings", JSON, nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("request", sa.String(length=64), nullable=True),
        sa.Column("granted", JSON, nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("driver_host", sa.Text(), nullable=True),
        sa.Column("driver_pid", sa.Integer(), nullable=True),
        sa.Column("driver_started", sa.BigInteger(), nullable=True),
        sa.Column("driver_boot", sa.Text(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("queued_at", TIME, nullable=False),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("run_began_at", TIME, nullable=True),
        sa.Column("counted_at", TIME, nullable=True),
        sa.Column("heartbeat_at", TIME, nullable=True),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_submissions"),
        sa.UniqueConstraint("name", name="uq_tuner_submissions_name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_tuner_submissions_created_at", "tuner_submissions", ["created_at", "id"])
    op.create_index("ix_tuner_submissions_owner", "tuner_submissions", ["owner", "created_at", "id"])
    op.create_index("ix_tuner_submissions_state", "tuner_submissions", ["state", "created_at", "id"])


def _events() -> None:
    op.create_table(
        "tuner_events",
        sa.Column("id", ROW_NUMBER, nullable=False),
        sa.Column("submission_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("data", JSON, nullable=False),
        sa.ForeignKeyConstraint(["submission_id"], ["tuner_submissions.id"], name="fk_tuner_events_submission_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_events"),
        sa.UniqueConstraint("submission_id", "number", name="uq_tuner_events_number"),
        sqlite_autoincrement=True,
    )


def _uses() -> None:
    op.create_table(
        "tuner_uses",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=512), nullable=False),
        sa.Column("submission", sa.String(length=512), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("began_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_uses"),
    )
    op.create_index("ix_tuner_uses_ended_at", "tuner_uses", ["ended_at"])


def _owners() -> None:
    op.create_table(
        "tuner_owners",
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("most_gpus", sa.Integer(), nullable=True),
        sa.Column("gpu_hours_a_week", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_tuner_owners"),
    )


def _tokens() -> None:
    op.create_table(
        "tuner_tokens",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("owner", sa.String(length=512), nullable=False),
        sa.Column("role", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.Column("used_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_tokens"),
        sa.UniqueConstraint("digest", name="uq_tuner_tokens_digest"),
        sa.UniqueConstraint("name", name="uq_tuner_tokens_name"),
    )


def _leases() -> None:
    op.create_table(
        "tuner_leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_tuner_leases"),
    )


def _audit() -> None:
    op.create_table(
        "tuner_audit",
        sa.Column("id", ROW_NUMBER, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("token", sa.Text(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("detail", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_audit"),
        sqlite_autoincrement=True,
    )
