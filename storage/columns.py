"""Columns from the fields of records, and the conversion between a record and the columns of a row.

A record tells its fields once. `columns` derives a table's columns from them, `values_of` writes a record into these
columns, and `record_of` reads it back. The column type is JSON instead of JSONB, because JSONB loses the order of keys,
which objectives have, and turns 1e16 into an integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    FromClause,
    Integer,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.types import TypeEngine

from storage.errors import StorageError

R = TypeVar("R")

NAME_LENGTH = 512
KEYWORD_LENGTH = 64


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware UTC datetime on every database. SQLite stores no zone, so reading adds it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC.

        Raises:
            ValueError: for a datetime without a zone, whose instant is ambiguous.
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a datetime without a time zone cannot be stored: {value.isoformat()}")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return a timezone-aware UTC datetime."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class CleanText(TypeDecorator[str]):
    """Text from logs. NUL and lone surrogates, which a database rejects, become U+FFFD, so that the trial is stored."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace the characters that cannot be stored."""
        if value is None:
            return None
        return value.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


NAME, KEYWORD, JSON_VALUE = String(NAME_LENGTH), String(KEYWORD_LENGTH), JSON(none_as_null=True)
ROW_NUMBER = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers only rows whose key is INTEGER
_TYPES: Mapping[Any, TypeEngine[Any]] = {
    str: CleanText(),
    int: Integer(),
    float: Double(),
    bool: Boolean(),
    datetime: UtcDateTime(),
}


def columns(
    record: type, without: Collection[str] = (), nullable: bool = False, **types: TypeEngine[Any]
) -> Iterator[Column[Any]]:
    """Yield a column for each field of a record: `Repeat.seed` is the column `seed`.

    Text is `CleanText`, an enum a keyword, and a mapping or tuple JSON. A field that can be None can be NULL.

    Args:
        record: a dataclass.
        without: fields that are not columns.
        nullable: whether every column can be NULL.
        types: column types by field, where the field's own type does not say enough.
    """
    for name, (hint, optional) in _fields(record).items():
        if name not in without:
            enum = isinstance(hint, type) and issubclass(hint, Enum)
            kind = types.get(name) or (KEYWORD if enum else _TYPES.get(hint, JSON_VALUE))
            yield Column(name, kind, nullable=nullable or optional)


@cache
def _fields(record: type) -> Mapping[str, tuple[Any, bool]]:
    """Return each field of a dataclass with its type, and whether it can be None."""
    hints, found = get_type_hints(record), {}
    for field in fields(record):
        hint = hints[field.name]
        parts = get_args(hint)
        is_optional = NoneType in parts
        found[field.name] = (next(part for part in parts if part is not NoneType) if is_optional else hint, is_optional)
    return found


def values_of(table: FromClause, record: Any, place: str = "") -> dict[str, Any]:
    """Return the values of those columns of a table that are fields of a record.

    Args:
        table: where the record is stored.
        record: a dataclass.
        place: of the record, for the error message.

    Raises:
        StorageError: as `to_json_value`.
    """
    return {
        name: value if isinstance(value, datetime) else to_json_value(place + name, value)
        for name in _fields(record.__class__)
        if name in table.c
        for value in [getattr(record, name)]
    }


def to_json_value(where: str, value: Any) -> Any:
    """Return a value as JSON holds it: a tuple becomes a list, a mapping or record a dict, an enum its value.

    Args:
        where: the value's place, for the error message.
        value: text, a number, a truth value, None, or lists, mappings and records of them.

    Raises:
        StorageError: for inf, nan, and types that JSON does not have; the message names the place.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise StorageError(f"{where} is {value}: only finite numbers can be stored; use None for an absent value")
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json_value(f"{where}.{key}", item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(f"{where}[{index}]", item) for index, item in enumerate(value)]
    raise StorageError(f"{where} is a {type(value).__name__}, which JSON cannot hold; convert it to text or numbers")


def record_of(record: type[R], row: Any, **given: Any) -> R:
    """Return the record of a row, whose enums and tuples are restored.

    Args:
        record: the dataclass.
        row: has a column for each field that is not given.
        given: fields by name.
    """
    for name, restored in _restored(cast("Hashable", record)):
        if name not in given:
            value = getattr(row, name)
            given[name] = value if restored is None or value is None else restored(value)
    return record(**given)


@cache
def _restored(record: Any) -> list[tuple[str, Callable[[Any], Any] | None]]:
    """Return each field with what restores its value from a row; None: the row has the value itself."""
    kinds = ((name, get_origin(hint) or hint) for name, (hint, _) in _fields(record).items())
    return [(name, kind if isinstance(kind, type) and issubclass(kind, tuple | Enum) else None) for name, kind in kinds]
