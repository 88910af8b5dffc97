"""Make prompts of exact lengths as ids of tokens, which a server takes as they are.

Neither a tokenizer nor vLLM is needed: the ids are drawn from the ordinary tokens of a model. The server counts exactly
these tokens and adds no beginning-of-text token. A user's own text and made text (`made_text.py`) are tokenized by the
server itself.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.records import FailureKind, Phase
from tuner.engines.server.gguf_file import GgufError, read_header
from tuner.engines.server.prompts.made_text import KINDS, make_text
from tuner.engines.server.prompts.prompts import world_of
from tuner.errors import SettingError, trial_failed
from tuner.http import JSON, HttpError, ReadLimits, post_json
from tuner.hub import cached_file
from tuner.loadgen.plan import Prompt
from tuner.processes.records import ProcessRecords

_NAME = "tokenizer.json"

PASSAGE = 16
"""Tokens of the passage that a repetitive prompt repeats, as in prompts for vLLM."""

CHARACTERS = 6
"""Characters of made text for each token, to begin with."""

TOKENIZE_S = 60.0
TOKENS_SIZE = 2**26
"""Limits of one answer with tokens: seconds, and bytes."""

Tokenize = Callable[[str, bool], list[int]]
"""Returns the tokens of a text; with True, those that the server adds to a prompt are among them."""


class TokenTools:
    """Makes prompts of token ids; see `PromptTools`.

    Args:
        tokens: ids of ordinary tokens.
        records: where the load generator's process is recorded.
        tokenize: tokenizes a user's own text.
    """

    def __init__(self, tokens: Sequence[int], records: ProcessRecords, tokenize: Tokenize) -> None:
        self.records = records
        self._tokens = tokens
        self.tokenize = tokenize
        self._parts: dict[tuple[str, int, str], list[int]] = {}

    def prompts(self, plan: Path, log: Path) -> list[tuple[Prompt, int, int | None]]:
        """See `PromptTools`. Nothing is logged."""
        try:
            return [self._prompt(request) for request in json.loads(plan.read_text(encoding="utf-8"))["requests"]]
        except (HttpError, ValueError, KeyError, TypeError) as error:
            message = f"the server does not tokenize the user's prompts: {error}"
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, message) from None

    def _prompt(self, request: dict[str, Any]) -> tuple[Prompt, int, int | None]:
        before = [token for part in request["shared"] for token in self._shared(*part)]
        recorded = None
        if "prompt" in request:
            own = self.tokenize(request["prompt"], not before)
            answer = request.get("answer")
            recorded = None if answer is None else max(1, len(self.tokenize(answer, False)))
        else:
            own = self._own(request)
        return [*before, *own], len(before) + len(own), recorded

    def _shared(self, key: str, count: int, text: str = "random") -> list[int]:
        if (key, count, text) not in self._parts:
            seed = zlib.crc32(key.encode())
            made = text in KINDS
            self._parts[key, count, text] = (
                self._made(text, seed, seed, count)[:count] if made else self._drawn(count, seed, "random")
            )
        return self._parts[key, count, text]

    def _own(self, request: dict[str, Any]) -> list[int]:
        """Return the tokens of a request's own part; those of a made text are its last ones, which end a question."""
        count, seed, text = request["tokens"], request["seed"], request["text"]
        return (
            self._made(text, world_of(request), seed, count)[-count:]
            if text in KINDS
            else self._drawn(count, seed, text)
        )

    def _made(self, text: str, world: int, seed: int, count: int) -> list[int]:
        """Return the tokens of a made text, at least `count`."""
        characters = count * CHARACTERS
        while len(tokens := self.tokenize(make_text(text, world, seed, characters), False)) < count:
            characters *= 2
        return tokens

    def _drawn(self, count: int, seed: int, text: str) -> list[int]:
        source = random.Random(seed)
        if text == "repetitive":
            passage = source.choices(self._tokens, k=PASSAGE)
            return [passage[index % PASSAGE] for index in range(count)]
        return source.choices(self._tokens, k=count)


def tokenized(url: str, body: Mapping[str, Any], api_key: str | None) -> list[int]:
    """Return the tokens that a server's `/tokenize` answers.

    Args:
        url: the server's, without a path.
        body: the request.
        api_key: the key that the server requires; None: none.

    Raises:
        HttpError: if it does not answer.
        ValueError, KeyError, TypeError: if the answer has no tokens.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    reply = post_json(f"{url}/tokenize", dict(body), ReadLimits(TOKENIZE_S, TOKENS_SIZE, JSON), headers)
    return [int(token) for token in json.loads(reply.body)["tokens"]]


def gguf_tools(model: str, url: str, records: ProcessRecords, api_key: str | None = None) -> TokenTools:
    """Return what makes the prompts for a server of llama.cpp from its GGUF file.

    Args:
        model: path of its GGUF file.
        url: the server's, without `/v1`.
        records: where the load generator's process is recorded.
        api_key: the key that the server requires; None: none.

    Raises:
        SettingError: if the file cannot be read, or has no tokens.
    """

    def tokenize(text: str, special: bool) -> list[int]:
        return tokenized(url, {"content": text, "add_special": special}, api_key)

    try:
        tokens = read_header(Path(model)).text_tokens
    except (GgufError, OSError) as error:
        raise SettingError("tokenizer", model, f"the GGUF file cannot be read ({error})", "give another") from None
    if not tokens:
        raise SettingError("tokenizer", model, "the GGUF file has no tokens", "give one with its tokenizer")
    return TokenTools(tokens, records, tokenize)


def tokenizer_file(tokenizer: str) -> Path:
    """Return the tokenizer.json of a folder or of a hub name that is downloaded."""
    folder = Path(os.path.expanduser(tokenizer))
    return folder / _NAME if folder.is_dir() else cached_file(tokenizer, _NAME) or folder


def ordinary_tokens(tokenizer: str) -> list[int]:
    """Return the ids of a tokenizer's tokens, in their order, without those that it adds for a purpose of its own.

    Raises:
        SettingError: if the tokenizer cannot be read, or has no tokens.
    """
    remedy = "give a folder with the model's tokenizer.json by {tokenizer}"
    try:
        content: dict[str, Any] = json.loads(tokenizer_file(tokenizer).read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        ids = set(vocabulary.values()) if isinstance(vocabulary, dict) else set(range(len(vocabulary)))
        ids -= {token["id"] for token in content.get("added_tokens") or ()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingError("tokenizer", tokenizer, f"its tokenizer.json cannot be read ({error})", remedy) from None
    if not ids:
        raise SettingError("tokenizer", tokenizer, "its tokenizer.json has no ordinary tokens", remedy)
    return sorted(ids)
