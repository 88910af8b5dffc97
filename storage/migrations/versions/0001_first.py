"""The first schema: studies with their trials, what servers answered, and the service.

A migration defines its tables in full and imports no model, so that a later change of the models does not alter it. The
tests compare a migrated database with the models.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None

TIME = sa.DateTime(timezone=True)
JSON = sa.JSON(none_as_null=True)
ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables."""
    for create in (
        *(_studies, _trials, _failures, _repeats, _server_facts, _syncs, _timings, _answers),
        *(_submissions, _events, _uses, _owners, _tokens, _leases, _audit, _messages),
    ):
        create()


def _studies() -> None:
    op.create_table(
        "tuner_studies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("provenance", sa.String(length=64), nullable=False),
        sa.Column("premise", JSON, nullable=False),
        sa.Column("facts", JSON, nullable=False),
        sa.Column("conclusion", JSON, nullable=True),
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
        sa.Column("params", JSON, nullable=False),
        sa.Column("config", JSON, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("provenance", sa.String(length=64), nullable=False),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("artifacts", sa.Text(), nullable=True),
        sa.Column("argv", JSON, nullable=True),
        sa.Column("environment", JSON, nullable=True),
        sa.Column("verdict_values", JSON, nullable=True),
        sa.Column("verdict_constraints", JSON, nullable=True),
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
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=False),
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
        sa.Column("metrics", JSON, nullable=False),
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
        sa.Column("warmup_windows", sa.Integer(), nullable=True),
        sa.Column("warmup_settled", sa.Boolean(), nullable=True),
        sa.Column("benchmarks_again", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["tuner_trials.id"], name="fk_tuner_server_facts_trial_id"),
        sa.PrimaryKeyConstraint("trial_id", name="pk_tuner_server_facts"),
    )


def _syncs() -> None:
    op.create_table(
        "tuner_syncs",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("synced_at", TIME, nullable=False),
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


def _answers() -> None:
    op.create_table(
        "tuner_answers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("weights", sa.String(length=64), nullable=False),
        sa.Column("formats", JSON, nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("asked", sa.String(length=64), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("answers", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_answers"),
        sa.UniqueConstraint("digest", name="uq_tuner_answers_digest"),
    )


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
        sa.Column("webhook", sa.String(length=64), nullable=True),
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


def _messages() -> None:
    op.create_table(
        "tuner_messages",
        sa.Column("id", ROW_NUMBER, nullable=False),
        sa.Column("webhook", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("data", JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("next_at", TIME, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_messages"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_tuner_messages_next_at", "tuner_messages", ["next_at", "id"])
