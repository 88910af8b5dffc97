"""Trials as a pandas frame, and the frame as CSV or JSON for other programs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from storage.metrics import METRICS
from storage.records import Phase, ServerFacts, TrialOutcome, TrialRecord, Verdict

_FACTS = tuple(field.name for field in fields(ServerFacts))
_TEXT_FACTS = frozenset({"attention_backend"})
_PHASES = (*(phase.value for phase in Phase), "own")
_LEADING = ("study", "number", "round", "kind", "label", "state", "feasible", "score")
_FAILURE = ("failure_kind", "failure_culprit", "failure_phase", "failure_message")
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
        - each metric of `storage.metrics.METRICS` in its unit, and the metrics of request classes as `CLASS.NAME`: the
          value of `TrialOutcome.metric`, in general the median over the repeats;
        - `repeats`, the number of benchmarks;
        - `failure_kind`, `failure_culprit`, `failure_phase`, `failure_message`;
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
    rows: list[dict[Any, Any]] = plain.to_dict("records")
    return json.dumps([{str(key): _json_value(value) for key, value in row.items()} for row in rows], allow_nan=False)


def _json_value(value: object) -> object:
    return value.isoformat() if isinstance(value, pd.Timestamp) else value


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
        *(f"config.{name}" for name in _union((), (record.config for record in records))),
        *(f"server.{name}" for name in _FACTS),
        *(f"{name}_s" for name in _union(_PHASES, (outcome.timings for outcome in outcomes))),
        *_ORIGIN,
    ]


def _union(first: Iterable[str], more: Iterable[Iterable[str]]) -> list[str]:
    """Return the names in the order in which they first appear."""
    return list(dict.fromkeys([*map(str, first), *(str(name) for names in more for name in names)]))


def _float_columns(columns: Sequence[str]) -> Iterable[str]:
    other = {*_LEADING, *_FAILURE, *_ORIGIN, *_INTEGERS, *(f"server.{name}" for name in _TEXT_FACTS)} - {"score"}
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
    if record.verdict is not None:
        row.update(_verdict_cells(record.verdict))
    if record.outcome is not None:
        row.update(_outcome_cells(record.outcome))
    return row


def _verdict_cells(verdict: Verdict) -> Mapping[str, Any]:
    return {
        "feasible": verdict.feasible,
        "score": verdict.score,
        **{f"objective.{name}": value for name, value in verdict.values.items()},
        **{f"constraint.{name}": value for name, value in verdict.constraints.items()},
    }


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
