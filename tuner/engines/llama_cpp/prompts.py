"""The prompts for llama.cpp's server: ids of the GGUF file's ordinary tokens, and texts that the server tokenizes."""

from __future__ import annotations

from pathlib import Path

from tuner.engines.llama_cpp.gguf_file import GgufError, read_header
from tuner.engines.server.token_prompts import TokenTools, tokenized
from tuner.errors import SettingError
from tuner.processes.records import ProcessRecords


def token_tools(model: str, url: str, records: ProcessRecords, api_key: str | None = None) -> TokenTools:
    """Return what makes the prompts for a server.

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
