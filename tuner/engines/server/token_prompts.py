"""Make prompts without vLLM: as ids of a model's ordinary tokens, or as texts with the package `tokenizers`.

`TokenTools` draws ids, so that it needs no tokenizer. The server counts exactly these tokens and adds no
beginning-of-text token. A user's own text and made text (`made_text.py`) are tokenized by the server itself.
`LibraryTools` makes texts of exact lengths, which every completions API takes.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.trials import FailureKind, Phase
from tuner.engines.server.gguf_file import GgufError, read_header
from tuner.engines.server.prompts.made_text import KINDS, make_text
from tuner.engines.server.prompts.prompts import PromptError, drawn, make_prompts, world_of
from tuner.engines.server.traffic import PromptTools
from tuner.errors import SettingError, reason_of, trial_failed
from tuner.http import JSON, HttpError, ReadLimits, post_json
from tuner.hub import cached_file
from tuner.loadgen.plan import Prompt
from tuner.processes.records import ProcessRecords

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_NAME = "tokenizer.json"

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
        except SettingError as error:
            message = f"the user's prompts cannot be tokenized: {error.rule}"
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
                self._made(text, seed, seed, count)[:count] if made else drawn(self._tokens, count, seed, "random")
            )
        return self._parts[key, count, text]

    def _own(self, request: dict[str, Any]) -> list[int]:
        """Return the tokens of a request's own part; those of a made text are its last ones, which end a question."""
        count, seed, text = request["tokens"], request["seed"], request["text"]
        return (
            self._made(text, world_of(request), seed, count)[-count:]
            if text in KINDS
            else drawn(self._tokens, count, seed, text)
        )

    def _made(self, text: str, world: int, seed: int, count: int) -> list[int]:
        """Return the tokens of a made text, at least `count`."""
        characters = count * CHARACTERS
        while len(tokens := self.tokenize(make_text(text, world, seed, characters), False)) < count:
            characters *= 2
        return tokens


def tokenizer_of(
    url: str, api_key: str | None, text: str = "prompt", special: str = "add_special_tokens", **more: str
) -> Tokenize:
    """Return a function that asks a server's `/tokenize` for the tokens of a text.

    Args:
        url: the server's, without a path.
        api_key: the key that the server requires; None: none.
        text: the name of the text in the request.
        special: the name of the flag for the tokens that the server adds to a prompt.
        more: further fields of the request.

    The function raises `HttpError` if the server does not answer, and ValueError, KeyError or TypeError if the answer
    has no tokens.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    def tokenize(prompt: str, with_special: bool) -> list[int]:
        body = {**more, text: prompt, special: with_special}
        reply = post_json(f"{url}/tokenize", body, ReadLimits(TOKENIZE_S, TOKENS_SIZE, JSON), headers)
        return [int(token) for token in json.loads(reply.body)["tokens"]]

    return tokenize


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

    try:
        tokens = read_header(Path(model)).text_tokens
    except (GgufError, OSError) as error:
        raise SettingError(
            "tokenizer", model, f"the GGUF file cannot be read ({reason_of(error)})", "give another"
        ) from None
    if not tokens:
        raise SettingError("tokenizer", model, "the GGUF file has no tokens", "give one with its tokenizer")
    return TokenTools(tokens, records, tokenizer_of(url, api_key, "content", "add_special"))


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
        ids = sorted(_json_texts(tokenizer))
    except _UNREADABLE as error:
        raise SettingError("tokenizer", tokenizer, f"its tokenizer.json cannot be read ({error})", remedy) from None
    if not ids:
        raise SettingError("tokenizer", tokenizer, "its tokenizer.json has no ordinary tokens", remedy)
    return ids


_UNREADABLE = (GgufError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)


def _json_texts(tokenizer: str) -> dict[int, str]:
    """Return the text of each ordinary token of a tokenizer.json by its id."""
    content: dict[str, Any] = json.loads(tokenizer_file(tokenizer).read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, dict):
        texts = {token: text for text, token in vocabulary.items()}
    else:
        texts = {token: entry[0] for token, entry in enumerate(vocabulary)}
    added = {token["id"] for token in content.get("added_tokens") or ()}
    return {token: text for token, text in texts.items() if token not in added}


GGUF_SUFFIX = ".gguf"
"""The end of the names of files that have a tokenizer for llama.cpp, not for the package."""

LEAST_SHARE = 0.9
"""Vocabularies are the same if this share of the ordinary tokens of the smallest has the same id and text in all."""


@cache
def common_tokens(tokenizers: tuple[str, ...]) -> tuple[int, ...]:
    """Return the ids of ordinary tokens that have the same text under every tokenizer, ascending.

    Args:
        tokenizers: GGUF files, folders or hub names.

    Returns:
        The ids; empty if the vocabularies differ.

    Raises:
        SettingError: if a tokenizer cannot be read.
    """
    vocabularies = [ordinary_texts(each) for each in tokenizers]
    first, *others = vocabularies
    common = [token for token, text in first.items() if all(each.get(token) == text for each in others)]
    smallest = min(map(len, vocabularies))
    return tuple(sorted(common)) if common and len(common) >= LEAST_SHARE * smallest else ()


def with_common_tokens(tools: PromptTools, tokenizers: tuple[str, ...]) -> PromptTools:
    """Return the tools of a server, which draw the tokens that all engines of the study have, if there are any.

    Args:
        tools: of the server.
        tokenizers: of all engines; empty in a study of one.

    Raises:
        SettingError: if a tokenizer cannot be read.
    """
    common = common_tokens(tokenizers) if tokenizers else ()
    return TokenTools(common, tools.records, tools.tokenize) if common and isinstance(tools, TokenTools) else tools


def ordinary_texts(tokenizer: str) -> Mapping[int, str]:
    """Return the text of each ordinary token by its id.

    Raises:
        SettingError: if the tokenizer cannot be read.
    """
    remedy = "give a model that has its tokenizer"
    try:
        if tokenizer.endswith(GGUF_SUFFIX):
            header = read_header(Path(tokenizer), texts=True)
            words: Sequence[str] = header.values.get("tokenizer.ggml.tokens", ())
            return {token: words[token] for token in header.text_tokens}
        return _json_texts(tokenizer)
    except _UNREADABLE as error:
        raise SettingError("tokenizer", tokenizer, f"its tokens cannot be read ({error})", remedy) from None


class LibraryTokenizer:
    """A tokenizer of the package `tokenizers`, with the methods that `PromptMaker` calls."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.all_special_ids = [token for token, content in added.items() if content.special]

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def __call__(self, texts: Sequence[str]) -> dict[str, list[list[int]]]:
        """Return the tokens of each text, special ones included."""
        return {"input_ids": [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]}

    def tokens(self, text: str, *, special: bool) -> list[int]:
        """Return the tokens of one text; with `special`, those that the tokenizer adds to a prompt are among them."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def batch_decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence of tokens."""
        return list(self._tokenizer.decode_batch(batch, skip_special_tokens=False))


class LibraryTools:
    """Makes prompts with the package; see `PromptTools`.

    Args:
        tokenizer: the model's.
        records: where the load generator's process is recorded.
    """

    def __init__(self, tokenizer: LibraryTokenizer, records: ProcessRecords) -> None:
        self._tokenizer = tokenizer
        self.records = records

    def prompts(self, plan: Path, log: Path) -> list[tuple[str, int, int | None]]:
        """See `PromptTools`. Nothing is logged."""
        try:
            made = make_prompts(json.loads(plan.read_text(encoding="utf-8")), self._tokenizer)
        except PromptError as error:
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, str(error)) from None
        return [(str(text), int(tokens), recorded) for text, tokens, recorded in made]


def find_tokenizer(name: str, wrapper: Path | None = None) -> LibraryTokenizer:
    """Return the tokenizer of a folder or a hub name, which is downloaded if it was not before.

    Args:
        name: the folder or the name.
        wrapper: the `vllm` whose Python is not known, for the error; None: there is no vLLM.

    Raises:
        SettingError: if the package is not installed, or there is no such tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise _no_package(wrapper) from None
    folder = Path(os.path.expanduser(name))
    remedy = "give a folder with one, a hub name, or a vLLM by {vllm} PATH, which reads other formats"
    if folder.is_dir():
        file: Path | None = folder / _NAME
        if not (folder / _NAME).is_file():
            raise SettingError("tokenizer", name, f"there is no {_NAME}", remedy)
    elif name.startswith(("/", ".", "~")):  # no hub name begins so
        raise SettingError("tokenizer", name, "there is no such folder", remedy)
    else:
        file = cached_file(name, _NAME)
    try:
        found = Tokenizer.from_pretrained(name) if file is None else Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises plain Exception for a file that it cannot read
        reason = " ".join(str(error).split())[:200]
        raise SettingError("tokenizer", name, f"the tokenizer cannot be read ({reason})", remedy) from None
    return LibraryTokenizer(found)


def _no_package(wrapper: Path | None) -> SettingError:
    if wrapper is None:
        rule = "no vLLM found, and the package `tokenizers`, which replaces it here, is not installed"
        return SettingError("vllm", None, rule, "`pip install tokenizers`, or name a vLLM by {vllm} PATH")
    rule = "this wrapper's Python is not known, and the package `tokenizers`, which replaces it, is not installed"
    return SettingError("vllm", str(wrapper), rule, "`pip install tokenizers`, or give VENV/bin/vllm")
