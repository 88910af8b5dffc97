"""Recorded traces in the formats in which they are published."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tuner.errors import UserError
from tuner.workloads.arrivals import Closed, read_trace
from tuner.workloads.reading.traces import RecordedRequest, read_requests
from tuner.workloads.schedule import make_schedule
from tuner.workloads.traffic import Traffic, load_traffic

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.6805900,879,0
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BURST_GPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,Conversation log
180.5,GPT-4,1360.0,6,1366,API log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2]}

{"timestamp": 3052, "input_length": 7234, "output_length": 794, "hash_ids": [0, 28]}
{"timestamp": 3000, "input_length": 10, "output_length": 20}
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "trace"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "gaps", "lengths"),
    [
        (AZURE_2023, [4.314579], [(374, 44), (396, 109)]),
        (AZURE_2024, [0.007405], [(2162, 5), (2399, 6)]),
        (BURST_GPT, [40.0, 135.5], [(472, 18), (1087, 230), (1360, 6)]),
        (MOONCAKE, [3.0, 0.052], [(6755, 500), (10, 20), (7234, 794)]),
        ("\ufeff" + BURST_GPT, [40.0, 135.5], [(472, 18), (1087, 230), (1360, 6)]),
    ],
)
def test_a_published_format_is_read_as_it_is(
    tmp_path: Path, text: str, gaps: list[float], lengths: list[tuple[int, int]]
) -> None:
    file = write(tmp_path, text)
    found = read_requests(file)
    assert [(each.input_tokens, each.output_tokens) for each in found] == lengths
    times = read_trace(file)
    assert times == [each.at_s for each in found]
    assert [b - a for a, b in pairwise(times)] == pytest.approx(gaps, abs=2e-6)


def test_times_of_azure_are_seconds_of_utc(tmp_path: Path) -> None:
    assert read_requests(write(tmp_path, AZURE_2024))[0] == RecordedRequest(1715299200.00993, 2162, 5)


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        ("a,b,c\n1,2,3\n", 1, "this is not the first line of a trace with lengths"),
        ("", 1, "this is not the first line of a trace with lengths"),
        (BURST_GPT + "soon,GPT-4,1,2,3,x\n", 6, "Timestamp, Request tokens, Response tokens are not a time and two"),
        (BURST_GPT + "7\n", 6, "are not a time and two lengths"),
        (BURST_GPT + "7,GPT-4,1.5,2,3,x\n", 6, "are not a time and two lengths"),
        (BURST_GPT + "7,GPT-4,-1,2,3,x\n", 6, "are not a time and two lengths"),
        (BURST_GPT + "inf,GPT-4,1,2,3,x\n", 6, "are not a time and two lengths"),
        (AZURE_2024 + "today,1,2\n", 4, "TIMESTAMP, ContextTokens, GeneratedTokens are not a time and two lengths"),
        (BURST_GPT + '"' + "x" * 200_000 + '",1,2\n', 6, "not CSV: field larger than field limit"),
        (MOONCAKE + "{\n", 5, "not JSON"),
        (MOONCAKE + "[1]\n", 5, "timestamp, input_length, output_length are not a time and two lengths"),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": true, "output_length": 1}\n',
            5,
            "are not a time and two lengths",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, line: int, rule: str) -> None:
    with pytest.raises(UserError, match=rf"trace:{line}: .*{rule}") as caught:
        read_requests(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_trace_without_an_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no request with tokens"):
        read_requests(write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,7,0\n"))


def traffic(folder: Path, classes: str, requests: int = 3) -> Traffic:
    write(folder, BURST_GPT)
    path = folder / "traffic.yaml"
    arrivals = "arrivals: {process: trace, file: trace, speed: 2}\n"
    path.write_text(f"{arrivals}requests: {requests}\nclasses:\n{classes}")
    return load_traffic(path)


def test_a_request_has_the_time_and_the_lengths_of_its_row(tmp_path: Path) -> None:
    made = traffic(tmp_path, "  all: {trace: {file: trace}}\n")
    assert [(each.at_s, each.input_tokens, each.output_tokens) for each in make_schedule(made, 1)] == [
        (0.0, 472, 18),
        (20.0, 1087, 230),
        (87.75, 1360, 6),
    ]
    assert (made.longest_request, made.output_len, made.input_len) == (1366, 230, 1136)
    assert made.files() == [tmp_path / "trace", tmp_path / "trace"]


def test_after_the_last_row_the_first_comes_again(tmp_path: Path) -> None:
    made = traffic(tmp_path, "  all: {trace: {file: trace}}\n", requests=5)
    closed = made.model_copy(update={"arrivals": Closed(users=2)})
    lengths = [each.input_tokens for each in make_schedule(closed, 1)]
    assert lengths == [472, 1087, 1360, 472, 1087]


@pytest.mark.parametrize("more", ["input: 3", "output: 3", "text: {file: prompts.jsonl}"])
def test_a_class_with_a_trace_has_no_other_lengths(tmp_path: Path, more: str) -> None:
    with pytest.raises(UserError, match="a trace has the lengths; leave `input`, `output` and prompts from a file out"):
        traffic(tmp_path, f"  all: {{trace: {{file: trace}}, {more}}}\n")


def test_a_class_without_a_trace_is_stored_as_before(tmp_path: Path) -> None:
    made = traffic(tmp_path, "  all: {input: 3, output: 4}\n")
    assert "trace" not in made.model_dump()["classes"]["all"]
    again = traffic(tmp_path, "  all: {trace: {file: trace}}\n")
    assert Traffic.model_validate_json(again.model_dump_json()) == again
