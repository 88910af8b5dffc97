"""The user's own prompts: the accepted forms, and errors that name their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import UserError
from tuner.workloads.reading.texts import UserText, read_texts
from tuner.workloads.schedule import make_schedule
from tuner.workloads.traffic import load_traffic

SHARED = '{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello to you"}]}'


def test_lines_and_conversations(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "One", "output_tokens": 5}\n\n{"prompt": "Two"}\n' + SHARED + "\n")
    assert read_texts(file) == (UserText("One", 5), UserText("Two"), UserText("Hi", None, "Hello to you"))


def test_a_list_in_sharegpts_format(tmp_path: Path) -> None:
    file = tmp_path / "share.json"
    file.write_text(f"[{SHARED}]")
    assert read_texts(file) == (UserText("Hi", None, "Hello to you"),)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "", r"a\.jsonl' is empty; give a file of lines such as"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": \n', r"a\.jsonl:2: not JSON: Expecting value"),
        ("a.jsonl", '{"text": "x"}\n', r"a\.jsonl:1: no text under 'prompt'"),
        ("a.jsonl", '["x"]\n', r"a\.jsonl:1: no text under 'prompt'"),
        ("a.jsonl", '{"prompt": "x", "output_tokens": 0}\n', r"a\.jsonl:1: output_tokens 0 is not a length"),
        ("a.jsonl", '{"conversations": [{"from": "gpt", "value": "x"}]}\n', r"a conversation without a human turn"),
        ("a.json", "[", r"a\.json:1: not JSON"),
        ("a.json", "[]", r"is not a list of prompts"),
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
