"""Reads recorded traces: when requests arrived, and the lengths of their prompts and answers.

The first line of a file tells which of three published formats it has:

- Azure's LLM inference traces, CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`
  (https://github.com/Azure/AzurePublicDataset);
- BurstGPT, CSV with at least `Timestamp,Request tokens,Response tokens`, times in seconds
  (https://github.com/HPMLL/BurstGPT);
- Mooncake, JSONL with `timestamp` in ms, `input_length` and `output_length`
  (https://github.com/kvcache-ai/Mooncake). Its `hash_ids`, the blocks that prompts share, are not reproduced.

A row without tokens of an answer is a request that failed. It is left out.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.workloads.reading.files import LARGEST_LENGTH, read_text

FORMS = "a trace of Azure or BurstGPT (CSV) or of Mooncake (JSONL)"


@dataclass(frozen=True)
class RecordedRequest:
    """One request of a trace: its arrival in seconds on the trace's own clock, and its lengths in tokens."""

    at_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class _Form:
    """A format: its names of the time, the prompt's tokens and the answer's, and how it writes a time."""

    names: tuple[str, str, str]
    seconds: Callable[[Any], float]


def _date(value: Any) -> float:
    at = datetime.fromisoformat(str(value))
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


_AZURE = _Form(("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _date)
_BURST_GPT = _Form(("Timestamp", "Request tokens", "Response tokens"), float)
_MOONCAKE = _Form(("timestamp", "input_length", "output_length"), lambda value: float(value) / 1000)


def read_requests(file: Path) -> tuple[RecordedRequest, ...]:
    """Return the requests of a trace in the order of their arrival.

    Raises:
        UserError: with file and line, if the file cannot be read, has another form, or has no request.
    """
    try:
        found = find_requests(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"trace {str(file)!r} cannot be read: {error}; give {FORMS}") from None
    if found is None:
        raise UserError(f"{file}:1: this is not the first line of a trace with lengths; give {FORMS}")
    return found


@cache
def find_requests(file: Path) -> tuple[RecordedRequest, ...] | None:
    """Return the requests of a trace in the order of their arrival; None if the first line is not that of a trace.

    Raises:
        OSError, UnicodeDecodeError: if the file cannot be read.
        UserError: with file and line, if a line has another form, or the trace has no request.
    """
    lines = read_text(file).removeprefix("\ufeff").splitlines()  # spreadsheets write this mark
    form = _form(lines[0]) if lines else None
    if form is None:
        return None
    found = []
    for number, row in (_json_rows if form is _MOONCAKE else _csv_rows)(file, lines):
        try:
            request = _request(row, form)
        except (ValueError, TypeError, KeyError, OverflowError):
            rule = f"{', '.join(form.names)} are not a time and two lengths from 0 to {LARGEST_LENGTH}"
            raise UserError(f"{file}:{number}: {rule}; correct or remove that line") from None
        found += [request] if request.output_tokens and request.input_tokens else []
    if not found:
        raise UserError(f"trace {str(file)!r} has no request with tokens; give {FORMS}")
    return tuple(sorted(found, key=lambda each: each.at_s))


def _form(line: str) -> _Form | None:
    """Return the format of a file by its first line; None for another file."""
    if line.lstrip().startswith("{"):
        return _MOONCAKE if all(f'"{name}"' in line for name in _MOONCAKE.names) else None
    columns = set(line.strip().split(","))
    return next((form for form in (_AZURE, _BURST_GPT) if columns.issuperset(form.names)), None)


def _csv_rows(file: Path, lines: list[str]) -> list[tuple[int, Any]]:
    reader = csv.DictReader(lines)
    try:
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UserError(f"{file}:{reader.line_num + 1}: not CSV: {error}; correct or remove that line") from None


def _json_rows(file: Path, lines: list[str]) -> list[tuple[int, Any]]:
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except (ValueError, RecursionError):
                raise UserError(f"{file}:{number}: not JSON; correct or remove that line") from None
    return rows


def _request(row: Mapping[str, Any], form: _Form) -> RecordedRequest:
    time, prompt, answer = form.names
    lengths = [_length(row[name]) for name in (prompt, answer)]
    at = form.seconds(row[time])
    if not math.isfinite(at):
        raise ValueError(at)
    return RecordedRequest(at, *lengths)


def _length(value: Any) -> int:
    number = float(value)  # some of BurstGPT's files have 12.0
    if isinstance(value, bool) or not 0 <= number <= LARGEST_LENGTH or number != int(number):
        raise ValueError(value)
    return int(number)
