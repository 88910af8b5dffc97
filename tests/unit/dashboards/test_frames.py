"""Trials, requests and files of a trial as frames, against values worked out by hand."""

import csv
import dataclasses
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from dashboards.frames import (
    latency_arrays,
    length_frame,
    numbered_files,
    rate_frame,
    requests_by_length_frame,
    server_frame,
    to_csv,
    to_json,
    trials_frame,
)
from dashboards.mlflow.run_layout import status, trial_tags
from dashboards.plots.search import progress
from dashboards.tradeoff import finished_configurations
from records.metrics import METRICS
from records.trials import FailureKind, ServerFacts, TrialKind, TrialRecord, Verdict
from storage.errors import StorageError
from tests import store_samples as samples
from tuner.cli.output.progress.lines import trial_line
from tuner.loadgen.result import write_records
from tuner.workloads.results import RequestRecord, RequestStatus

DONE, LATE = RequestStatus.COMPLETED, RequestStatus.TIMED_OUT


def test_latencies_count_from_the_time_that_a_request_was_due(tmp_path: Path) -> None:
    file = tmp_path / "requests-0.jsonl.gz"
    open_loop = RequestRecord(0, "a", DONE, 10, 3, 1.0, 1.5, 2.0, 2.4, 10, 3, (0.1, 0.3))
    closed = RequestRecord(1, "a", DONE, 10, 1, None, 3.0, 3.25, 3.25, 10, 1)
    given_up = RequestRecord(2, "a", LATE, 10, 9, 4.0, 4.0, 4.5, None, None, None, (0.9,))
    write_records(file, [open_loop, closed, given_up])
    found = latency_arrays([file])
    assert found["ttft_ms"].tolist() == pytest.approx([1000.0, 250.0])
    assert found["tpot_ms"].tolist() == pytest.approx([200.0])  # (2.4 - 2.0) / 2; an answer of one token has none
    assert found["itl_ms"].tolist() == pytest.approx([100.0, 300.0])


def test_requests_are_counted_by_both_lengths(tmp_path: Path) -> None:
    file = tmp_path / "requests-0.jsonl.gz"
    lengths = [(64, 65, DONE), (64, 100, LATE), (65, 10, DONE), (None, None, LATE)]
    write_records(file, [RequestRecord(i, "a", s, prompt, answer) for i, (prompt, answer, s) in enumerate(lengths)])
    rows = length_frame([file])[["prompt", "answer", "completed", "failed"]].to_numpy().tolist()
    assert rows == [["1–64", "65–128", 1, 1], ["65–128", "1–64", 1, 0], ["unknown", "unknown", 0, 1]]


def test_without_files_there_is_nothing(tmp_path: Path) -> None:
    assert latency_arrays([]) == {}
    assert length_frame([]).empty
    assert server_frame([]).empty
    assert to_csv(requests_by_length_frame([])) == "class,from,to,offered,completed\n"
    (tmp_path / "requests-0.jsonl.gz").write_text("no records")
    with pytest.raises(StorageError, match=r"requests-0\.jsonl.gz cannot be read"):
        latency_arrays([tmp_path / "requests-0.jsonl.gz"])


def offered(index: int, name: str, tokens: int | None, status: str = "completed") -> RequestRecord:
    return RequestRecord(index, name, RequestStatus(status), planned_input=tokens)


def test_every_offered_request_is_in_one_bin(tmp_path: Path) -> None:
    write_records(
        tmp_path / "requests-0.jsonl.gz",
        [
            *(offered(index, "b", tokens) for index, tokens in enumerate((0, 1, 64, 65, 128, 129))),
            offered(6, "b", 128, "timed_out"),
            offered(7, "b", None, "malformed"),
        ],
    )
    write_records(tmp_path / "requests-1.jsonl.gz", [offered(0, "a", 4097, "timed_out"), offered(1, "b", 100)])
    frame = requests_by_length_frame(numbered_files(tmp_path, "requests-*.jsonl.gz"))
    assert to_csv(frame).splitlines() == [
        "class,from,to,offered,completed,malformed,timed_out",
        "a,4097,8192,1,0,0,1",
        "b,1,64,3,3,0,0",
        "b,65,128,4,3,0,1",
        "b,129,256,1,1,0,0",
        "b,,,1,0,1,0",
    ]


def test_files_are_in_the_order_of_the_benchmarks(tmp_path: Path) -> None:
    for name in (
        "requests-10.jsonl.gz",
        "requests-2.jsonl.gz",
        "requests-0.jsonl.gz",
        "warmup.jsonl.gz",
        "requests-x.jsonl.gz",
    ):
        (tmp_path / name).touch()
    names = [file.name for file in numbered_files(tmp_path, "requests-*.jsonl.gz")]
    assert names == ["requests-0.jsonl.gz", "requests-2.jsonl.gz", "requests-10.jsonl.gz"]
    assert numbered_files(tmp_path / "nowhere", "requests-*.jsonl.gz") == []


HEADER = (
    "rate,held,missed,offered,completed,success_rate,goodput_share,goodput,"
    "p50_ttft_ms,p95_ttft_ms,p99_ttft_ms,p95_tpot_ms"
)


def rates(tmp_path: Path, *rows: tuple[float, bool]) -> pd.DataFrame:
    lines = [f"{rate},{held},{'' if held else 'x<1 y<2'},10,10,1,1,{rate},1,2,3,4" for rate, held in rows]
    (tmp_path / "capacity.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    return rate_frame(tmp_path / "capacity.csv")


@pytest.mark.parametrize(
    ("rows", "capacities"),
    [
        ([(16, True), (32, True), (64, False), (45, True), (54, True), (59, False)], [54]),
        ([(16, True), (32, False), (64, True)], [16]),  # 64 held by chance: a lower rate missed
        ([(16, True), (32, True)], [32]),
        ([(16, True), (32, True), (32, False)], [16]),
        ([(16, False), (8, False)], []),
        ([(16, True), (32, False), (16, True), (24, False)], [16, 16]),  # two searches
        ([], []),
    ],
)
def test_the_capacity_is_the_highest_rate_below_every_miss(
    tmp_path: Path, rows: list[tuple[float, bool]], capacities: list[float]
) -> None:
    frame = rates(tmp_path, *rows)
    assert list(frame["rate"]) == sorted(rate for rate, _ in rows)
    assert list(frame.loc[frame["is_capacity"], "rate"]) == capacities
    assert frame["held"].dtype == frame["is_capacity"].dtype == bool


def test_a_rate_without_completed_requests(tmp_path: Path) -> None:
    (tmp_path / "capacity.csv").write_text(f"{HEADER}\n128,False,x<1,100,0,0,0,,,,,\n64,True,,100,100,1,1,64,5,6,7,8\n")
    frame = rate_frame(tmp_path / "capacity.csv")
    assert frame["missed"].tolist() == ["", "x<1"]
    assert frame["p50_ttft_ms"].isna().tolist() == [False, True]
    assert frame["completed"].tolist() == [100, 0]
    assert frame["is_capacity"].tolist() == [True, False]


def test_the_server_over_several_benchmarks(tmp_path: Path) -> None:
    header = "at_s,running,waiting,kv_usage,preemptions"
    for name, lines in (("0", ["0.5,1,0,0.1,0", "1.0,2,,0.2,0"]), ("1", []), ("2", ["0.5,3,4,0.3,1"])):
        (tmp_path / f"server-{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    frame = server_frame(numbered_files(tmp_path, "server-*.csv"))
    assert frame["at_s"].tolist() == [0.5, 1.0, 1.5]
    assert frame["benchmark"].tolist() == [0.0, 0.0, 2.0]
    assert frame["waiting"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("content", [b"", b"rate,held\n1,True\n", b"\xff\xfe\x00", None])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    for read in (rate_frame, lambda one: requests_by_length_frame([one]), lambda one: server_frame([one])):
        with pytest.raises(StorageError, match=f"^{file} cannot be read: ") as raised:
            read(file)
        assert len(str(raised.value).splitlines()) == 1


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


def test_a_trial_that_was_cut_short_is_shown_as_that_and_has_no_metrics() -> None:
    cut = samples.cut()
    verdict = Verdict({"output_throughput": None}, {"p99_tpot_ms<50": 0.25}, None)
    record = replace(samples.pending(3), outcome=cut, verdict=verdict)
    [row] = trials_frame([record]).to_dict("records")
    assert (row["state"], row["feasible"], row["repeats"]) == ("cut", False, 0)
    assert (row["cut_reason"], row["score_at_most"]) == ("score at most 0.7, 0.9 needed", 0.7)
    assert math.isnan(row["output_throughput"])
    assert row["failure_kind"] is None
    assert trial_line(record, (), None) == "#3 cut short: score at most 0.7, 0.9 needed"
    tags = trial_tags(record, cut)
    assert (tags["state"], tags["cut"], tags["score_at_most"]) == ("cut", "score at most 0.7, 0.9 needed", "0.7")
    assert status(cut) == "FINISHED"
    [shown] = finished_configurations(samples.study(), [record])
    assert shown.failure == "cut short"
    figure = progress([replace(samples.pending(0), outcome=samples.success(), verdict=samples.verdict()), record])
    assert figure is not None
    [bound] = [trace for trace in figure.data if trace.name == "cut short: at most"]
    assert (list(bound.x), list(bound.y)) == ([3], [0.7])
