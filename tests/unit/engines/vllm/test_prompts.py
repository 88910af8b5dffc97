"""Prompts of exact lengths from tokenizers of several kinds; the script runs in vLLM's interpreter, here in ours."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tuner.engines.vllm.resident.prompts import PromptError, PromptMaker, make_prompts


class Pieces:
    """A tokenizer that cuts text by the longest of its pieces; token 0 is special and opens each text."""

    all_special_ids = (0,)

    def __init__(self, *pieces: str) -> None:
        self.pieces = ["<s>", *pieces]
        self.cut = re.compile("|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True)))

    def __len__(self) -> int:
        return len(self.pieces)

    def __call__(self, texts: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] + [self.pieces.index(piece) for piece in self.cut.findall(text)] for text in texts]}

    def batch_decode(self, batch: list[list[int]]) -> list[str]:
        return ["".join(self.pieces[token] for token in tokens) for tokens in batch]


def wanted(tokens: int, *shared: tuple[str, int]) -> dict[str, Any]:
    return {"shared": list(shared), "tokens": tokens, "seed": 7, "text": "random"}


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((" the", " of", " an", "the", " Ж", "x"), {" the", " of", " an"}),
        ((" a", " b", "a", "b", "ab", "ba", "aa", "bb"), {" a", " b"}),
        (("的", "我", "的我", "的的"), {"我", "的我", "的的"}),
    ],
    ids=["plain words", "letters after a space, pairs merge", "no spaces"],
)
def test_words_are_of_the_first_kind_that_the_tokenizer_has(pieces: tuple[str, ...], words: set[str]) -> None:
    assert set(PromptMaker(Pieces(*pieces)).words) == words


@pytest.mark.parametrize("pieces", [(" the", " of"), (" a", " b", "ab", "a", "b"), ("的", "我", "的我")])
def test_lengths_are_those_the_server_counts(pieces: tuple[str, ...]) -> None:
    tokenizer = Pieces(*pieces)
    made = make_prompts({"requests": [wanted(5), wanted(30), wanted(4, ("doc", 16))]}, tokenizer)
    assert [len(tokens) for tokens in tokenizer([text for text, _, _ in made])["input_ids"]] == [5, 30, 20]
    assert [length for _, length, _ in made] == [5, 30, 20]


def test_a_tokenizer_without_words_is_an_error() -> None:
    with pytest.raises(PromptError, match="no token that stays one token"):
        PromptMaker(Pieces(" ", "\n"))
