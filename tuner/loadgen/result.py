"""What a load left, on disk: a record a request as Parquet, and the generator's account of itself as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tuner.loadgen.run import LoadResult
from tuner.loadgen.watch import percentile
from tuner.workloads.requests import RequestRecord, RequestStatus

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
    ]
)


@dataclass(frozen=True)
class OwnDelays:
    """How late the generator was, in seconds, and what it used; None where there was nothing to be late with.

    `late_*` is from when a request was due and had a place in flight until it was sent, `lag_*` how late its event loop
    woke up: how late a token may have been stamped. `cpu_s` is processor time, `wall_s` the run's duration.
    """

    late_p50_s: float | None
    late_p99_s: float | None
    late_max_s: float | None
    lag_p50_s: float | None
    lag_p99_s: float | None
    lag_max_s: float | None
    cpu_s: float
    wall_s: float


def own_delays(result: LoadResult) -> OwnDelays:
    """Return the generator's account of itself."""
    late, lags = result.late_s, result.lags_s
    return OwnDelays(
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
    """Write records as Parquet, one row a request."""
    rows = [{**asdict(record), "status": str(record.status), "gaps_s": list(record.gaps_s)} for record in records]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, compression="zstd")


def read_records(path: Path) -> list[RequestRecord]:
    """Read what `write_records` wrote."""
    rows = pq.read_table(path, columns=SCHEMA.names).to_pylist()
    return [
        RequestRecord(**{**row, "status": RequestStatus(row["status"]), "gaps_s": tuple(row["gaps_s"])}) for row in rows
    ]


def write_delays(path: Path, delays: OwnDelays) -> None:
    """Write the generator's account of itself, whole or not at all."""
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(asdict(delays)), encoding="utf-8")
    partial.replace(path)


def read_delays(path: Path) -> OwnDelays:
    """Read what `write_delays` wrote."""
    return OwnDelays(**json.loads(path.read_text(encoding="utf-8")))
