"""Columns from a record's fields, and the way of a record to a row and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Integer, MetaData, Table
from sqlalchemy.dialects import postgresql

from records.trials import Phase
from storage.columns import columns, record_of, values_of
from storage.errors import StorageError

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Made:
    """A record with a field of each kind; `inner` is no column."""

    phase: Phase
    last: Phase | None
    words: tuple[str, ...]
    facts: Mapping[str, Any] | None
    at: datetime
    seconds: float
    count: int
    big: int
    inner: object = None


TABLE = Table(
    "made", MetaData(), Column("id", Integer, primary_key=True), *columns(Made, without=("inner",), big=BigInteger())
)
MADE = Made(Phase.LAUNCH, None, ("a", "b"), {"x": (1, 2.5)}, NOON, 0.5, 3, 2**40)
ROW = {
    "phase": "launch",
    "last": None,
    "words": ["a", "b"],
    "facts": {"x": [1, 2.5]},
    "at": NOON,
    "seconds": 0.5,
    "count": 3,
    "big": 2**40,
}


def test_a_field_s_type_decides_the_column() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    types = {each.name: (each.type.compile(dialect), each.nullable) for each in TABLE.columns}
    assert types == {
        "id": ("INTEGER", False),
        "phase": ("VARCHAR(64)", False),
        "last": ("VARCHAR(64)", True),
        "words": ("JSON", False),
        "facts": ("JSON", True),
        "at": ("TIMESTAMP WITH TIME ZONE", False),
        "seconds": ("DOUBLE PRECISION", False),
        "count": ("INTEGER", False),
        "big": ("BIGINT", False),
    }


def test_a_row_has_plain_values_and_the_record_is_restored() -> None:
    assert values_of(TABLE, MADE) == ROW
    restored = record_of(Made, SimpleNamespace(**ROW), inner=1)
    assert (restored.phase, restored.last, restored.words, restored.inner) == (Phase.LAUNCH, None, ("a", "b"), 1)
    assert isinstance(restored.phase, Phase)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": math.inf}, "repeat 2: seconds is inf: only finite numbers"),
        ({"facts": {"a": [math.nan]}}, r"repeat 2: facts\.a\[0\] is nan"),
        ({"facts": {"when": NOON}}, r"repeat 2: facts\.when is a datetime, which JSON cannot hold"),
    ],
)
def test_a_value_that_cannot_be_stored_is_located(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StorageError, match=message):
        values_of(TABLE, Made(**{**vars(MADE), **change}), "repeat 2: ")
