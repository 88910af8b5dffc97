"""The files of a run: one record per request as Parquet, and the generator's own delays as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tuner.files import write_atomically
from tuner.loadgen.run import PlanResult, percentile
from tuner.workloads.results import RequestRecord, RequestStatus

SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("name", pa.string()),
        ("status", pa.string()),
        *((name, pa.int64()) for name in ("planned_input", "planned_output")),
        *((name, pa.float64()) for name in ("due_s", "sent_s", "first_token_s", "end_s")),
        *((name, pa.int64()) for name in ("input_tokens", "output_tokens")),
        ("gaps_s", pa.list_(pa.float64())),
        ("error", pa.string()),
        *((name, pa.int64()) for name in ("session", "turn")),
    ]
)


_LATER = ("session", "turn")
"""Columns that older files lack."""


class RecordsError(ValueError):
    """A file of a run is not readable."""

    def __init__(self, path: Path, error: Exception) -> None:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        super().__init__(f"{path.name} is not readable: {reason[:200]}")


@dataclass(frozen=True)
class GeneratorDelays:
    """The generator's own delays and use of time, in seconds; a delay is None if nothing was measured.

    `late_*` is the time from when a request was due and had a place in flight until it was sent. `lag_*` is how late
    the event loop woke up, which bounds how late a token's time stamp may be. `cpu_s` is processor time, `wall_s` the
    run's duration.
    """

    late_p50_s: float | None
    late_p99_s: float | None
    late_max_s: float | None
    lag_p50_s: float | None
    lag_p99_s: float | None
    lag_max_s: float | None
    cpu_s: float
    wall_s: float


def generator_delays(result: PlanResult) -> GeneratorDelays:
    """Return the percentiles of the generator's delays."""
    late, lags = result.late_s, result.lags_s
    return GeneratorDelays(
        percentile(late, 0.5),
        percentile(late, 0.99),
        percentile(late, 1.0),
        percentile(lags, 0.5),
        percentile(lags, 0.99),
        percentile(lags, 1.0),
        result.cpu_s,
        result.wall_s,
    )


def write_records(path: Path, records: Sequence[RequestRecord]) -> None:
    """Write records as Parquet, one row per request."""
    rows = [{**asdict(record), "status": str(record.status), "gaps_s": list(record.gaps_s)} for record in records]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, compression="zstd")


def read_records(path: Path) -> list[RequestRecord]:
    """Read what `write_records` wrote.

    Raises:
        RecordsError: if it is not such a file.
    """
    try:
        known = set(pq.read_schema(path).names)
        columns = [name for name in SCHEMA.names if name in known or name not in _LATER]
        rows = pq.read_table(path, columns=columns).to_pylist()
        return [
            RequestRecord(**{**row, "status": RequestStatus(row["status"]), "gaps_s": tuple(row["gaps_s"])})
            for row in rows
        ]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise RecordsError(path, error) from None


def write_delays(path: Path, delays: GeneratorDelays) -> None:
    """Write the generator's delays in one step; the file marks the end of the run."""
    write_atomically(path, json.dumps(asdict(delays)))


def read_delays(path: Path) -> GeneratorDelays:
    """Read what `write_delays` wrote.

    Raises:
        RecordsError: if it is not such a file.
    """
    try:
        return GeneratorDelays(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RecordsError(path, error) from None
