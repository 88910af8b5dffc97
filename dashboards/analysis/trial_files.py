"""Frames of the files in one trial's folder of artifacts: requests by prompt length, latency by rate, server state."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from storage.capacity import capacity_of
from storage.errors import StorageError, first_line

_FIRST_BIN_TOKENS = 64
_RATE_COLUMNS = (
    *("rate", "held", "missed", "offered", "completed", "success_rate", "goodput_share", "goodput"),
    *("p50_ttft_ms", "p95_ttft_ms", "p99_ttft_ms", "p95_tpot_ms"),
)
_SERVER_COLUMNS = ("at_s", "running", "waiting", "kv_usage", "preemptions")


def numbered_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a trial's benchmarks in the order of the benchmarks.

    Args:
        folder: the trial's folder of artifacts; may be missing.
        name: the files' name with `*` for the benchmark's index, as `requests-*.parquet`.
    """
    pattern = re.compile(re.escape(name).replace(r"\*", r"(\d+)"))
    matches = {int(match[1]): file for file in folder.glob(name) if (match := pattern.fullmatch(file.name))}
    return [matches[index] for index in sorted(matches)]


def requests_by_length_frame(files: Iterable[Path]) -> pd.DataFrame:
    """Count every offered request by class and by planned prompt length.

    Args:
        files: request records, one file for each benchmark (`requests-N.parquet`).

    Returns:
        one row for each class and bin. Columns: `class`; `from` and `to`, the bin's first and last length in tokens
        (1 to 64, then doubling; NA where no length was planned); `offered` and `completed`, counts of requests; and a
        count for each other status that occurs.

    Raises:
        StorageError: if a file cannot be read.
    """
    counts: dict[tuple[str, int], Counter[str]] = {}
    for file in files:
        with readable(file):
            requests = pd.read_parquet(file, columns=["name", "status", "planned_input"])
        for name, status, tokens in requests.itertuples(index=False, name=None):
            counts.setdefault((name, upper_edge(tokens)), Counter())[status] += 1
    statuses = ["completed", *sorted({status for each in counts.values() for status in each} - {"completed"})]
    rows = sorted(counts.items(), key=lambda row: (row[0][0], row[0][1] or math.inf))
    cells = [
        [name, lower_edge(upper), upper or None, sum(each.values()), *(each[status] for status in statuses)]
        for (name, upper), each in rows
    ]
    frame = pd.DataFrame(cells, columns=["class", "from", "to", "offered", *statuses], dtype=object)
    return frame.astype({"from": "Int64", "to": "Int64", "offered": "int64"} | dict.fromkeys(statuses, "int64"))


def upper_edge(tokens: float | None) -> int:
    """Return the last length of the bin that holds `tokens` (1 to 64, then doubling); 0 where the length is absent."""
    if tokens is None or math.isnan(tokens):
        return 0
    return max(_FIRST_BIN_TOKENS, 1 << (int(tokens) - 1).bit_length()) if tokens > 0 else _FIRST_BIN_TOKENS


def lower_edge(upper: int) -> int | None:
    """Return the first length in tokens of the bin that ends at `upper`; None for 0."""
    if not upper:
        return None
    return 1 if upper == _FIRST_BIN_TOKENS else upper // 2 + 1


def rate_frame(file: Path) -> pd.DataFrame:
    """Return the request rates that a capacity search measured, lowest first.

    Args:
        file: the trial's `capacity.csv`.

    Returns:
        one row for each measured rate. Columns: `rate` and `goodput` in requests/s; `held`, True if every SLO held;
        `missed`, the SLOs that did not; `offered` and `completed`, counts of requests; `success_rate` and
        `goodput_share` in [0, 1]; latencies in ms; `is_capacity`, True for the highest rate that held below every
        rate that did not, over all searches of the trial.

    Raises:
        StorageError: if the file cannot be read.
    """
    with readable(file):
        frame = pd.read_csv(file, usecols=list(_RATE_COLUMNS), dtype={"held": str, "missed": str})
        numbers = [name for name in _RATE_COLUMNS if name not in ("held", "missed", "offered", "completed")]
        frame[numbers] = frame[numbers].astype("float64")
    frame["missed"] = frame["missed"].fillna("").astype(object)
    held = frame["held"] = frame["held"].eq("True").astype(bool)
    capacity = capacity_of(zip(frame["rate"], held, strict=True))
    frame["is_capacity"] = held & (frame["rate"] == (math.nan if capacity is None else capacity))
    return frame.sort_values("rate", kind="stable", ignore_index=True)


def server_frame(files: Sequence[Path]) -> pd.DataFrame:
    """Return the server's state during a trial's benchmarks, one benchmark after the other.

    Args:
        files: samples of the server's state, one file for each benchmark (`server-N.csv`), in order.

    Returns:
        one row for each sample. Columns: `at_s`, benchmark time in seconds since the start of the first benchmark;
        `running` and `waiting`, counts of requests; `kv_usage`, the share of the KV cache in use, in [0, 1];
        `preemptions`, a count; `benchmark`, the index of the benchmark, from 0.

    Raises:
        StorageError: if a file cannot be read.
    """
    parts = [pd.DataFrame(columns=[*_SERVER_COLUMNS, "benchmark"], dtype="float64")]
    begin = 0.0
    for index, file in enumerate(files):
        with readable(file):
            part = pd.read_csv(file, usecols=list(_SERVER_COLUMNS)).astype("float64")
        part["at_s"] += begin
        begin = max(part["at_s"], default=begin)
        parts.append(part.assign(benchmark=float(index)))
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Raise `StorageError` for a file that cannot be read in the block."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise StorageError(f"{file} cannot be read: {first_line(error)}") from error
