"""The user's own prompts and recorded traces: the accepted forms, and errors that name their place."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import UserError
from tuner.workloads.reading import UserText, UserTexts, read_texts
from tuner.workloads.schedule import file_notes, make_schedule
from tuner.workloads.traces.formats import read_recording, read_times
from tuner.workloads.traces.recording import RecordedRequest, Unit
from tuner.workloads.traffic import Closed, Traffic, load_traffic

SHARED = '{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello to you"}]}'


def test_lines_and_conversations(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "One", "output_tokens": 5}\n\n{"prompt": "Two"}\n' + SHARED + "\n")
    assert read_texts(file).texts == (UserText("One", 5), UserText("Two"), UserText("Hi", None, "Hello to you"))


def test_lines_that_are_lists_of_turns(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yo"}]\n' * 2)
    assert read_texts(file).texts == (HI, HI)


def test_a_list_in_sharegpts_format(tmp_path: Path) -> None:
    file = tmp_path / "share.json"
    file.write_text(f"[{SHARED}]")
    assert read_texts(file).texts == (UserText("Hi", None, "Hello to you"),)


HELLO = {"from": "human", "value": "Hi"}
YO = {"from": "gpt", "value": "yo"}
HI = UserText("Hi", None, "yo")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"conversations": []}, None),
        ({"conversations": None}, None),
        ({"conversations": [{}, None, "x", {"from": "human"}]}, None),
        ({"conversations": [{"from": "human", "value": None}, YO]}, None),
        ({"conversations": [{"from": "human", "value": " "}, YO]}, None),
        ({"prompt": ""}, None),
        ({"conversations": [YO, HELLO, YO]}, HI),
        ({"conversations": [{"from": "system", "value": "s"}, HELLO, YO]}, HI),
        ({"conversation": [HELLO, {"from": "tool", "value": "{}"}, YO]}, HI),
        ({"conversations": [HELLO, {"from": "human", "value": "again"}, YO]}, UserText("Hi")),
        ({"conversations": [HELLO, {"from": "gpt", "value": None}]}, UserText("Hi")),
        ({"conversations": [{"from": "Human", "value": "Hi"}, {"from": "bing", "value": "yo"}]}, HI),
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yo"}]}, HI),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "Hi"}]}]},
            UserText("Hi"),
        ),
        ({"body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7}}, UserText("Hi", 7)),
        ({"prompt": "Hi", "output_tokens": 7.0}, UserText("Hi", 7)),
        ({"prompt": "Hi", "output_tokens": None, "max_tokens": 7}, UserText("Hi", 7)),
        (None, None),
        ({}, None),
        ({"prompt": None, "messages": [{"role": "user", "content": "Hi"}]}, UserText("Hi")),
        ({"prompt": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yo"}]}, HI),
        ({"prompt": ["Hi"]}, UserText("Hi")),
        ({"messages": '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yo"}]'}, HI),
        ({"messages": "[not JSON"}, UserText("[not JSON")),
        ({"conversations": [{"from": "human", "value": None, "text": "Hi"}, {"from": "gpt", "text": "yo"}]}, HI),
        ({"text_input": "Hi", "output_length": 7}, UserText("Hi", 7)),
        ({"text": "Hi", "timestamp": 5}, UserText("Hi")),
        ({"prompt": "Hi", "prompt_tokens_count": 1, "output_tokens_count": 7}, UserText("Hi", 7)),
        ({"text": "Hi", "max_new_tokens": 7}, UserText("Hi", 7)),
        ({"question_id": 81, "turns": ["Hi", "Rewrite it."], "reference": []}, UserText("Hi")),
        ({"session_id": "a", "turns": [{"text": "Hi"}, {"text": "Again", "delay": 5}]}, UserText("Hi")),
        ({"turns": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yo"}]}, HI),
        ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yo"}], HI),
        (
            {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": []}]},
            UserText("Hi"),
        ),
        ({"prompt": "a\ud83d"}, UserText("a?")),
        ({"prompt": "a\u2028b\x85c"}, UserText("a\u2028b\x85c")),
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_entry_is_read_or_left_out_and_counted(
    tmp_path: Path, entry: Any, expected: UserText | None, ascii_only: bool
) -> None:
    file = tmp_path / "p.jsonl"
    text = "".join(json.dumps(each, ensure_ascii=ascii_only) + "\r\n" for each in ({"prompt": "first"}, entry))
    file.write_bytes(b"\xef\xbb\xbf" + text.encode("utf-8", "replace"))
    texts = (UserText("first"), expected) if expected else (UserText("first"),)
    assert read_texts(file) == UserTexts(texts, 0 if expected else 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe{\x00", "this is UTF-16; save it as UTF-8"),
        (b"\x1f\x8b\x08", "this is compressed with gzip; unpack it"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "this is a pointer of Git LFS, not the file; run `git lfs pull`",
        ),
        (b"PAR1", "this is a Parquet file"),
        (b'{"prompt": "\xe4"}', "byte 0xe4 at position 12 is not UTF-8"),
    ],
)
def test_a_file_that_is_no_text_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"prompts '.*p\.jsonl' cannot be read: {reason}"):
        read_texts(file)


def test_entries_that_are_left_out_are_counted_in_the_notes(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(f'[{SHARED}, {{"conversations": []}}, {{"conversations": []}}]')
    (tmp_path / "t.yaml").write_text(
        "arrivals: {process: closed}\nrequests: 2\nclasses: {a: {text: {file: p.json}, output: 3}}\n"
    )
    assert file_notes(load_traffic(tmp_path / "t.yaml")) == ["p.json: 2 entries without text of a human left out"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "", r"a\.jsonl' is empty; give a file of lines such as"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": \n', r"a\.jsonl:2: not JSON: Expecting value"),
        ("a.jsonl", '{"question": "x"}\n', r"a\.jsonl:1: no text under 'prompt'"),
        ("a.jsonl", '["x"]\n', r"a\.jsonl: entry 1: no text under 'prompt'"),
        ("a.jsonl", '{"prompt": "x", "output_tokens": 0}\n', r"a\.jsonl:1: output_tokens 0 is not a length"),
        ("a.jsonl", '{"conversations": [{"from": "gpt", "value": "x"}]}\n', r"a\.jsonl:1: no entry has a prompt"),
        ("a.jsonl", '{"conversations": {"human": "x"}}\n', r"a\.jsonl:1: conversations .* is not a list of turns"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": [1, 2]}\n', r"a\.jsonl:2: prompt '\[1, 2\]' is not a text"),
        ("a.jsonl", '{"prompt": "x", "output_tokens": 1.5}\n', r"a\.jsonl:1: output_tokens 1.5 is not a length"),
        ("a.json", '{"prompt": "x"}\n{"id": 3}', r"a\.json:2: no text under 'prompt'"),
        ("a.json", "[", r"a\.json:1: not JSON"),
        ("a.json", "[]", r"is an empty list"),
        ("a.json", '[{"prompt": "x"}, 3]', r"a\.json: entry 2: no text under 'prompt'"),
    ],
)
def test_an_error_names_its_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_texts(file)
    assert "\n" not in str(caught.value)


def test_each_prompt_is_sent_once_before_one_is_sent_again(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("".join(f'{{"prompt": "{i}", "output_tokens": 1}}\n' for i in range(5)))
    (tmp_path / "t.yaml").write_text(
        "arrivals: {process: closed, users: 2}\nrequests: 12\nclasses: {a: {text: {file: p.jsonl}}}\n"
    )
    texts = [offered.text for offered in make_schedule(load_traffic(tmp_path / "t.yaml"), 3)]
    assert sorted(texts[:5]) == sorted(texts[5:10]) == [0, 1, 2, 3, 4]  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("text: {file: p.jsonl}", "some prompts of the file state no length of their answer; give `output`"),
        ("text: {file: p.jsonl}, input: 5, output: 5", "have their own lengths; leave `input` out"),
        ("input: 5", "generated prompts need `input` and `output`"),
    ],
)
def test_missing_or_superfluous_lengths_are_refused(tmp_path: Path, fields: str, message: str) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "t.yaml").write_text(f"arrivals: {{process: closed}}\nrequests: 2\nclasses: {{a: {{{fields}}}}}\n")
    with pytest.raises(UserError, match=message):
        load_traffic(tmp_path / "t.yaml")


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
BAILIAN = """{"chat_id": 0, "timestamp": 0.5, "input_length": 13, "output_length": 8, "turn": 1, "type": "text"}
{"chat_id": 1, "timestamp": 1.25, "input_length": 14, "output_length": 9, "turn": 1, "type": "text"}
"""
AZURE_2025 = """TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2024-10-15 00:00:00.067 UTC,0,1500,20
2024-10-15 00:00:01.067 UTC,2,1600,21
"""
SPLITWISE = """request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size
0,2,0,0.0,1,374,44
1,2,0,4.5,1,396,109
"""
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,374,44\n1.25,396,109\n"
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
        (AZURE_2025, [1.0], [(1500, 20), (1600, 21)]),
        (BURST_GPT, [40.0, 135.5], [(472, 18), (1087, 230), (1360, 6)]),
        (MOONCAKE, [3.0, 0.052], [(6755, 500), (10, 20), (7234, 794)]),
        (BAILIAN, [0.75], [(13, 8), (14, 9)]),
        (SPLITWISE, [4.5], [(374, 44), (396, 109)]),
        (VIDUR, [1.0], [(374, 44), (396, 109)]),
        ("\ufeff" + BURST_GPT, [40.0, 135.5], [(472, 18), (1087, 230), (1360, 6)]),
        (BURST_GPT.replace("\n", "\r\n"), [40.0, 135.5], [(472, 18), (1087, 230), (1360, 6)]),
        ("\n" + BURST_GPT.replace(",", ";"), [40.0, 135.5], [(472, 18), (1087, 230), (1360, 6)]),
        (BURST_GPT.replace("\n", ",\n"), [40.0, 135.5], [(472, 18), (1087, 230), (1360, 6)]),
        (BURST_GPT + ",,,,,\n90,GPT-4,5,,5,x\n", [40.0, 135.5], [(472, 18), (1087, 230), (1360, 6)]),
        (f"[{BAILIAN.strip().replace('}', '},', 1)}]", [0.75], [(13, 8), (14, 9)]),
        (BAILIAN.replace("}\n", "},\n"), [0.75], [(13, 8), (14, 9)]),
    ],
)
def test_a_published_format_is_read_as_it_is(
    tmp_path: Path, text: str, gaps: list[float], lengths: list[tuple[int, int]]
) -> None:
    file = write(tmp_path, text)
    found = read_recording(file).requests
    assert [(each.input_tokens, each.output_tokens) for each in found] == lengths
    times = read_times(file, None)
    assert [b - a for a, b in pairwise(times)] == pytest.approx(gaps, abs=2e-6)


def test_times_of_azure_are_seconds_of_utc(tmp_path: Path) -> None:
    assert read_recording(write(tmp_path, AZURE_2024)).requests[0] == RecordedRequest(1715299200.00993, 2162, 5)


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        ("a,b,c\n1,2,3\n", 1, "this is not the first line of a trace with lengths"),
        ("", 1, "this is not the first line of a trace with lengths"),
        ("Timestamp,Request tokens\n1,2\n", 1, "no column has the tokens of the answer .Timestamp, Request tokens."),
        (BURST_GPT + "2024-05-10 00:00:00,GPT-4,1,2,3,x\n", 6, "are not a time and two lengths"),
        (BURST_GPT + "1_0,GPT-4,1,2,3,x\n", 6, "are not a time and two lengths"),
        (BURST_GPT + "soon,GPT-4,1,2,3,x\n", 6, "Timestamp, Request tokens, Response tokens are not a time and two"),
        (BURST_GPT + "7\n", 6, "are not a time and two lengths"),
        (BURST_GPT + "7,GPT-4,1.5,2,3,x\n", 6, "are not a time and two lengths"),
        (BURST_GPT + "7,GPT-4,-1,2,3,x\n", 6, "are not a time and two lengths"),
        (BURST_GPT + "inf,GPT-4,1,2,3,x\n", 6, "are not a time and two lengths"),
        (AZURE_2024 + "today,1,2\n", 4, "TIMESTAMP, ContextTokens, GeneratedTokens are not a time and two lengths"),
        (
            "timestamp,input_tokens,output_tokens\n11/30/2026 10:56:27 AM,1,2\n",
            2,
            "'11/30/2026 10:56:27 AM', '1', '2'; a date is such as 2026-11-30T10:56:27.; correct or remove",
        ),
        ("sep=;\n\ntimestamp;input_tokens;output_tokens\n1,5;1;2\n", 4, "negative .'1,5', '1', '2'; a date"),
        ("# by a tool\n1,2,3\n", 1, "no column has the time .# by a tool."),
        (BURST_GPT + '"' + "x" * 200_000 + '",1,2\n', 6, "not CSV: field larger than field limit"),
        (
            ",".join(map(str, range(200_000))) + "\n" + "1,2,3\n" * 80_000,
            1,
            "200,000 columns, and a trace has at most 1,000",
        ),
        (BURST_GPT.partition("\n")[0] + "\n7\n", 2, "are not a time and two lengths"),
        (BURST_GPT + "soon,GPT-4,1,2,3,x\n", 6, "or the time is negative .'soon', '1', '2'."),
        (MOONCAKE + "{\n", 5, "not JSON"),
        (MOONCAKE + '{"delay": 9, "input_length": 3, "output_length": 1}\n', 5, "it has a delay and no timestamp"),
        (MOONCAKE + "[1]\n", 5, "this is no row with names"),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": true, "output_length": 1}\n',
            5,
            "are not a time and two lengths",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, line: int, rule: str) -> None:
    with pytest.raises(UserError, match=rf"trace:{line}: .*{rule}") as caught:
        read_recording(write(tmp_path, text))
    assert "\n" not in str(caught.value)


SMALL = "timestamp,input_tokens,output_tokens\n1,10,20\n2,30,40\n"


@pytest.mark.parametrize(
    "text",
    [
        "# by a tool, 2026\n#\n\n" + SMALL,
        "sep=;\n" + SMALL.replace(",", ";"),
        '"sep=|"\n# by a tool\n' + SMALL.replace(",", "|"),
        "# 2026\n# " + SMALL,  # names as NumPy writes them
    ],
)
def test_what_stands_above_the_names_of_columns_is_passed_over(tmp_path: Path, text: str) -> None:
    assert read_recording(write(tmp_path, text)).requests == read_recording(write(tmp_path, SMALL)).requests


def test_a_trace_without_an_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no request with tokens"):
        read_recording(write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,7,0\n"))


def row(at: object, more: str = "") -> str:
    return f'{{"timestamp": {at}, "input_length": 3, "output_length": 4{more}}}\n'


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        (row(500) + row(2000), "ms", [0.5, 2.0]),
        (row(500) + row(2000), "s", [500.0, 2000.0]),
        (row(500, ', "hash_ids": [1]') + row(2000), "us", [0.0005, 0.002]),
        (row(1_700_000_000) + row(1_700_000_003), None, [1_700_000_000.0, 1_700_000_003.0]),
        (row(1_700_000_000_000) + row(1_700_000_000_500), None, [1_700_000_000.0, 1_700_000_000.5]),
        (row(1_700_000_000_000_000) + row(1_700_000_002_000_000), None, [1_700_000_000.0, 1_700_000_002.0]),
        (row(1_700_000_000_000_000_000) + row(1_700_000_001_000_000_000), None, [1_700_000_000.0, 1_700_000_001.0]),
        (row('"2024-05-10T00:00:00Z"') + row('"2024-05-10 02:00:01+02:00"'), None, [1715299200.0, 1715299201.0]),
        ("timestamp_ms,prompt_tokens,completion_tokens\n500,3,4\n2000,3,4\n", None, [0.5, 2.0]),
        ("Arrival time (us),input_len,output_len\n500000,3,4\n2000000,3,4\n", None, [0.5, 2.0]),
        ("timestamp_start_unix_ms,input_tokens,output_tokens\n500,3,4\n2000,3,4\n", None, [0.5, 2.0]),
        ("created_at,input_tokens,output_tokens\n2024-05-10T00:00:00Z,3,4\n", None, [1715299200.0]),
        ("500\n2000\n", "ms", [0.5, 2.0]),
        ("0.5,\n\n2\n", None, [0.5, 2.0]),
    ],
)
def test_the_unit_is_what_the_user_or_the_format_says(
    tmp_path: Path, text: str, unit: Unit | None, expected: list[float]
) -> None:
    assert read_times(write(tmp_path, text), unit) == expected


@pytest.mark.parametrize(
    ("text", "unit", "rule"),
    [
        (row(500) + row(2000), None, r"its times is not known \(0.000667 requests/s in s, 0.667 requests/s in ms"),
        (row(0.5, ', "hash_ids": [1]') + row(2), None, r"its times is not known \(0.667 requests/s in s, 667 requ"),
        (row(7) + row(7), None, r"its times is not known \(all are equal\)"),
        # 40 tokens in 3 blocks: of 16 tokens, as in traces in seconds, not of Mooncake's 512
        (row(500, ', "hash_ids": [1, 2, 3]') + row(2000), None, r"its times is not known \(0.000667 requests/s in s"),
        (
            "timestamp_ns,input_len,output_len\n1700000000000000,1,2\n1700001000000000,1,2\n",
            None,
            "its times are those of a clock in us, and its format or its column has ns; give the import the unit",
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n5,2,3\n", None, "is not known .0.25 requests/s in s"),
        (
            "".join(row(at, ', "hash_ids": []') for at in (0, 0, 1)),
            None,
            r"read in ms, its 3 requests arrive at 2e\+03 requests/s; the unit is suspect",
        ),
        (VIDUR + "9e9,1,1\n", None, "read in s, its 3 requests arrive at 2.22e-10 requests/s; the unit is suspect"),
        ("0\n0.0001\n", None, r"read in s, its 2 requests arrive at 1e\+04 requests/s; the unit is suspect"),
        (AZURE_2024, "ms", "its times are dates, which have no unit ms; leave `unit` out"),
    ],
)
def test_a_unit_that_nobody_tells_is_asked_for(tmp_path: Path, text: str, unit: Unit | None, rule: str) -> None:
    with pytest.raises(UserError, match=rule) as caught:
        read_times(write(tmp_path, text), unit)
    assert "\n" not in str(caught.value)


def test_lengths_alone_need_no_unit(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(row(500) + row(2000))
    (tmp_path / "t.yaml").write_text(
        "arrivals: {process: poisson, rate: 1}\nrequests: 2\nclasses: {a: {trace: {file: trace}}}\n"
    )
    assert [each.input_tokens for each in make_schedule(load_traffic(tmp_path / "t.yaml"), 1)] == [3, 3]


def test_the_notes_have_the_rate_and_the_span_that_are_sent(tmp_path: Path) -> None:
    made = traffic(tmp_path, "  all: {trace: {file: trace}}\n")
    assert file_notes(made) == [
        "trace trace: 3 requests in 87.75 s, 0.0228 requests/s at speed 2",  # 5, 45 and 180.5 s, twice as fast
        "trace: 1 entry without a prompt's or an answer's tokens left out",
        "trace: columns that are not read: Model, Total tokens, Log Type",
    ]


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


def test_a_trace_at_another_rate_is_sent_faster(tmp_path: Path) -> None:
    made = traffic(tmp_path, "  all: {trace: {file: trace}}\n")
    assert made.rate is None
    assert made.mean_rate == pytest.approx(2 / 87.75)  # three requests in 175.5 s, twice as fast
    faster = made.at_rate(4 / 87.75)
    assert faster.mean_rate == pytest.approx(4 / 87.75)
    assert [each.at_s for each in make_schedule(faster, 1)] == pytest.approx([0.0, 10.0, 43.875])
    assert made.at_rate_for_same_duration(20 / 87.75).requests == 30
    whole = made.model_copy(update={"requests": None, "duration_s": 50.0})
    assert whole.mean_rate == pytest.approx(1 / 20)
