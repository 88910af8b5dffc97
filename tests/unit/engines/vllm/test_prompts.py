"""Prompts of exact lengths from tokenizers of several kinds; the script runs in vLLM's interpreter, here in ours."""

import re
from typing import Any

import pytest

from tuner.engines.server.prompts.made_text import make_text
from tuner.engines.server.prompts.prompts import PromptError, PromptMaker, make_prompts


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


class Words:
    """A tokenizer whose tokens are words with the space before them, of at most four characters."""

    all_special_ids = (0,)
    vocabulary = ("<s>", " the", " of", " and")

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __call__(self, texts: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0, *map(hash, re.findall(r"\s*\S{1,4}", text))] for text in texts]}

    def batch_decode(self, batch: list[list[int]]) -> list[str]:
        return ["".join(self.vocabulary[token] for token in tokens) for tokens in batch]


def made(kind: str, tokens: int, seed: int, *shared: tuple[str, int, str]) -> dict[str, Any]:
    return {"shared": list(shared), "tokens": tokens, "seed": seed, "text": kind}


@pytest.mark.parametrize("kind", ["chat", "code"])
def test_made_text_has_its_exact_length_and_begins_with_its_document(kind: str) -> None:
    shared = (("system", 20, "rules"), ("c/3", 150, kind))
    requests = [made(kind, 60, 1, *shared), made(kind, 47, 2, *shared), made(kind, 90, 3)]
    texts = [text for text, _, _ in make_prompts({"requests": requests}, Words())]
    assert [len(tokens) for tokens in Words()(texts)["input_ids"]] == [230, 217, 90]
    pieces = [re.findall(r"\s*\S{1,4}", text) for text in texts]
    assert pieces[0][:169] == pieces[1][:169]
    assert pieces[0][169:200] != pieces[1][169:200]
    assert all(text.endswith({"chat": "Assistant:", "code": "def"}[kind]) for text in texts)


def test_made_text_of_one_document_is_about_one_order() -> None:
    shared = ("c/3", 150, "chat")
    requests = [made("chat", 150, 1, shared), made("chat", 150, 2, shared), made("chat", 150, 2, ("c/4", 150, "chat"))]
    orders = [set(re.findall(r"[A-H]-\d{5}", text)) for text, _, _ in make_prompts({"requests": requests}, Words())]
    assert len(orders[0]) == len(orders[2]) == 1
    assert orders[0] == orders[1] != orders[2]


def test_made_text_is_the_same_in_every_process_and_version() -> None:
    assert make_text("rules", 1, 2, 100) == (
        "You are the assistant of the support desk of Norvik, a shop for household goods in Fulda. "
        "Answer in the language of the customer, in at most 4 sentences. "
    )
    for kind in ("chat", "code"):
        text = make_text(kind, 1, 2, 4000)
        assert text.isascii()
        assert len(text) >= 4000
        assert text != make_text(kind, 1, 3, 4000) != make_text(kind, 2, 3, 4000)
