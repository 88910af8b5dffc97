"""A file of recorded traffic as the readers of formats see it: text, JSON values, rows of a table, and the options."""

from __future__ import annotations

import csv
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tuner.errors import UserError
from tuner.workloads.reading import TEXT_LIMIT, decoded, json_entries, read_content, split_lines
from tuner.workloads.traces.recording import Recording, Unit

FORMS = "a recording of a known format, such as Azure's CSV or Mooncake's JSONL (docs/workloads.md)"
"""What messages say to give in the place of a file that cannot be read."""

Column = Literal["time", "input", "output", "session", "blocks", "end"]

_GZIP = b"\x1f\x8b"
_ABOVE = re.compile(r'#|"?sep=([,;\t|])"?\s*$')
_MOST_COLUMNS = 1000
_NO_CELL = "no cell"
"""Stands for the cells that the first line lacks; it is no number, unlike an empty cell."""


_USAGES = ("usage_metadata", "usageMetadata", "usage")
_DETAILS = (*_USAGES, "usageDetails", "usage_details")
_AROUND_USAGE = ("input", "output", "body", "message", "response")
_MOST_NESTED = 3


@dataclass(frozen=True)
class ReadOptions:
    """What the user says about a file.

    Attributes:
        unit: of its times; None: what the format tells.
        block_tokens: tokens of a block of `hash_ids`; None: what the format tells.
        columns: names of a table's columns that are not known ones.
        encode: returns a text's tokens; None: lengths of texts are estimated.
    """

    unit: Unit | None = None
    block_tokens: int | None = None
    columns: Mapping[Column, str] = field(default_factory=dict)
    encode: Callable[[str], Sequence[int]] | None = None


Row = Mapping[str, Any]


@dataclass(frozen=True)
class TraceSource:
    """A file of recorded traffic.

    Attributes:
        file: for messages.
        content: of the file, unpacked.
        options: what the user says about it.
    """

    file: Path
    content: bytes
    options: ReadOptions

    @cached_property
    def text(self) -> str:
        """The text of the file.

        Raises:
            UserError: if it is none.
        """
        return decoded(self.file, self.content, "trace", FORMS)

    @cached_property
    def is_json(self) -> bool:
        """Whether the text is JSON, or has a JSON value in each line."""
        return self.content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"[", b"{")

    @cached_property
    def entries(self) -> list[tuple[str, Any]]:
        """The place and the value of each entry of a JSON list or document, or of each line of JSONL.

        Raises:
            UserError: if it is not JSON, or an object has a key twice.
        """
        return list(json_entries(self.file, self.text, "correct or remove that line", unique_keys=True))

    @cached_property
    def first(self) -> Row:
        """The first object of JSON; empty if there is none, or if the file is no JSON."""
        if not self.is_json:
            return {}
        try:
            value = next(json_entries(self.file, self.text, ""), ("", None))[1]
        except UserError:
            return {}
        return value if isinstance(value, Mapping) else {}

    @cached_property
    def rows(self) -> list[tuple[str, Row]]:
        """The rows of a table, each with its place; every key of one, and of its `usage`, is a column.

        Raises:
            UserError: if it is neither CSV nor JSON, or a name is there twice.
        """
        rows = self.entries if self.is_json else list(_csv_rows(self.file, self.text))
        for place, row in rows:
            if not isinstance(row, Mapping):
                raise UserError(f"{place}: this is no row with names; correct or remove that line")
        rows = [(place, _with_usage(row)) for place, row in rows]
        if rows:
            _check_names(f"{self.file}:1", list(rows[0][1]))
        return rows

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of a table's columns, which a row of JSON may lack; empty without rows."""
        return tuple(dict.fromkeys(str(name) for _, row in self.rows for name in row))


@dataclass(frozen=True)
class TraceFormat:
    """A format of recorded traffic.

    Attributes:
        title: what users call it.
        origin: where it is described.
        recognizes: whether a file has this format, as far as its beginning shows.
        read: returns the recording; it raises `UserError` with the place of a mistake.
    """

    title: str
    origin: str
    recognizes: Callable[[TraceSource], bool]
    read: Callable[[TraceSource], Recording]


def open_source(file: Path, options: ReadOptions) -> TraceSource:
    """Return a file, unpacked if it is compressed with gzip.

    Raises:
        UserError: if it cannot be read, or is too large.
    """
    content = read_content(file, "trace", FORMS)
    return TraceSource(file, _unpacked(file, content) if content.startswith(_GZIP) else content, options)


def _unpacked(file: Path, content: bytes) -> bytes:
    """Return the content of a gzip file, which may have several members."""
    found, left = bytearray(), content
    try:
        while left:
            unpack = zlib.decompressobj(wbits=31)
            found += unpack.decompress(left, TEXT_LIMIT + 1 - len(found))
            if len(found) > TEXT_LIMIT:
                raise UserError(f"{file}: unpacked, it is larger than {TEXT_LIMIT >> 20} MiB; split it")
            if not unpack.eof:
                raise UserError(f"{file}: the gzip file ends before its data; copy it again")
            left = unpack.unused_data
    except zlib.error as error:
        raise UserError(f"{file}: not gzip: {error}; copy it again") from None
    return bytes(found)


def _with_usage(row: Row) -> Row:
    """Return a row with the columns of its `usage`, wherever logs of answers have it, in the place of that part."""
    others = {name: part for name, part in row.items() if name not in _USAGES or not isinstance(part, Mapping)}
    return {**_usage_in(row, _MOST_NESTED), **others}


def _usage_in(part: Row, depth: int) -> dict[str, Any]:
    """Return the token counts in a part of a row: the usage of an answer, or what Bedrock's log counts."""
    found: dict[str, Any] = {}
    for key in _AROUND_USAGE:
        inner = part.get(key)
        if isinstance(inner, Mapping) and depth:
            found |= {name: count for name, count in inner.items() if str(name).endswith("TokenCount")}
            found |= _usage_in(inner, depth - 1)
    for key in _USAGES:
        inner = part.get(key)
        found |= inner if isinstance(inner, Mapping) else {}
    for key in _DETAILS:
        found |= _of_details(part.get(key))
    return found


def _of_details(usage: Any) -> dict[str, Any]:
    """Return the lengths in Langfuse's usage, whose cells in CSV are JSON; nothing for another usage.

    Its types are parts, and those with `input` in their names make the prompt: `input`, `cache_read_input_tokens`
    (https://langfuse.com/docs/observability/features/token-and-cost-tracking). Where they exceed its `total`, `input`
    alone is the prompt.
    """
    with suppress(ValueError, RecursionError):
        usage = json.loads(usage) if isinstance(usage, str) and usage.startswith("{") else usage
    if not isinstance(usage, Mapping) or not {"input", "output"} & {*usage}:
        return {}
    counts = {str(name): count for name, count in usage.items() if isinstance(count, int)}
    sums = {side: sum(count for name, count in counts.items() if side in name) for side in ("input", "output")}
    if sum(sums.values()) > counts.get("total", math.inf):
        sums = {side: counts.get(side, 0) for side in sums}
    return {f"usage details {side}": tokens for side, tokens in sums.items()}


def _check_names(place: str, names: Sequence[str]) -> None:
    """Refuse columns that are too many, or have the same name; a column without a name is not read."""
    if len(names) > _MOST_COLUMNS:
        raise UserError(f"{place}: {len(names):,} columns, and a trace has at most {_MOST_COLUMNS:,}; give {FORMS}")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{place}: two columns are called {twice[:40]!r}; rename or remove one")


def _head(lines: Sequence[str]) -> tuple[int, str]:
    """Return the index of the line with the names of the columns, and the delimiter.

    Above it may be comments (`#`) and Excel's `sep=;`. A comment above numbers has the names, as NumPy writes them.
    """
    comment, delimiter = None, None
    for index, line in enumerate(lines):
        above = _ABOVE.match(line)
        if above is None and line.strip():
            head = index if comment is None or not line.lstrip()[0].isdigit() else comment
            return head, delimiter or max(",;\t", key=lines[head].count)
        if above is not None:
            comment, delimiter = (comment, above[1]) if above[1] else (index, delimiter)
    return 0, ","


def _csv_rows(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    lines = split_lines(text)
    head, delimiter = _head(lines)
    reader = csv.reader(lines[head:], delimiter=delimiter)
    try:
        names = next(reader, [])
        _check_names(f"{file}:{head + 1}", names)
        lacking = dict.fromkeys(names, _NO_CELL)  # the first row has every name
        for row in reader:
            if any(row):
                yield f"{file}:{head + reader.line_num}", {**lacking, **dict(zip(names, row, strict=False))}
                lacking = {}
    except csv.Error as error:
        raise UserError(f"{file}:{head + reader.line_num}: not CSV: {error}; correct or remove that line") from None
