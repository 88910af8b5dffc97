"""The prompts of a study of several engines: the same token ids, if the models have the same vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tuner.engines.server.gguf_file import GgufError, read_header
from tuner.engines.server.token_prompts import TokenTools, tokenizer_file
from tuner.engines.server.traffic import PromptTools
from tuner.errors import SettingError

GGUF_SUFFIX = ".gguf"

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
        content: dict[str, Any] = json.loads(tokenizer_file(tokenizer).read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        if not isinstance(vocabulary, dict):
            vocabulary = {entry[0]: token for token, entry in enumerate(vocabulary)}
        added = {token["id"] for token in content.get("added_tokens") or ()}
        return {token: text for text, token in vocabulary.items() if token not in added}
    except (GgufError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise SettingError("tokenizer", tokenizer, f"its tokens cannot be read ({error})", remedy) from None
