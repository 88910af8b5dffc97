"""Latencies and lengths of single requests, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.frames import latency_arrays, length_frame
from storage.errors import StorageError
from tuner.loadgen.result import write_records
from tuner.workloads.results import RequestRecord, RequestStatus

DONE, LATE = RequestStatus.COMPLETED, RequestStatus.TIMED_OUT


def test_latencies_count_from_the_time_that_a_request_was_due(tmp_path: Path) -> None:
    file = tmp_path / "requests-0.parquet"
    open_loop = RequestRecord(0, "a", DONE, 10, 3, 1.0, 1.5, 2.0, 2.4, 10, 3, (0.1, 0.3))
    closed = RequestRecord(1, "a", DONE, 10, 1, None, 3.0, 3.25, 3.25, 10, 1)
    given_up = RequestRecord(2, "a", LATE, 10, 9, 4.0, 4.0, 4.5, None, None, None, (0.9,))
    write_records(file, [open_loop, closed, given_up])
    found = latency_arrays([file])
    assert found["ttft_ms"].tolist() == pytest.approx([1000.0, 250.0])
    assert found["tpot_ms"].tolist() == pytest.approx([200.0])  # (2.4 - 2.0) / 2; an answer of one token has none
    assert found["itl_ms"].tolist() == pytest.approx([100.0, 300.0])


def test_requests_are_counted_by_both_lengths(tmp_path: Path) -> None:
    file = tmp_path / "requests-0.parquet"
    lengths = [(64, 65, DONE), (64, 100, LATE), (65, 10, DONE), (None, None, LATE)]
    write_records(file, [RequestRecord(i, "a", s, prompt, answer) for i, (prompt, answer, s) in enumerate(lengths)])
    rows = length_frame([file])[["prompt", "answer", "completed", "failed"]].to_numpy().tolist()
    assert rows == [["1–64", "65–128", 1, 1], ["65–128", "1–64", 1, 0], ["unknown", "unknown", 0, 1]]


def test_without_files_there_is_nothing(tmp_path: Path) -> None:
    assert latency_arrays([]) == {}
    assert length_frame([]).empty
    (tmp_path / "requests-0.parquet").write_text("no parquet")
    with pytest.raises(StorageError, match=r"requests-0\.parquet cannot be read"):
        latency_arrays([tmp_path / "requests-0.parquet"])
