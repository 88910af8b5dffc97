"""The tables of optimizations as SQLAlchemy models."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from storage.tables.models import KEYWORD_LENGTH, NAME_LENGTH, Base, CleanText


class OptimizationRow(Base):
    """An optimization: the fields of `records.Optimization`, of which `name` is the id and `id` the row."""

    __tablename__ = "tuner_optimizations"
    __table_args__ = (Index("ix_tuner_optimizations_owner", "owner", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH), unique=True)
    owner: Mapped[str] = mapped_column(String(NAME_LENGTH))
    shared: Mapped[bool]
    state: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    spec: Mapped[dict[str, Any]]
    lost_after_s: Mapped[float]
    most_trials: Mapped[int | None]
    suggested: Mapped[int]
    succeeded: Mapped[int]
    infeasible: Mapped[int]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class ClientTrialRow(Base):
    """A trial of an optimization: the fields of `records.ClientTrial`."""

    __tablename__ = "tuner_optimization_trials"
    __table_args__ = (Index("ix_tuner_optimization_trials_ended", "optimization_id", "ended"),)

    optimization_id: Mapped[int] = mapped_column(ForeignKey("tuner_optimizations.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    state: Mapped[str] = mapped_column(String(KEYWORD_LENGTH))
    client: Mapped[str] = mapped_column(String(NAME_LENGTH))
    attempts: Mapped[int]
    params: Mapped[dict[str, Any]]
    sampled: Mapped[dict[str, Any] | None]
    metrics: Mapped[dict[str, Any] | None]
    constraints: Mapped[dict[str, Any] | None]
    reason: Mapped[str | None] = mapped_column(CleanText)
    created_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    ended: Mapped[int | None]
