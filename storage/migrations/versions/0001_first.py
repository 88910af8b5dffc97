"""The first schema: studies, trials, and the tables that belong to a trial.

A migration defines its tables in full and imports no model, so that a later change of the models does not alter it. The
tests compare a migrated database with `storage.tables.models`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None


def upgrade() -> None:
    """Create the tables."""
    _studies()
    _trials()
    _failures()
    _repeats()
    _server_facts()
    _syncs()
    _timings()


def downgrade() -> None:
    """Drop the tables."""
    for table in (
        "tuner_timings",
        "tuner_syncs",
        "tuner_server_facts",
        "tuner_repeats",
        "tuner_failures",
        "tuner_trials",
        "tuner_studies",
    ):
        op.drop_table(table)


def _studies() -> None:
    op.create_table(
        "tuner_studies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("provenance", sa.String(length=64), nullable=False),
        sa.Column("premise", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("conclusion", sa.JSON(), nullable=True),
        sa.Column("mlflow_run", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_studies"),
        sa.UniqueConstraint("name", name="uq_tuner_studies_name"),
    )


def _trials() -> None:
    op.create_table(
        "tuner_trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("provenance", sa.String(length=64), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("artifacts", sa.Text(), nullable=True),
        sa.Column("argv", sa.JSON(), nullable=True),
        sa.Column("environment", sa.JSON(), nullable=True),
        sa.Column("verdict_values", sa.JSON(), nullable=True),
        sa.Column("verdict_constraints", sa.JSON(), nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["study_id"], ["tuner_studies.id"], name="fk_tuner_trials_study_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_trials"),
        sa.UniqueConstraint("study_id", "number", "round", name="uq_tuner_trials_number"),
    )


def _failures() -> None:
    op.create_table(
        "tuner_failures",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("phase", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("artifacts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["tuner_trials.id"], name="fk_tuner_failures_trial_id"),
        sa.PrimaryKeyConstraint("trial_id", "attempt", name="pk_tuner_failures"),
    )


def _repeats() -> None:
    op.create_table(
        "tuner_repeats",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("offered", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["tuner_trials.id"], name="fk_tuner_repeats_trial_id"),
        sa.PrimaryKeyConstraint("trial_id", "position", name="pk_tuner_repeats"),
    )


def _server_facts() -> None:
    op.create_table(
        "tuner_server_facts",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("kv_cache_tokens", sa.BigInteger(), nullable=True),
        sa.Column("kv_cache_gib", sa.Double(), nullable=True),
        sa.Column("max_concurrency", sa.Double(), nullable=True),
        sa.Column("weights_gib", sa.Double(), nullable=True),
        sa.Column("graph_gib", sa.Double(), nullable=True),
        sa.Column("graph_capture_s", sa.Double(), nullable=True),
        sa.Column("compile_s", sa.Double(), nullable=True),
        sa.Column("engine_init_s", sa.Double(), nullable=True),
        sa.Column("attention_backend", sa.Text(), nullable=True),
        sa.Column("preemptions", sa.Double(), nullable=True),
        sa.Column("prefix_hit_rate", sa.Double(), nullable=True),
        sa.Column("queue_time_mean_s", sa.Double(), nullable=True),
        sa.Column("kv_usage_max", sa.Double(), nullable=True),
        sa.Column("kv_usage_mean", sa.Double(), nullable=True),
        sa.Column("spec_acceptance_rate", sa.Double(), nullable=True),
        sa.Column("spec_tokens_per_draft", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["tuner_trials.id"], name="fk_tuner_server_facts_trial_id"),
        sa.PrimaryKeyConstraint("trial_id", name="pk_tuner_server_facts"),
    )


def _syncs() -> None:
    op.create_table(
        "tuner_syncs",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("synced_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["tuner_trials.id"], name="fk_tuner_syncs_trial_id"),
        sa.PrimaryKeyConstraint("trial_id", name="pk_tuner_syncs"),
    )


def _timings() -> None:
    op.create_table(
        "tuner_timings",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("phase", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["tuner_trials.id"], name="fk_tuner_timings_trial_id"),
        sa.PrimaryKeyConstraint("trial_id", "attempt", "phase", name="pk_tuner_timings"),
    )
