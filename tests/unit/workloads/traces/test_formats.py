"""Every format of recorded traffic: what is read, what is left out, and what is refused."""

import gzip
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from records import plugins as registered
from records.plugins import PluginError
from tests.unit.workloads.traces import samples
from tuner.errors import SettingError, UserError
from tuner.workloads.traces.formats import read_as, read_recording, trace_formats
from tuner.workloads.traces.recording import RecordedRequest, Recording
from tuner.workloads.traces.requests_file import requests_text
from tuner.workloads.traces.source import ReadOptions, TraceFormat


def read(folder: Path, content: str | bytes, name: str | None = None, **options: object) -> Recording:
    file = folder / "trace"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_as(file, name, ReadOptions(**options))  # type: ignore[arg-type]


def rows(recording: Recording) -> list[tuple[int, int, int | None]]:
    return [(each.input_tokens, each.output_tokens, each.session) for each in recording.requests]


def seconds(recording: Recording) -> list[float]:
    times = recording.times_s(None)
    return [at - times[0] for at in times]


def test_mooncake_has_blocks_of_512_tokens(tmp_path: Path) -> None:
    found = read(tmp_path, samples.MOONCAKE)
    assert (found.title, found.block_tokens, found.unit) == ("Mooncake", 512, "ms")
    assert [each.blocks for each in found.requests] == [(0, 1, 2), (0, 1, 3), (0,), (0, 1, 2)]
    assert seconds(found) == [0.0, 1.0, 3.0, 4.0]


def test_bailian_has_blocks_of_16_tokens_and_sessions_of_followed_chats(tmp_path: Path) -> None:
    found = read(tmp_path, samples.BAILIAN)
    assert (found.title, found.block_tokens, found.unit) == ("Bailian", 16, "s")
    assert [each.blocks for each in found.requests] == [(0, 1), (2,), (0, 3, 4), (0, 3, 5)]
    assert [each.session for each in found.requests] == [0, 1, 0, 0]
    assert seconds(found) == [0.0, 0.5, 2.0, 9.0]


def test_weka_has_conversations_with_subagents_and_blocks_of_their_own(tmp_path: Path) -> None:
    found = read(tmp_path, samples.WEKA)
    assert (found.title, found.block_tokens, found.unit) == ("WekaIO", 64, "s")
    told = [(each.at, each.input_tokens, each.blocks, each.turn, each.pause) for each in found.requests]
    assert told == [
        (0.0, 100, (0, 1), 0, None),
        (0.0, 64, (3,), 0, None),  # block 1 of another conversation
        (2.5, 9, (), 0, None),
        (6.0, 64, (0,), 0, None),
        (8.0, 150, (0, 1, 2), 1, 5.0),  # 3 s of the first answer and 5 s of thought
    ]
    assert [each.session for each in found.requests] == [0, 2, 3, 1, 0]
    assert "its 2 conversations all begin at 0, because nobody says when each began" in found.remarks
    together = read(tmp_path, samples.WEKA.replace('"local"', '"global"'))
    assert [each.blocks for each in together.requests] == [(0, 1), (0,), (), (0,), (0, 1, 2)]
    alone = read(tmp_path, samples.WEKA.splitlines()[0])
    assert (len(alone.requests), alone.remarks) == (3, ("its blocks have 64 tokens, as the file says",))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (('"t": 8.0', '"u": 8.0'), "trace:1: this is no conversation with id, block_size and requests, each with t,"),
        (('"block_size": 64', '"block_size": 0'), "trace:1: its blocks of 0 tokens are not those before it"),
        (('"in": 150', '"in": -1'), "trace:1: this is no conversation"),
    ],
)
def test_a_conversation_with_a_mistake_is_refused(tmp_path: Path, change: tuple[str, str], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        read(tmp_path, samples.WEKA.replace(*change))


def test_blocks_may_be_a_list_in_a_cell_of_csv(tmp_path: Path) -> None:
    table = 'timestamp,input_length,output_length,hash_ids\n0,1000,5,"[7, 8]"\n3000,600,5,"[7, 9]"\n'
    found = read(tmp_path, table)
    assert (found.title, [each.blocks for each in found.requests]) == ("Mooncake", [(0, 1), (0, 2)])
    found = read(tmp_path, table.replace("hash_ids", "block_ids"), block_tokens=512)
    assert [each.blocks for each in found.requests] == [(0, 1), (0, 2)]


def test_burst_gpt_has_sessions_and_failures(tmp_path: Path) -> None:
    found = read(tmp_path, samples.BURST_GPT_3)
    assert rows(found) == [(472, 18, 0), (1087, 230, 0), (417, 276, None)]
    assert found.left_out == {"a prompt's or an answer's tokens": 1}


def test_litellm_leaves_out_what_no_engine_answered(tmp_path: Path) -> None:
    found = read(tmp_path, samples.LITELLM)
    assert (found.title, found.dates) == ("LiteLLM", True)
    assert rows(found) == [(100, 20, 0), (150, 30, 0)]
    assert seconds(found) == [0.0, 2.0]
    assert found.left_out == {
        "a number of its own: it is in the file twice": 1,
        "an engine: the proxy's cache answered": 1,
        "an answer of text: another kind of call": 1,
        "success": 1,
    }


@pytest.mark.parametrize("pack", [str.encode, lambda text: gzip.compress(text.encode())])
def test_dynamo_has_hashes_and_sessions(tmp_path: Path, pack: Callable[[str], bytes]) -> None:
    found = read(tmp_path, pack(samples.DYNAMO))
    assert (found.title, found.block_tokens) == ("Dynamo's request trace", 64)
    assert rows(found) == [(128, 16, 0), (150, 16, 0)]
    assert [each.blocks for each in found.requests] == [(0, 1), (0, 1, 2)]
    assert seconds(found) == [0.0, 2.5]
    assert found.left_out == {"replay data": 1}


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (samples.dynamo(1, 64, [1, 2, 3], None), "are not those of the records before, or too many for the prompt"),
        (samples.dynamo(1, 64, [1], None).replace("v1", "v2"), "its schema is 'dynamo.request.trace.v2'"),
        (samples.dynamo(1, 64, [1], None).replace('"trace_block_size": 64', '"trace_block_size": 32'), "not those"),
        (samples.dynamo(1, -5, [1], None), "a `request_end` has no time, lengths and hashes"),
    ],
)
def test_a_wrong_record_of_dynamo_is_named(tmp_path: Path, line: str, rule: str) -> None:
    with pytest.raises(UserError, match=rf"trace:5: .*{rule}"):
        read(tmp_path, samples.DYNAMO + line)


def lines_of_spans() -> str:
    return "\n".join(
        json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [each]}]}]}, separators=(", ", ": "))
        for each in samples.SPANS
    )


def snake(value: Any) -> Any:
    """Return spans with the names that protobuf's own JSON has by `preserving_proto_field_name`."""
    if isinstance(value, dict):
        return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key): snake(of) for key, of in value.items()}
    return [snake(each) for each in value] if isinstance(value, list) else value


def protobuf(framed: bool) -> bytes:
    json_format = pytest.importorskip("google.protobuf.json_format")
    trace = pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2")
    content: bytes = json_format.ParseDict(samples.OTLP, trace.TracesData()).SerializeToString()
    return len(content).to_bytes(4) + content if framed else content


@pytest.mark.parametrize(
    "content",
    [
        lambda: json.dumps(samples.OTLP),
        lambda: json.dumps(samples.OTLP, indent=2),
        lines_of_spans,
        lambda: json.dumps(snake(samples.OTLP)),
        lambda: json.dumps([samples.OTLP]),
        lambda: re.sub(
            r"gen_ai\.usage\.(in|prompt|out|completion)\w+",
            lambda found: f"llm.token_count.{'prompt' if found[1] in ('in', 'prompt') else 'completion'}",
            json.dumps(samples.OTLP),
        ),
        lambda: json.dumps(samples.OTLP).replace("scopeSpans", "instrumentationLibrarySpans"),
        lambda: protobuf(framed=False),
        lambda: protobuf(framed=True),
    ],
)
def test_spans_count_once_and_only_where_text_is_generated(tmp_path: Path, content: Callable[[], str | bytes]) -> None:
    found = read(tmp_path, content())
    assert found.title == "OpenTelemetry's spans"
    assert rows(found) == [(100, 20, 0), (200, 40, 0)]
    assert seconds(found) == [0.0, 3.0]
    assert found.left_out == {
        "tokens of its own: it contains another span": 1,
        "an answer of text: another operation": 1,
    }


def test_protobuf_without_its_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.proto.trace.v1.trace_pb2", None)
    with pytest.raises(UserError, match="needs the package `opentelemetry-proto`, which is not installed"):
        read(tmp_path, b"\x0a\x00\x12", "otlp")


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("timestamp,prompt_tokens,completion_tokens\n".encode("utf-16"), "this is UTF-16; save it as UTF-8"),
        (lzma.compress(b"timestamp"), "this is compressed; unpack it"),
        (b"PK\x03\x04\x14\0\0\0", "this is a ZIP archive; unpack it"),
    ],
)
def test_another_kind_of_file_is_not_taken_for_protobuf(tmp_path: Path, content: bytes, rule: str) -> None:
    with pytest.raises(UserError, match=rule):
        read(tmp_path, content)


def test_whole_seconds_are_not_taken_for_mooncake_s_ms(tmp_path: Path) -> None:
    # one request every 4 s is one every 4 ms, 250 requests/s, under Mooncake's names
    with pytest.raises(UserError, match=r"the unit of its times is not known \(0.25 requests/s in s, 250 requests/s"):
        seconds(read(tmp_path, "".join(BLOCKS.format(4 * at, 600, [1, 2]) for at in range(9))))


def test_the_log_of_vllm_has_ids_or_texts(tmp_path: Path) -> None:
    found = read(tmp_path, samples.VLLM_DEBUG)
    assert rows(found) == [(4, 3, None), (2, 2, None)]  # the second answer: 8 characters, 4 a token
    assert seconds(found) == [0.0, 6.0]  # over the end of the year
    assert found.left_out == {"a prompt in the log, which needs the level DEBUG": 1}
    assert [remark.split(",")[0] for remark in found.remarks] == ["lengths are estimates", "times are whole seconds"]


def test_the_log_of_an_older_vllm(tmp_path: Path) -> None:
    assert rows(read(tmp_path, samples.VLLM_OLD)) == [(4, 1, None)]  # 15 and 4 characters
    with_years = re.sub(r"(?<= )(?=\d\d-\d\d )", "2026-", samples.VLLM_OLD)
    assert with_years.count("2026-") >= 2
    assert rows(read(tmp_path, with_years)) == [(4, 1, None)]


def test_a_log_that_cuts_texts_has_no_lengths_of_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1 without the whole of its text"):
        read(tmp_path, "INFO 05-10 09:00:00 [x.py:1] args: {'max_log_len': 15}\n" + samples.VLLM_OLD)


def test_conversations_grow_and_share_their_beginnings(tmp_path: Path) -> None:
    found = read(tmp_path, samples.SHARE_GPT)
    assert (found.title, found.timed, found.block_tokens) == ("ShareGPT", False, 16)
    # 64 + 64 characters are 32 tokens; with the answer, its line end and the next turn, 128 + 9 + 64 are 51
    assert rows(found) == [(32, 2, 0), (51, 1, 0), (17, 1, 1)]
    first, second, other = (each.blocks for each in found.requests)
    assert second[:2] == first
    assert other[0] == first[0]
    assert other[1] not in first
    assert found.left_out == {"an answer to a human's text": 2}
    with pytest.raises(UserError, match="a file of ShareGPT has no times; give arrivals with a rate"):
        found.times_s(None)


def test_a_tokenizer_counts_texts(tmp_path: Path) -> None:
    found = read(tmp_path, samples.SHARE_GPT, encode=lambda text: [ord(each) for each in text])
    assert rows(found)[0] == (128, 8, 0)
    assert "lengths are estimates" not in " ".join(found.remarks)


def test_no_text_and_no_number_of_the_log_is_kept(tmp_path: Path) -> None:
    for sample in (samples.LITELLM, samples.VLLM_DEBUG, samples.SHARE_GPT, samples.DYNAMO, samples.BAILIAN):
        found = read(tmp_path, sample)
        times = [float(place) for place in range(len(found.requests))]
        written = requests_text(found.requests, times, found.block_tokens)
        assert not {"Anna", "hhh", "run:planner", "14879255164371896291", "s1", "90"} & {*written.split('"')}
        assert "14879255164371896291" not in written


def test_the_own_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    requests = (RecordedRequest(0.0, 20, 3, (0, 1), 4), RecordedRequest(1.5, 9, 1))
    found = read(tmp_path, requests_text(requests, [0.0, 1.5], 16))
    assert found.requests == (RecordedRequest(0.0, 20, 3, (0, 1), 0), requests[1])
    assert (found.block_tokens, found.unit) == (16, "s")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"tuner_requests": 2, "block_tokens": 16}\n', "trace:1: not version 1 of a file of requests"),
        ('{"tuner_requests": 1, "block_tokens": 0}\n', "trace:1: not version 1"),
        ('{"tuner_requests": 1, "block_tokens": 16}\n{"at_s": -1, "input": 1, "output": 1}\n', "trace:2: this is no"),
        (
            '{"tuner_requests": 1, "block_tokens": 4}\n{"at_s": 1, "input": 1, "output": 1, "blocks": [1, 2]}\n',
            "trace:2",
        ),
        ('{"tuner_requests": 1, "block_tokens": null}\n', "has no request with tokens"),
    ],
)
def test_a_wrong_file_of_requests_is_refused(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(UserError, match=rule):
        read(tmp_path, text)


BLOCKS = '{{"timestamp": {}, "input_length": {}, "output_length": 5, "hash_ids": {}}}\n'


def test_a_size_of_blocks_that_only_one_fits_is_found_and_told(tmp_path: Path) -> None:
    found = read(tmp_path, BLOCKS.format(0.5, 100, [1, 2, 3, 4]) + BLOCKS.format(1.5, 40, [1, 2]), unit="s")
    assert found.block_tokens == 32
    assert found.remarks == ("its blocks have 32 tokens, the only size that fits",)


def test_blocks_of_unknown_size_are_left_out_and_told(tmp_path: Path) -> None:
    found = read(tmp_path, BLOCKS.format(0.5, 1, [1, 2]))
    assert (found.block_tokens, found.requests[0].blocks) == (None, ())
    assert "because their size is not known" in found.remarks[0]


def test_prompts_with_blocks_for_their_beginning_are_told(tmp_path: Path) -> None:
    found = read(tmp_path, BLOCKS.format(5, 5000, [1]))
    assert "prompts with blocks for their beginning only: 1; the rest is taken as their own" in found.remarks


@pytest.mark.parametrize("cell", ["11|22", "11;22", '"11,22"', "0x1f 0x2e", '"[11, 22]"'])
def test_blocks_in_a_cell_are_read_with_the_size_beside_them(tmp_path: Path, cell: str) -> None:
    """Frontier writes `11|22`."""
    head = "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids,block_size,priority\n"
    found = read(tmp_path, f"{head}0.5,40,5,a,{cell},32,3\n1.5,9,5,b,11,32,3\n")
    assert [len(each.blocks) for each in found.requests] == [2, 1]
    assert found.block_tokens == 32
    assert "its blocks have 32 tokens, as the file says" in found.remarks
    assert "columns that are not read: priority" in found.remarks


def test_counts_within_the_usage_of_a_log_leave_nothing_unread(tmp_path: Path) -> None:
    row = '{{"ts": {}, "usage": {{"prompt_tokens": 10, "completion_tokens": 5}}}}\n'
    found = read(tmp_path, row.format(1751790000) + row.format(1751790002))
    assert [(each.input_tokens, each.output_tokens) for each in found.requests] == [(10, 5), (10, 5)]
    assert not [remark for remark in found.remarks if "usage" in remark]


def test_a_long_cell_that_is_no_list_is_refused_at_once(tmp_path: Path) -> None:
    text = f"arrived_at,num_prefill_tokens,num_decode_tokens,block_hash_ids\n0.5,40,5,{'1   ' * 200}x\n"
    with pytest.raises(UserError, match="are no block numbers"):
        read(tmp_path, text)


def test_a_column_that_later_rows_have_is_read(tmp_path: Path) -> None:
    rest = '"input_length": 64, "output_length": 5'
    text = f'{{"timestamp": 5, {rest}}}\n{{"timestamp": 9, {rest}, "hash_ids": [1], "session_id": "s"}}\n'
    assert read(tmp_path, text).requests[1].blocks == (0,)
    assert read(tmp_path, text).requests[1].session == 0


def test_a_stated_size_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="more blocks than its length has parts of 512 tokens"):
        read(tmp_path, samples.BAILIAN, block_tokens=512)


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    table = "when_ms,in,out,who\n0,5,6,x\n1500,7,8,x\n"
    columns = {"time": "when_ms", "input": "in", "output": "out", "session": "who"}
    found = read(tmp_path, table, columns=columns)
    assert rows(found) == [(5, 6, 0), (7, 8, 0)]
    assert seconds(found) == [0.0, 1.5]
    with pytest.raises(UserError, match="no column is called 'inn'; there are when_ms, in, out, who"):
        read(tmp_path, table, columns={**columns, "input": "inn"})


@pytest.mark.parametrize(
    "content",
    [
        # Anthropic does not count in `input_tokens` what its cache had, or now has: 1 + 3 + 1 and 7 + 0 + 0
        '{"created": 1790000000, "usage": {"input_tokens": 1, "cache_read_input_tokens": 3, '
        '"cache_creation_input_tokens": 1, "output_tokens": 6}}\n'
        '{"created": 1790000002, "usage": {"input_tokens": 7, "output_tokens": 8}}\n',
        '{"created": 1790000000, "usage": {"prompt_tokens": 5, "completion_tokens": 6}}\n'
        '{"created": 1790000002, "usage": {"prompt_tokens": 7, "completion_tokens": 8}}\n',
        # Bedrock's log counts as Anthropic does; Gemini's prompts count what is cached, its answers not their thoughts
        '{"created": 1790000000, "input": {"inputTokenCount": 1, "cacheReadInputTokenCount": 4}, '
        '"output": {"outputTokenCount": 6}}'
        '\n{"created": 1790000002, "input": {"inputTokenCount": 7}, "output": {"outputTokenCount": 8}}\n',
        '{"created": 1790000000, "response": {"usageMetadata": {"promptTokenCount": 5, "cachedContentTokenCount": 4, '
        '"candidatesTokenCount": 4, "thoughtsTokenCount": 2}}}\n'
        '{"created": 1790000002, "response": {"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 8}}}\n',
        '{"created": 1790000000, "message": {"usage": {"input_tokens": 5, "output_tokens": 6}}}\n'
        '{"created": 1790000002, "message": {"usage": {"input_tokens": 7, "output_tokens": 8}}}\n',
        # Langfuse's types are parts of the whole, or in older rows the whole beside its parts; in CSV they are text
        '{"startTime": "2026-01-01T10:00:00Z", "promptTokens": 2, "usageDetails": {"input": 2, "output": 6, '
        '"cache_read_input_tokens": 3, "total": 11}}\n'
        '{"startTime": "2026-01-01T10:00:02Z", "usageDetails": {"input": 7, "input_cached_tokens": 4, "output": 8, '
        '"total": 15}}\n',
        '{"startTime": "2026-01-01T10:00:00Z", "usage": {"input": 5, "output": 6, "unit": "TOKENS"}}\n'
        '{"startTime": "2026-01-01T10:00:02Z", "usage": {"input": 7, "output": 8, "unit": "TOKENS"}}\n',
        'start_time,usage_details\n2026-01-01 10:00:00,"{""input"":5,""output"":6}"\n'
        '2026-01-01 10:00:02,"{""input"":7,""output"":8}"\n',
        "ts,tokens_in,tokens_out\n1790000000,5,6\n1790000002,7,8\n",
        "start_time,gen_ai.usage.input_tokens,gen_ai.usage.output_tokens\n1790000000,5,6\n1790000002,7,8\n",
        "TimeGenerated,PromptTokens,CompletionTokens\n2026-01-01T10:00:00Z,5,6\n2026-01-01T10:00:02Z,7,8\n",
        # OpenRouter's native counts are those of the model's tokenizer
        "created_at,tokens_prompt,tokens_completion,native_tokens_prompt,native_tokens_completion\n"
        "2026-01-01 10:00:00,4,4,5,6\n2026-01-01 10:00:02,4,4,7,8\n",
        "created_at,tokens_prompt,tokens_completion\n2026-01-01 10:00:00,5,6\n2026-01-01 10:00:02,7,8\n",
        "request_created_at,prompt_tokens,completion_tokens\n2026-01-01 10:00:00+00,5,6\n2026-01-01 10:00:02+00,7,8\n",
        ",ts,input_tokens,output_tokens\n0,1790000000,5,6\n1,1790000002,7,8\n",  # a table of pandas with its index
        "start_time,input_tokens,output_tokens\n2026-01-01 10:00:00 +0000 UTC,5,6\n2026-01-01 10:00:02 +0000 UTC,7,8\n",
    ],
)
def test_tables_of_gateways(tmp_path: Path, content: str) -> None:
    found = read(tmp_path, content)
    assert rows(found) == [(5, 6, None), (7, 8, None)]
    assert seconds(found) == [0.0, 2.0]


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ('{"status": "success", "data": {"resultType": "vector", "result": []}}', "give the JSON of a range query"),
        ("timestamp,input_len,output_len\n-1,2,3\n", "trace:2: .*, or the time is negative"),
        ("timestamp,input_len,input_len,output_len\n1,2,2,3\n", "trace:1: two columns are called 'input_len'"),
        (
            '{"timestamp": 1, "timestamp": 2, "input_length": 1, "output_length": 1}\n',
            "the key 'timestamp' is there twice",
        ),
        (BLOCKS.format(5, 50, '"x"'), "'x' are no block numbers"),
        (gzip.compress(b"timestamp,input_len,output_len\n1,2,3\n", mtime=0)[:-6], "the gzip file ends before its data"),
        (b"\x1f\x8bxx", "not gzip"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, content: str | bytes, rule: str) -> None:
    with pytest.raises(UserError, match=rule) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_a_format_may_be_named(tmp_path: Path) -> None:
    assert read(tmp_path, samples.BAILIAN, "table", unit="s", block_tokens=16).title == "CSV or JSONL"
    with pytest.raises(
        SettingError, match="the formats are requests, dynamo, otlp, sharegpt, vllm-log, weka, prometheus, azure"
    ):
        read(tmp_path, samples.BAILIAN, "baliian")


def test_a_package_may_add_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Recording(tmp_path, "Made", (RecordedRequest(0.0, 1, 1),))
    entries = {"made": TraceFormat("Made", "here", lambda source: source.content == b"made", lambda source: made)}

    class Entry:
        group, value = "tuner.traces", "made:MADE"

        def __init__(self, name: str) -> None:
            self.name = name

        def load(self) -> TraceFormat:
            return entries["made"]

    def use(name: str) -> None:
        monkeypatch.setattr(registered, "entry_points", lambda group: [Entry(name)])
        trace_formats.cache_clear()

    use("made")
    assert read(tmp_path, "made") is made
    use("azure")
    with pytest.raises(PluginError, match="has the name of another format"):
        trace_formats()
    trace_formats.cache_clear()
    monkeypatch.undo()


def test_a_recording_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(samples.MOONCAKE)
    assert read_recording(tmp_path / "t") is read_recording(tmp_path / "t")
