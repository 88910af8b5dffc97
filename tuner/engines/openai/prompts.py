"""The prompts for a server of unknown make.

A prompt is a text, which every completions API takes. The package `tokenizers` makes texts of exact lengths from the
model's tokenizer. A GGUF file has no tokenizer that this package reads: its prompts are lists of token ids.

A cache of answers may outlive a server, such as that of a proxy. All trials of a study would otherwise send the same
prompts, and all but the first would be answered from the cache. The prompts therefore differ between servers: their
lengths and times are the same, and their words are others.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

from tuner.engines.server.token_prompts import gguf_tools
from tuner.engines.server.tokenizer_library import LibraryTools, find_tokenizer
from tuner.engines.server.traffic import PromptTools
from tuner.errors import SettingError
from tuner.loadgen.plan import Prompt
from tuner.processes.records import ProcessRecords

GGUF_SUFFIX = ".gguf"


class TrialPrompts:
    """Makes prompts that no other server of the study is sent; see `PromptTools`.

    A user's own texts are the same for all servers.

    Args:
        tools: make the prompts.
        key: of the server: study and trial.
    """

    def __init__(self, tools: PromptTools, key: str) -> None:
        self.records = tools.records
        self._tools = tools
        self._key = key
        self._offset = zlib.crc32(key.encode()) << 32

    def prompts(self, plan: Path, log: Path) -> Sequence[tuple[Prompt, int, int | None]]:
        """See `PromptTools`."""
        content = json.loads(plan.read_text(encoding="utf-8"))
        for request in content["requests"]:
            request["shared"] = [(f"{self._key}/{name}", *part) for name, *part in request["shared"]]
            if "seed" in request:
                request["seed"] += self._offset
        plan.write_text(json.dumps(content), encoding="utf-8")
        return self._tools.prompts(plan, log)


def find_tools(tokenizer: str, url: str, records: ProcessRecords, api_key: str | None) -> PromptTools:
    """Return what makes prompts with a tokenizer.

    Args:
        tokenizer: a folder, a hub name or a GGUF file.
        url: the server's, without `/v1`.
        records: where the load generator's process is recorded.
        api_key: the key that the server requires; None: none.

    Raises:
        SettingError: if the tokenizer cannot be read.
    """
    if tokenizer.endswith(GGUF_SUFFIX):
        return gguf_tools(tokenizer, url, records, api_key)
    try:
        return LibraryTools(find_tokenizer(tokenizer), records)
    except SettingError as error:
        if error.field != "tokenizer":
            rule = "the package `tokenizers`, which makes the prompts, is not installed"
            raise SettingError("tokenizer", tokenizer, rule, "`pip install tokenizers`, or give a GGUF file") from None
        remedy = "give the model's by {tokenizer}: a folder with tokenizer.json, a hub name, or a GGUF file"
        raise SettingError("tokenizer", tokenizer, error.rule, remedy) from None
