"""Make prompts of exact lengths under the model's tokenizer. vLLM's interpreter runs it in a fork of the helper, too.

The plan is JSON: {"tokenizer": NAME, "requests": [{"shared": [[KEY, TOKENS, TEXT], …], "tokens": N, "seed": S,
"text": "random"}, {"shared": […], "prompt": TEXT, "answer": TEXT}, …]}. The result is {"prompts": [[TEXT, TOKENS,
ANSWER_TOKENS], …]} or {"error": LINE}. Tokens are those that the server counts for a completion, with special ones.
A prompt with "follows": true is appended to another one, so its "tokens" are counted without special ones.

A prompt of `random` or `repetitive` text is a sequence of words of one token each, so that its parts can be joined
without merging tokens. Each prompt is encoded again, and words are dropped or added until its length is exact. A text
of another kind is made by the script `made_text.py` and cut at a word; the few tokens that are missing are words.
Shared parts depend on their key, length and kind only.
"""

from __future__ import annotations

import importlib
import json
import random
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

made_text = importlib.import_module(f"{__package__}.made_text" if __package__ else "made_text")

WORDS = tuple(re.compile(words) for words in (r" [a-z]{2,10}", r" [^\s\ufffd]{1,10}", r"[^\s\ufffd]{1,10}"))
"""Words are drawn from the first kind that the tokenizer has: plain words, any text after a space, any visible text."""
MOST_WORDS = 4096
PASSAGE = 16
"""Parts of the passage that a repetitive prompt repeats."""
TRIES = 40
LONGEST_TOKEN = 16
"""Characters of a token of made text, at the most on average."""
PIECE = re.compile(r"\s*\S+")


class PromptError(ValueError):
    """The tokenizer cannot make a prompt of the requested length."""


def drawn(parts: Sequence[Any], count: int, seed: int, text: str) -> list[Any]:
    """Return `count` parts, such as words or tokens: random ones, or a short passage that is repeated."""
    source = random.Random(seed)
    if text == "repetitive":
        passage = source.choices(parts, k=PASSAGE)
        return [passage[index % PASSAGE] for index in range(count)]
    return source.choices(parts, k=count)


class PromptMaker:
    """Makes prompts with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.special = len(self.encode("")[0])
        self.words = self._words()
        self.parts: dict[tuple[str, int, str], list[str]] = {}

    def encode(self, *texts: str) -> list[list[int]]:
        """Return the tokens of each text, as the server encodes a completion's prompt."""
        return list(self.tokenizer(list(texts))["input_ids"])

    def _words(self) -> list[str]:
        """Return words that are one token each in any position."""
        size = len(self.tokenizer)
        special = set(self.tokenizer.all_special_ids)
        order = list(range(size))
        random.Random(0).shuffle(order)
        for pattern in WORDS:
            found = list(self._candidates(order, special, pattern))
            if found:
                return found
        raise PromptError("the tokenizer has no token that stays one token beside others")

    def _candidates(self, order: list[int], special: set[int], pattern: re.Pattern[str]) -> Iterator[str]:
        count = 0
        for begin in range(0, len(order), 1024):
            ids = [token for token in order[begin : begin + 1024] if token not in special]
            decoded = self.tokenizer.batch_decode([[token] for token in ids])
            texts = [text for text in decoded if pattern.fullmatch(text)]
            if not texts:
                continue
            for text, tokens in zip(texts, self.encode(*(text * 3 for text in texts)), strict=True):
                if len(tokens) == 3 + self.special:
                    yield text
                    count += 1
            if count >= MOST_WORDS:
                return

    def shared(self, key: str, tokens: int, text: str = "random") -> list[str]:
        """Return a shared part; it is the same for its key in every workload."""
        words = self.parts.get((key, tokens, text))
        if words is None:
            seed = zlib.crc32(key.encode())
            if text in made_text.KINDS:
                words = self.made([], text, seed, seed, tokens + self.special, ending=False)
            else:
                words = drawn(self.words, tokens, seed, "random")
            self.parts[key, tokens, text] = words
        return words

    def made(self, before: list[str], text: str, world: int, seed: int, target: int, ending: bool) -> list[str]:
        """Return the pieces of a made text with which a prompt has `target` tokens.

        Args:
            before: the words that the prompt begins with.
            text, world, seed: as in `made_text.make_text`.
            target: tokens of the whole prompt.
            ending: take the end of the text, not its beginning: a prompt ends with a question.
        """
        head = "".join(before)
        own = max(1, target - len(self.encode(head)[0]))
        pieces = PIECE.findall(made_text.make_text(text, world, seed, own * LONGEST_TOKEN))

        def taken(count: int) -> list[str]:
            return pieces[len(pieces) - count :] if ending else pieces[:count]

        def surplus(count: int) -> int:
            return len(self.encode(head + "".join(taken(count)))[0]) - target

        # a piece has at least one token, and pieces are of similar length, so a few proportional steps suffice
        low, low_surplus, high, step = 0, -own, min(len(pieces), own) + 1, own // 2 + 1
        while low + 1 < high:
            middle = min(max(low + step, low + 1), high - 1)
            found = surplus(middle)
            if found > 0:
                high, step = middle, max(1, (middle - low) // 2)
                continue
            step = max(1, round(-found * (middle - low) / max(1, found - low_surplus)))
            low, low_surplus = middle, found
            if found == 0:
                break
        missing = -surplus(low)
        words = random.Random(seed + 1).choices(self.words, k=missing) if missing > 0 else []
        return words + taken(low) if ending else taken(low) + words

    def make(self, request: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Return the words of a request's shared parts, and the words of its own part."""
        before = [word for part in request["shared"] for word in self.shared(*part)]
        text = request["text"]
        if text in made_text.KINDS:
            target = request["tokens"] + sum(part[1] for part in request["shared"])
            return before, self.made(before, text, world_of(request), request["seed"], target, ending=True)
        own = max(1, request["tokens"] - (0 if before else self.special))
        return before, drawn(self.words, own, request["seed"], text)


def world_of(request: dict[str, Any]) -> int:
    """Return the seed of what a request's made text is about: that of its document, else its own."""
    of_kind = [key for key, _, *kind in request["shared"] if kind == [request["text"]]]
    return zlib.crc32(of_kind[-1].encode()) if of_kind else int(request["seed"])


def with_exact_length(maker: PromptMaker, before: list[str], own: list[str], target: int, seed: int) -> str:
    """Return the joined words; a few are dropped or added until they are `target` tokens."""
    source = random.Random(seed + 1)
    for _ in range(TRIES):
        text = "".join(before) + "".join(own)
        surplus = len(maker.encode(text)[0]) - target
        if surplus == 0:
            return text
        if surplus > 0:
            own = own[: max(0, len(own) - max(1, surplus))] or source.choices(maker.words, k=1)
        else:
            own = own + source.choices(maker.words, k=-surplus)
    raise PromptError(f"no prompt of {target} tokens can be made with this tokenizer")


def make_prompts(plan: dict[str, Any], tokenizer: Any) -> list[list[Any]]:
    """Return text, tokens and the recorded answer's tokens (None: there is none) of each request."""
    maker = PromptMaker(tokenizer)
    made: list[list[Any]] = []
    for request in plan["requests"]:
        if request.get("follows"):
            request["tokens"] += maker.special
        if "prompt" in request:
            before = "".join(word for part in request["shared"] for word in maker.shared(*part))
            answer = request.get("answer")
            tokens = None if answer is None else max(1, len(maker.encode(answer)[0]) - maker.special)
            made.append([before + request["prompt"], None, tokens])
            continue
        before_words, own = maker.make(request)
        length = request["tokens"] + sum(part[1] for part in request["shared"])
        made.append(["".join(before_words) + "".join(own), length, None])
    lengths = [len(tokens) for tokens in maker.encode(*(text for text, _, _ in made))]
    for entry, request, length in zip(made, plan["requests"], lengths, strict=True):
        if entry[1] is None:
            entry[1] = length
        elif entry[1] != length:
            before_words, own = maker.make(request)
            entry[0] = with_exact_length(maker, before_words, own, entry[1], request["seed"])
    return made


def run(plan_file: str) -> dict[str, Any]:
    """Return the prompts of a plan; if one cannot be made, the result has the error instead."""
    with open(plan_file, encoding="utf-8") as file:
        plan = json.load(file)
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(plan["tokenizer"])
    try:
        return {"prompts": make_prompts(plan, tokenizer)}
    except PromptError as error:
        return {"error": str(error)}
