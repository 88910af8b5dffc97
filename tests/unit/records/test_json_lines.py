"""Tables as compressed JSON."""

import gzip
from pathlib import Path

import pandas as pd
import pytest

from records.json_lines import read_rows, write_rows

ROWS = [{"index": 0, "gaps_s": (0.1, 1e-17), "error": "\u2028 größe \ud800"}, {"index": 1, "gaps_s": [], "error": None}]


def test_rows_are_read_back_unchanged(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl.gz", ROWS)
    assert read_rows(tmp_path / "a.jsonl.gz") == [{**row, "gaps_s": list(row["gaps_s"])} for row in ROWS]  # type: ignore[call-overload]
    write_rows(tmp_path / "b.jsonl.gz", ROWS)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_pandas_reads_them(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl.gz", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    assert pd.read_json(tmp_path / "a.jsonl.gz", lines=True)["b"].tolist() == ["x", "y"]


def test_no_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl.gz", [])
    assert read_rows(tmp_path / "a.jsonl.gz") == []


@pytest.mark.parametrize(
    "content",
    [
        b"PAR1",
        gzip.compress(b'{"a": 1}\n')[:-9],
        gzip.compress(b'{"a": 1}\n')[:12] + b"\xff" * 20,
        gzip.compress(b'{"a": \n'),
        gzip.compress(b"[1]\n"),
        gzip.compress(b"\xff\n"),
    ],
    ids=["other", "cut", "torn", "no JSON", "no object", "no text"],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        read_rows(tmp_path / "a.jsonl.gz")
