"""Tokens that the engines of a study have in common."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gguf_model import MadeModel
from tests.two_formats import write_both
from tuner.engines.server.token_prompts import TokenTools, common_tokens, ordinary_texts, with_common_tokens
from tuner.errors import SettingError
from tuner.processes.records import ProcessRecords

SMALL = MadeModel(layers=1, vocabulary=512)


def write_vocabulary(folder: Path, words: dict[str, int], added: tuple[int, ...] = ()) -> str:
    """Write a `tokenizer.json` and return its folder."""
    folder.mkdir()
    content = {"model": {"vocab": words}, "added_tokens": [{"id": token, "content": "x"} for token in added]}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return str(folder)


def numbered(count: int, other: int = 0) -> dict[str, int]:
    """Return so many words, the last of which have another text."""
    return {f"{'other' if token >= count - other else 'word'}{token}": token for token in range(count)}


def test_both_formats_of_one_model_have_the_same_tokens(tmp_path: Path) -> None:
    gguf, folder = map(str, write_both(tmp_path, SMALL))
    common = common_tokens((folder, gguf))
    assert set(common) == set(ordinary_texts(gguf))
    assert len(common) > 200


def test_added_tokens_are_not_drawn(tmp_path: Path) -> None:
    first = write_vocabulary(tmp_path / "a", numbered(20))
    second = write_vocabulary(tmp_path / "b", numbered(20), added=(0, 7))
    assert common_tokens((first, second)) == (*range(1, 7), *range(8, 20))


@pytest.mark.parametrize(("other", "count"), [(0, 20), (2, 18), (3, 0)])
def test_vocabularies_are_the_same_if_nine_of_ten_tokens_are(tmp_path: Path, other: int, count: int) -> None:
    first = write_vocabulary(tmp_path / "a", numbered(20))
    second = write_vocabulary(tmp_path / "b", numbered(20, other))
    assert len(common_tokens((first, second))) == count


def test_a_list_of_words_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}))
    assert ordinary_texts(str(tmp_path)) == {0: "a", 1: "b"}


def test_a_file_that_is_no_tokenizer_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingError, match="its tokens cannot be read"):
        ordinary_texts(str(tmp_path))


def test_the_tools_of_a_server_draw_the_common_tokens(tmp_path: Path) -> None:
    first, second = (write_vocabulary(tmp_path / name, numbered(20, other)) for name, other in (("a", 0), ("b", 1)))
    tools = TokenTools([1, 2, 3, 19], ProcessRecords(tmp_path / "records"), lambda text, added: [])
    assert with_common_tokens(tools, ()) is tools
    found = with_common_tokens(tools, (first, second))
    assert isinstance(found, TokenTools)
    assert tuple(found._tokens) == tuple(range(19))
