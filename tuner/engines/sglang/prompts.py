"""The prompts for SGLang's server: ids of the ordinary tokens of the model's tokenizer.json, to which it adds none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tuner.engines.server.token_prompts import TokenTools, tokenized
from tuner.errors import SettingError
from tuner.hub import cached_file
from tuner.processes.records import ProcessRecords

_NAME = "tokenizer.json"


def token_tools(tokenizer: str, url: str, records: ProcessRecords, api_key: str | None = None) -> TokenTools:
    """Return what makes the prompts for a server.

    Args:
        tokenizer: a model's folder, or a hub name that is downloaded.
        url: the server's, without `/v1`.
        records: where the load generator's process is recorded.
        api_key: the key that the server requires; None: none.

    Raises:
        SettingError: if the tokenizer cannot be read, or has no tokens.
    """

    def tokenize(text: str, special: bool) -> list[int]:
        return tokenized(url, {"prompt": text, "add_special_tokens": special}, api_key)

    return TokenTools(ordinary_tokens(tokenizer), records, tokenize)


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
