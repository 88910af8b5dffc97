"""Optimizations, whose trials the clients run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"

TIME = sa.DateTime(timezone=True)
JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "tuner_optimizations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("owner", sa.String(length=512), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("lost_after_s", sa.Double(), nullable=False),
        sa.Column("most_trials", sa.Integer(), nullable=True),
        sa.Column("suggested", sa.Integer(), nullable=False),
        sa.Column("succeeded", sa.Integer(), nullable=False),
        sa.Column("infeasible", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_optimizations"),
        sa.UniqueConstraint("name", name="uq_tuner_optimizations_name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_tuner_optimizations_owner", "tuner_optimizations", ["owner", "id"])
    _trials()


def _trials() -> None:
    op.create_table(
        "tuner_optimization_trials",
        sa.Column("optimization_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("client", sa.String(length=512), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("params", JSON, nullable=False),
        sa.Column("sampled", JSON, nullable=True),
        sa.Column("metrics", JSON, nullable=True),
        sa.Column("constraints", JSON, nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("heartbeat_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("ended", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["optimization_id"], ["tuner_optimizations.id"], name="fk_tuner_optimization_trials_optimization_id"
        ),
        sa.PrimaryKeyConstraint("optimization_id", "number", name="pk_tuner_optimization_trials"),
    )
    op.create_index("ix_tuner_optimization_trials_ended", "tuner_optimization_trials", ["optimization_id", "ended"])


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("tuner_optimization_trials")
    op.drop_table("tuner_optimizations")
