"""Prompts of token ids: exact lengths, shared parts, and a user's own text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.engines.server.token_prompts import TokenTools, gguf_tools
from tuner.errors import SettingError, TrialFailed
from tuner.processes.records import ProcessRecords

TOKENS = range(100, 200)


def words_as_tokens(text: str, special: bool) -> list[int]:
    return [*([1] if special else []), *(len(word) for word in text.split())]


def made(tmp_path: Path, *requests: dict[str, Any]) -> list[Any]:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"tokenizer": "unused", "requests": requests}))
    tools = TokenTools(TOKENS, ProcessRecords(tmp_path / "processes"), words_as_tokens)
    return list(tools.prompts(plan, tmp_path / "log"))


def drawn(tokens: int, seed: int, text: str = "random", shared: tuple[tuple[Any, ...], ...] = ()) -> dict[str, Any]:
    return {"shared": shared, "tokens": tokens, "seed": seed, "text": text}


def test_a_prompt_has_exactly_its_length_and_only_ordinary_tokens(tmp_path: Path) -> None:
    (first, count, recorded), (again, *_), (other, *_) = made(tmp_path, drawn(37, 5), drawn(37, 5), drawn(37, 6))
    assert (len(first), count, recorded) == (37, 37, None)
    assert set(first) <= set(TOKENS)
    assert first == again
    assert first != other


def test_a_repetitive_prompt_repeats_sixteen_tokens(tmp_path: Path) -> None:
    ((tokens, *_),) = made(tmp_path, drawn(40, 5, "repetitive"))
    assert tokens[16:32] == tokens[:16]
    assert tokens[32:] == tokens[:8]


def test_made_text_begins_with_its_document_and_ends_with_a_question(tmp_path: Path) -> None:
    document = ("c/1", 30, "chat")
    first, second = made(tmp_path, *(drawn(20, seed, "chat", (document,)) for seed in (1, 2)))
    assert (len(first[0]), first[1]) == (50, 50)
    assert first[0][:30] == second[0][:30]
    assert first[0][30:] != second[0][30:]
    assert first[0][-1] == second[0][-1] == len("Assistant:")


def test_shared_parts_are_the_same_for_their_key(tmp_path: Path) -> None:
    shared = (("system", 8), ("chat/1", 4))
    (one, count, _), (two, *_), (third, *_) = made(
        tmp_path, drawn(10, 1, shared=shared), drawn(10, 2, shared=shared), drawn(10, 2, shared=(("chat/2", 12),))
    )
    assert count == 22
    assert one[:12] == two[:12]
    assert one[12:] != two[12:]
    assert third[:12] != two[:12]


def test_a_user_s_text_is_tokenized_with_the_special_tokens_of_a_beginning(tmp_path: Path) -> None:
    alone = {"shared": [], "prompt": "one three", "answer": "four"}
    behind = {"shared": [("system", 2)], "prompt": "one three", "answer": None}
    first, second = made(tmp_path, alone, behind)
    assert first == ([1, 3, 5], 3, 1)
    assert (second[0][2:], second[1], second[2]) == ([3, 5], 4, None)


def test_a_server_that_does_not_tokenize_fails_the_trial(gguf: Path, tmp_path: Path) -> None:
    tools = gguf_tools(str(gguf), "http://127.0.0.1:9", ProcessRecords(tmp_path / "processes"))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"requests": [{"shared": [], "prompt": "a text"}]}))
    with pytest.raises(TrialFailed, match="the server does not tokenize the user's prompts"):
        tools.prompts(plan, tmp_path / "log")


def test_a_tokenizer_must_be_a_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "text.gguf"
    file.write_text("hello")
    with pytest.raises(SettingError) as caught:
        gguf_tools(str(file), "http://127.0.0.1:9", ProcessRecords(tmp_path / "processes"))
    assert "the GGUF file cannot be read (it starts with b'hell'" in str(caught.value)
