"""pandas frames of a study: its trials, the requests of benchmarks, and the files in a trial's folder."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from records.json_lines import read_rows
from records.measured import capacity_of
from records.metrics import METRICS
from records.trials import Phase, ServerFacts, TrialOutcome, TrialRecord
from storage.errors import StorageError, first_line

_FIRST_BIN_TOKENS = 64
_RATE_COLUMNS = (
    *("rate", "held", "missed", "offered", "completed", "success_rate", "goodput_share", "goodput"),
    *("p50_ttft_ms", "p95_ttft_ms", "p99_ttft_ms", "p95_tpot_ms"),
)
_SERVER_COLUMNS = ("at_s", "running", "waiting", "kv_usage", "preemptions")


def numbered_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a trial's benchmarks in the order of the benchmarks; the folder may be missing.

    `name` has `*` for the benchmark's index, as `requests-*.jsonl.gz`.
    """
    pattern = re.compile(re.escape(name).replace(r"\*", r"(\d+)"))
    matches = {int(match[1]): file for file in folder.glob(name) if (match := pattern.fullmatch(file.name))}
    return [matches[index] for index in sorted(matches)]


def requests_by_length_frame(files: Iterable[Path]) -> pd.DataFrame:
    """Count every offered request by class and by planned prompt length.

    Args:
        files: request records, one file for each benchmark (`requests-N.jsonl.gz`).

    Returns:
        one row for each class and bin. Columns: `class`; `from` and `to`, the bin's first and last length in tokens
        (1 to 64, then doubling; NA where no length was planned); `offered` and `completed`, counts of requests; and a
        count for each other status that occurs.

    Raises:
        StorageError: if a file cannot be read.
    """
    counts: dict[tuple[str, int], Counter[str]] = {}
    for file in files:
        requests = _requests(file, ["name", "status", "planned_input"])
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


def _requests(file: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Return columns of a benchmark's request records; an absent number is NaN."""
    numbers = [name for name in columns if name not in ("name", "status", "gaps_s")]
    with readable(file):
        return pd.DataFrame(read_rows(file), columns=list(columns)).astype(dict.fromkeys(numbers, "float64"))


Latencies = dict[str, "np.ndarray[Any, Any]"]


def latency_arrays(files: Iterable[Path]) -> Latencies:
    """Return the latencies of all completed requests, in ms.

    TTFT counts from the scheduled time of a request, in a closed loop from sending it, as in the metrics. TPOT is
    (end - first token) / (output tokens - 1).

    Args:
        files: request records of the benchmarks.

    Returns:
        `ttft_ms` and `tpot_ms`, one value for each request that has it, and `itl_ms`, one for each gap.

    Raises:
        StorageError: if a file cannot be read.
    """
    columns = ["status", "due_s", "sent_s", "first_token_s", "end_s", "output_tokens", "gaps_s"]
    frames = []
    for file in files:
        frame = _requests(file, columns)
        frames.append(frame[frame["status"] == "completed"])
    if not frames:
        return {}
    every = pd.concat(frames, ignore_index=True)
    begin = every["due_s"].fillna(every["sent_s"])
    tokens = every["output_tokens"].where(every["output_tokens"] > 1)
    tpot = (every["end_s"] - every["first_token_s"]) / (tokens - 1)
    gaps = [np.asarray(each, dtype="float64") for each in every["gaps_s"] if each is not None and len(each)]
    return {
        "ttft_ms": 1000.0 * (every["first_token_s"] - begin).dropna().to_numpy(dtype="float64"),
        "tpot_ms": 1000.0 * tpot.dropna().to_numpy(dtype="float64"),
        "itl_ms": 1000.0 * (np.concatenate(gaps) if gaps else np.empty(0)),
    }


def length_frame(files: Iterable[Path]) -> pd.DataFrame:
    """Count every offered request by planned prompt length and planned answer length.

    Args:
        files: request records of the benchmarks.

    Returns:
        one row for each pair of bins that has a request, by length. Columns: `prompt` and `answer`, the bins as
        `65–128` tokens, or `unknown` where no length was planned; `answer_to`, the last length of the answer's bin;
        `completed` and `failed`, counts of requests.

    Raises:
        StorageError: if a file cannot be read.
    """
    counts: dict[tuple[int, int], list[int]] = {}
    for file in files:
        requests = _requests(file, ["status", "planned_input", "planned_output"])
        for status, prompt, answer in requests.itertuples(index=False, name=None):
            cell = counts.setdefault((upper_edge(prompt), upper_edge(answer)), [0, 0])
            cell[status != "completed"] += 1
    ordered = sorted(counts.items(), key=lambda item: tuple(edge or math.inf for edge in item[0]))
    rows = [[_bin(prompt), _bin(answer), answer or math.inf, *cell] for (prompt, answer), cell in ordered]
    return pd.DataFrame(rows, columns=["prompt", "answer", "answer_to", "completed", "failed"])


def _bin(upper: int) -> str:
    return f"{lower_edge(upper)}–{upper}" if upper else "unknown"


_FACTS = tuple(field.name for field in fields(ServerFacts))
_TEXT_FACTS = frozenset({"attention_backend"})
_PHASES = (*(phase.value for phase in Phase), "own")
_LEADING = ("study", "number", "round", "kind", "label", "state", "feasible", "score")
_FAILURE = ("failure_kind", "failure_culprit", "failure_phase", "failure_message")
_CUT = ("cut_reason", "score_at_most")
_ORIGIN = ("provenance", "worker", "device", "attempts", "started_at", "ended_at", "argv")
_INTEGERS = ("number", "round", "repeats", "attempts")
_TIMES = ("started_at", "ended_at")


def trials_frame(records: Sequence[TrialRecord]) -> pd.DataFrame:
    """Return a frame with one row for each trial, in the order given.

    Args:
        records: trials, pending and failed ones included; they may belong to several studies.

    Returns:
        a frame with these columns, in this order:

        - `study`, `number`, `round`, `kind`, `label`, `state`, `feasible`, `score` (the defaults score 1);
        - `objective.NAME` in the metric's unit, and `constraint.NAME`, which is met at or below 0;
        - each metric of `records.metrics.METRICS` in its unit, and the metrics of request classes as `CLASS.NAME`: the
          value of `TrialOutcome.metric`, in general the median over the repeats;
        - `repeats`, the number of benchmarks;
        - `failure_kind`, `failure_culprit`, `failure_phase`, `failure_message`;
        - `cut_reason` and `score_at_most` of a trial that was cut short;
        - `config.NAME`, the value of a parameter; None where the configuration leaves it to the engine's default;
        - `server.NAME`, the fields of `ServerFacts`;
        - `PHASE_s`, the seconds of each `Phase`, and `own_s`, the tuner's own work;
        - `provenance`, `worker`, `device`, `attempts`, `started_at` and `ended_at` (UTC), `argv` (one line of shell).

        Columns of metrics, server facts and phases always exist, the others where a trial has them. An absent value is
        NaN, NaT or None.
    """
    rows = [_row(record) for record in records]
    columns = _columns(records)
    frame = pd.DataFrame([[row.get(column) for column in columns] for row in rows], columns=columns, dtype=object)
    floats = [*_float_columns(columns)]
    frame[floats] = frame[floats].astype("float64")
    for column in _INTEGERS:
        frame[column] = frame[column].astype("int64")
    for column in _TIMES:
        frame[column] = pd.to_datetime(frame[column], utc=True)
    return frame


def to_csv(frame: pd.DataFrame) -> str:
    """Return the frame as CSV with a header line; an absent value is empty, a time is ISO 8601 in UTC."""
    return frame.to_csv(index=False, lineterminator="\n", date_format="%Y-%m-%dT%H:%M:%S.%f%z")


def to_json(frame: pd.DataFrame) -> str:
    """Return the frame as a JSON list of one object for each row; an absent value is null, a time ISO 8601 in UTC."""
    plain = frame.astype(object).where(frame.notna(), None)
    return json.dumps(plain.to_dict("records"), allow_nan=False, default=lambda time: time.isoformat())


def _columns(records: Sequence[TrialRecord]) -> list[str]:
    verdicts = [record.verdict for record in records if record.verdict is not None]
    outcomes = [record.outcome for record in records if record.outcome is not None]
    metrics = _union(METRICS, (repeat.metrics for outcome in outcomes for repeat in outcome.repeats))
    return [
        *_LEADING,
        *(f"objective.{name}" for name in _union((), (verdict.values for verdict in verdicts))),
        *(f"constraint.{name}" for name in _union((), (verdict.constraints for verdict in verdicts))),
        *metrics,
        "repeats",
        *_FAILURE,
        *_CUT,
        *(f"config.{name}" for name in _union((), (record.config for record in records))),
        *(f"server.{name}" for name in _FACTS),
        *(f"{name}_s" for name in _union(_PHASES, (outcome.timings for outcome in outcomes))),
        *_ORIGIN,
    ]


def _union(first: Iterable[str], more: Iterable[Iterable[str]]) -> list[str]:
    """Return the names in the order in which they first appear."""
    return list(dict.fromkeys([*map(str, first), *(str(name) for names in more for name in names)]))


def _float_columns(columns: Sequence[str]) -> Iterable[str]:
    other = {*_LEADING, *_FAILURE, "cut_reason", *_ORIGIN, *_INTEGERS, *(f"server.{name}" for name in _TEXT_FACTS)} - {
        "score"
    }
    return (column for column in columns if column not in other and not column.startswith("config."))


def _row(record: TrialRecord) -> dict[str, Any]:
    row: dict[str, Any] = {
        "study": record.study,
        "number": record.number,
        "round": record.round,
        "kind": record.kind.value,
        "label": record.label,
        "state": record.state,
        "attempts": record.attempts,
        "repeats": 0,
        **{f"config.{name}": value for name, value in record.config.items()},
    }
    if (verdict := record.verdict) is not None:
        row |= {"feasible": verdict.feasible, "score": verdict.score}
        row |= {f"objective.{name}": value for name, value in verdict.values.items()}
        row |= {f"constraint.{name}": value for name, value in verdict.constraints.items()}
    if record.outcome is not None:
        row |= _outcome_cells(record.outcome)
    return row


def _outcome_cells(outcome: TrialOutcome) -> Mapping[str, Any]:
    names = {name for repeat in outcome.repeats for name in repeat.metrics}
    cells: dict[str, Any] = {name: outcome.metric(name) for name in names}
    cells.update({f"{phase!s}_s": seconds for phase, seconds in outcome.timings.items()})
    if outcome.server is not None:
        cells.update({f"server.{name}": value for name, value in asdict(outcome.server).items()})
    if outcome.failure is not None:
        failure = outcome.failure
        values = (failure.kind.value, failure.culprit.value, failure.phase.value, failure.message)
        cells.update(zip(_FAILURE, values, strict=True))
    if outcome.cut is not None:
        cells.update(zip(_CUT, (outcome.cut.reason, outcome.cut.score_at_most), strict=True))
    return {
        **cells,
        "repeats": len(outcome.repeats),
        "provenance": outcome.provenance.value,
        "worker": outcome.worker,
        "device": outcome.device,
        "started_at": outcome.started_at,
        "ended_at": outcome.ended_at,
        "argv": shlex.join(outcome.argv) if outcome.argv else None,
    }
