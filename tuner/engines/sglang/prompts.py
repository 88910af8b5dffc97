"""The prompts for SGLang's server: ids of the ordinary tokens of the model's tokenizer.json, to which it adds none."""

from __future__ import annotations

from tuner.engines.server.token_prompts import TokenTools, ordinary_tokens, tokenized
from tuner.processes.records import ProcessRecords


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
