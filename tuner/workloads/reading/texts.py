"""Reads the user's own prompts: JSONL or a list in JSON, of prompts or of conversations.

    {"prompt": "Summarise …", "output_tokens": 200}
    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}], "max_tokens": 200}

Conversations are those of ShareGPT, or OpenAI's, also within the `body` of a line of its batch files. The first turn of
a human with text is the prompt. The next turn of the assistant, if no other human turn comes before it, is the recorded
answer, and its length under the model's tokenizer is the length of the answer. `prompt` may be such turns, too, and
AIPerf's files have `text_input` and `output_length`. An entry without text of a human is left out, as vLLM and FastChat
do, and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.workloads.reading.files import LARGEST_LENGTH, json_reason, read_text, split_lines

_FORM = 'lines such as {"prompt": "…", "output_tokens": 128}'
_TURNS = ("conversations", "conversation", "messages")
_PROMPTS = ("prompt", "text_input", *_TURNS)
_LENGTHS = ("output_tokens", "max_tokens", "max_completion_tokens", "output_length")
_SAID = ("value", "content", "text")
_HUMAN = ("human", "user")
_ASSISTANT = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")


@dataclass(frozen=True)
class UserText:
    """One of the user's prompts. The answer's length is `output_tokens`, else that of `answer`, else the class's."""

    prompt: str
    output_tokens: int | None = None
    answer: str | None = None


@dataclass(frozen=True)
class UserTexts:
    """The prompts of a file, and the number of entries that have none and are left out."""

    texts: tuple[UserText, ...]
    left_out: int


@cache
def read_texts(file: Path) -> UserTexts:
    """Return the prompts of a JSONL or JSON file.

    Raises:
        UserError: with file and line (or entry), if the file cannot be read, has no prompt, or has another form.
    """
    text = read_text(file, "prompts", f"a file of {_FORM}")
    if not text.strip():
        raise UserError(f"prompts {str(file)!r} is empty; give a file of {_FORM}")
    entries = list(_list(file, text) if text.lstrip()[0] == "[" else _lines(file, text))
    found = []
    for place, entry in entries:
        try:
            made = _text(entry)
        except ValueError as error:
            raise UserError(f"{place}: {error}") from None
        found += [made] if made is not None else []
    if not found:
        rule = "no entry has a prompt, or a conversation with text of a human"
        raise UserError(f"{entries[0][0]}: {rule}; give {_FORM}")
    return UserTexts(tuple(found), len(entries) - len(found))


def _list(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each entry of a list."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise UserError(f"{file}:{line}: not JSON: {json_reason(error)}; give a list of {_FORM}") from None
    if not entries:
        raise UserError(f"{file}: is an empty list; give a list of {_FORM}")
    yield from ((f"{file}: entry {number}", entry) for number, entry in enumerate(entries, 1))


def _lines(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each line that is not empty."""
    for number, line in enumerate(split_lines(text), 1):
        if line.strip():
            try:
                yield f"{file}:{number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{file}:{number}: not JSON: {json_reason(error)}; give {_FORM}") from None


def _text(entry: Any) -> UserText | None:
    """Return the prompt of an entry; None if it has no text of a human."""
    if entry is None or entry == {}:
        return None
    if isinstance(entry, dict) and isinstance(entry.get("body"), dict):
        entry = entry["body"]
    names = [name for name in _PROMPTS if isinstance(entry, dict) and name in entry]
    if not names:
        raise ValueError(f"no text under 'prompt', and no 'conversations'; give {_FORM}")
    name, tokens = next((name for name in names if entry[name]), names[0]), _tokens(entry)
    prompt, answer = _unpacked(entry[name], name), None
    if isinstance(prompt, list) and (name in _TURNS or any(isinstance(turn, dict) for turn in prompt)):
        prompt, answer = _conversation(prompt)
    if prompt is not None and not isinstance(prompt, str):
        kind = "list of turns" if name in _TURNS else "text"
        raise ValueError(f"{name} {str(prompt)[:40]!r} is not a {kind}; give {_FORM}")
    return UserText(_encodable(prompt), tokens, answer) if prompt and prompt.strip() else None


def _unpacked(prompt: Any, name: str) -> Any:
    """Return the turns of a list that is written as text, and the text of a list of one; anything else as it is."""
    if name in _TURNS and isinstance(prompt, str) and prompt.lstrip().startswith("["):
        try:
            return json.loads(prompt)
        except (ValueError, RecursionError):
            return prompt
    return prompt[0] if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str) else prompt


def _tokens(entry: dict[str, Any]) -> int | None:
    tokens = next((entry[name] for name in _LENGTHS if entry.get(name) is not None), None)
    if tokens is None:
        return None
    if (
        isinstance(tokens, bool)
        or not isinstance(tokens, int | float)
        or not 1 <= tokens <= LARGEST_LENGTH
        or tokens % 1
    ):
        raise ValueError(f"output_tokens {str(tokens)[:40]} is not a length; give a whole number of tokens from 1")
    return int(tokens)


def _conversation(turns: list[Any]) -> tuple[str | None, str | None]:
    """Return the first text of a human and the assistant's answer to it; None for what there is not."""
    prompt = None
    for turn in turns:
        if not isinstance(turn, dict):
            continue
        speaker = str(turn.get("from") or turn.get("role") or "").lower()
        said = next((text for name in _SAID if (text := _said(turn.get(name))) is not None), None)
        if speaker in _HUMAN:
            if prompt is not None:
                break
            prompt = said
        elif prompt is not None and speaker in _ASSISTANT and said is not None:
            return prompt, _encodable(said)
    return prompt, None


def _said(content: Any) -> str | None:
    """Return the text of a turn, also of one in parts; None if it has none."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        content = "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) and content.strip() else None


def _encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON may have and no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()
