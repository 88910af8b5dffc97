"""Requests by prompt length, rates and server states of one trial, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dashboards.frames import numbered_files, rate_frame, requests_by_length_frame, server_frame, to_csv
from storage.errors import StorageError
from tuner.loadgen.result import write_records
from tuner.workloads.results import RequestRecord, RequestStatus


def offered(index: int, name: str, tokens: int | None, status: str = "completed") -> RequestRecord:
    return RequestRecord(index, name, RequestStatus(status), planned_input=tokens)


def test_every_offered_request_is_in_one_bin(tmp_path: Path) -> None:
    write_records(
        tmp_path / "requests-0.parquet",
        [
            *(offered(index, "b", tokens) for index, tokens in enumerate((0, 1, 64, 65, 128, 129))),
            offered(6, "b", 128, "timed_out"),
            offered(7, "b", None, "malformed"),
        ],
    )
    write_records(tmp_path / "requests-1.parquet", [offered(0, "a", 4097, "timed_out"), offered(1, "b", 100)])
    frame = requests_by_length_frame(numbered_files(tmp_path, "requests-*.parquet"))
    assert to_csv(frame).splitlines() == [
        "class,from,to,offered,completed,malformed,timed_out",
        "a,4097,8192,1,0,0,1",
        "b,1,64,3,3,0,0",
        "b,65,128,4,3,0,1",
        "b,129,256,1,1,0,0",
        "b,,,1,0,1,0",
    ]


def test_without_files_there_are_no_rows() -> None:
    assert to_csv(requests_by_length_frame([])) == "class,from,to,offered,completed\n"
    assert server_frame([]).empty


def test_files_are_in_the_order_of_the_benchmarks(tmp_path: Path) -> None:
    for name in (
        "requests-10.parquet",
        "requests-2.parquet",
        "requests-0.parquet",
        "warmup.parquet",
        "requests-x.parquet",
    ):
        (tmp_path / name).touch()
    names = [file.name for file in numbered_files(tmp_path, "requests-*.parquet")]
    assert names == ["requests-0.parquet", "requests-2.parquet", "requests-10.parquet"]
    assert numbered_files(tmp_path / "nowhere", "requests-*.parquet") == []


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
