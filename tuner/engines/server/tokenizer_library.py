"""Make the prompts of traffic with the package `tokenizers`, where there is no vLLM or its Python is not known."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from storage.records import FailureKind, Phase
from tuner.engines.server.prompts.prompts import PromptError, make_prompts
from tuner.errors import SettingError, trial_failed
from tuner.hub import cached_file
from tuner.processes.records import ProcessRecords

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FILE = "tokenizer.json"


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
        file: Path | None = folder / _FILE
        if not (folder / _FILE).is_file():
            raise SettingError("tokenizer", name, f"there is no {_FILE}", remedy)
    else:
        file = cached_file(name, _FILE)
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
