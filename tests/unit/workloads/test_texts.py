"""The user's own prompts: the accepted forms, and errors that name their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import UserError
from tuner.workloads.reading import UserText, UserTexts, read_texts
from tuner.workloads.schedule import file_notes, make_schedule
from tuner.workloads.traffic import load_traffic

SHARED = '{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello to you"}]}'


def test_lines_and_conversations(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "One", "output_tokens": 5}\n\n{"prompt": "Two"}\n' + SHARED + "\n")
    assert read_texts(file).texts == (UserText("One", 5), UserText("Two"), UserText("Hi", None, "Hello to you"))


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
        ("a.jsonl", '{"text": "x"}\n', r"a\.jsonl:1: no text under 'prompt'"),
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
