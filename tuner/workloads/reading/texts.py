"""Reads the user's own prompts: JSONL with one prompt per line, or conversations in ShareGPT's format.

    {"prompt": "Summarise …", "output_tokens": 200}
    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}

A JSONL line has either form; a `.json` file is a list of them. In a conversation, the first human turn is the prompt.
The turn after it is the recorded answer, and its length under the model's tokenizer is the length of the answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.workloads.reading.files import LARGEST_LENGTH, read_lines, read_text

_FORM = 'lines such as {"prompt": "…", "output_tokens": 128}'


@dataclass(frozen=True)
class UserText:
    """One of the user's prompts. The answer's length is `output_tokens`, else that of `answer`, else the class's."""

    prompt: str
    output_tokens: int | None = None
    answer: str | None = None


@cache
def read_texts(file: Path) -> tuple[UserText, ...]:
    """Return the prompts of a JSONL or JSON file.

    Raises:
        UserError: with file and line (or entry), if the file cannot be read, is empty, or has another form.
    """
    if file.suffix == ".json":
        return tuple(_read_list(file))
    return tuple(read_lines(file, "prompts", f"a file of {_FORM}", lambda line, _: _text(_json(line))))


def _read_list(file: Path) -> list[UserText]:
    try:
        data = json.loads(read_text(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompts {str(file)!r} cannot be read: {error}; give a file of {_FORM}") from None
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise UserError(f"{file}:{line}: not JSON: {_json_reason(error)}; give a list of {_FORM}") from None
    if not isinstance(data, list) or not data:
        raise UserError(f"{file}: is not a list of prompts; give a list of {_FORM}")
    texts = []
    for number, entry in enumerate(data, 1):
        try:
            texts.append(_text(entry))
        except ValueError as error:
            raise UserError(f"{file}: entry {number}: {error}") from None
    return texts


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {_json_reason(error)}; give {_FORM}") from None


def _json_reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"


def _text(entry: Any) -> UserText:
    if isinstance(entry, dict) and isinstance(entry.get("conversations"), list):
        return _conversation(entry["conversations"])
    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f"no text under 'prompt', and no 'conversations'; give {_FORM}")
    tokens = entry.get("output_tokens", entry.get("max_tokens"))
    if tokens is not None and (
        isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= LARGEST_LENGTH
    ):
        raise ValueError(f"output_tokens {str(tokens)[:40]} is not a length; give a whole number of tokens from 1")
    return UserText(prompt, tokens)


def _conversation(turns: list[Any]) -> UserText:
    speakers = [(str(turn.get("from", "")), turn.get("value")) for turn in turns if isinstance(turn, dict)]
    for (speaker, prompt), (_, answer) in zip(speakers, [*speakers[1:], ("", None)], strict=True):
        if speaker in ("human", "user") and isinstance(prompt, str) and prompt:
            return UserText(prompt, None, answer if isinstance(answer, str) and answer else None)
    raise ValueError("a conversation without a human turn; give [{'from': 'human', 'value': …}, …]")
