"""Trials as a frame, CSV and JSON, against values worked out by hand."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import pytest

from dashboards.frames import to_csv, to_json, trials_frame
from records.metrics import METRICS
from records.trials import FailureKind, ServerFacts, TrialKind, TrialRecord
from tests import store_samples as samples


@pytest.fixture
def records() -> list[TrialRecord]:
    """A success, a failure and a pending trial of one study."""
    repeats = (samples.repeat(0, 0.1), samples.repeat(1, 0.3), samples.repeat(2, 0.7))
    server = ServerFacts(kv_cache_tokens=1000, attention_backend="FLASHINFER")
    good = dataclasses.replace(
        samples.pending(0, kind=TrialKind.BASELINE),
        attempts=1,
        label='the "defaults", all',
        outcome=samples.success(*repeats, server=server),
        verdict=samples.verdict(1.0),
    )
    bad = dataclasses.replace(
        samples.pending(1),
        config={"max-num-seqs": 8, "block-size": 16},
        attempts=3,
        outcome=samples.failed(FailureKind.PORT_TAKEN),
    )
    return [good, bad, dataclasses.replace(samples.pending(2), config={})]


def test_a_frame_has_one_row_for_each_trial_in_order(records: list[TrialRecord]) -> None:
    frame = trials_frame(records)
    assert frame["number"].tolist() == [0, 1, 2]
    assert frame["state"].tolist() == ["ok", "failed", "pending"]
    assert frame["repeats"].tolist() == [3, 0, 0]
    assert frame["feasible"].tolist() == [True, None, None]
    assert len(set(frame.columns)) == len(frame.columns)


def test_values_of_a_success(records: list[TrialRecord]) -> None:
    row = json.loads(to_json(trials_frame(records)))[0]
    assert row["output_throughput"] == 0.3
    assert row["p99_tpot_ms"] == 41.0
    assert row["p99_ttft_ms"] is None
    assert row["score"] == 1.0
    assert row["objective.output_throughput"] == 3332.25
    assert row["constraint.p99_tpot_ms<50"] == -10.0
    assert row["config.max-num-seqs"] == 64
    assert row["config.enforce-eager"] is True
    assert row["config.gpu-memory-utilization"] == 0.9
    assert row["config.block-size"] is None
    assert row["server.kv_cache_tokens"] == 1000
    assert row["server.attention_backend"] == "FLASHINFER"
    assert (row["launch_s"], row["benchmark_s"], row["own_s"], row["stop_s"]) == (1.5, 61.25, 0.125, None)
    assert row["started_at"] == "2026-03-01T12:00:00.123456+00:00"
    assert row["argv"] == "vllm serve 'a model'"
    assert (row["provenance"], row["worker"], row["device"]) == ("measured", "host:gpu0", "Tesla T4")


def test_values_of_a_failure_and_of_a_pending_trial(records: list[TrialRecord]) -> None:
    _, bad, pending = json.loads(to_json(trials_frame(records)))
    assert bad["failure_kind"] == "port_taken"
    assert bad["failure_culprit"] == "infrastructure"
    assert bad["failure_phase"] == "ready"
    assert bad["failure_message"] == "no memory"
    assert (bad["attempts"], bad["argv"], bad["score"], bad["output_throughput"]) == (3, None, None, None)
    assert (bad["config.max-num-seqs"], bad["config.block-size"], bad["config.dtype"]) == (8, 16, None)
    assert {name for name, value in pending.items() if value is not None} == {
        "study", "number", "round", "kind", "state", "attempts", "repeats"
    }  # fmt: skip


def test_csv_reads_back(records: list[TrialRecord]) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(trials_frame(records)))))
    assert [row["label"] for row in rows] == ['the "defaults", all', "", ""]
    assert [row["config.max-num-seqs"] for row in rows] == ["64", "8", ""]
    assert [row["output_throughput"] for row in rows] == ["0.3", "", ""]
    assert [row["started_at"] for row in rows] == ["2026-03-01T12:00:00.123456+0000"] * 2 + [""]


def test_without_trials_the_fixed_columns_exist() -> None:
    frame = trials_frame([])
    assert len(frame) == 0
    assert set(METRICS) <= set(frame.columns)
    assert {"launch_s", "own_s", "server.kv_cache_tokens", "state"} <= set(frame.columns)
    assert to_json(frame) == "[]"
    assert to_csv(frame).count("\n") == 1


def test_a_median_needs_every_repeat(records: list[TrialRecord]) -> None:
    outcome = samples.success(samples.repeat(0, 5.0), samples.repeat(1, None))
    frame = trials_frame([dataclasses.replace(records[0], outcome=outcome)])
    assert frame["output_throughput"].isna().tolist() == [True]
