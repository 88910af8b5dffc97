"""The prompts for TensorRT-LLM's server: token ids, which it takes as they are. It has no endpoint that tokenizes."""

from __future__ import annotations

from functools import cache

from storage.records import FailureKind, Phase
from tuner.engines.server.token_prompts import TokenTools, ordinary_tokens
from tuner.engines.server.tokenizer_library import LibraryTokenizer, find_tokenizer
from tuner.errors import SettingError, trial_failed
from tuner.processes.records import ProcessRecords


def token_tools(tokenizer: str, records: ProcessRecords) -> TokenTools:
    """Return what makes the prompts for a server; the package `tokenizers` is needed for a user's own texts only.

    Args:
        tokenizer: a model's folder, or a hub name that is downloaded.
        records: where the load generator's process is recorded.

    Raises:
        SettingError: if the tokenizer cannot be read, or has no tokens.
    """

    @cache
    def library() -> LibraryTokenizer:
        try:
            return find_tokenizer(tokenizer)
        except SettingError as error:
            message = f"the user's prompts cannot be tokenized: {error.rule}"
            raise trial_failed(FailureKind.ENVIRONMENT_BROKEN, Phase.BENCHMARK, message) from None

    def tokenize(text: str, special: bool) -> list[int]:
        return library().tokens(text, special=special)

    return TokenTools(ordinary_tokens(tokenizer), records, tokenize)
