"""Readers of the files that users write for a workload: YAML, lines of numbers, and prompts.

A file of prompts has objects such as these, one a line, or as a list in JSON:

    {"prompt": "Summarise …", "output_tokens": 200}
    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}], "max_tokens": 200}

Conversations are those of ShareGPT, or OpenAI's, also within the `body` of a line of its batch files. The first turn of
a human with text is the prompt. The next turn of the assistant, if no other human turn comes before it, is the recorded
answer, and its length under the model's tokenizer is the length of the answer. `prompt` may be such turns, too, and
AIPerf's files have `text_input` and `output_length`, or `text`; `turns`, as in MT-Bench, are all a human's. A line can
be a list of turns. An entry without text of a human is left out, as vLLM and FastChat do, and counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from search_spaces.yaml_file import YamlError, read_regular_file, read_yaml
from tuner.errors import UserError, reason_of

TEXT_LIMIT = 2**30
"""The largest file of prompts, times or lengths, in bytes."""

LARGEST_LENGTH = 10**9
"""The most tokens of a prompt or an answer."""

MAX_REQUESTS = 10_000_000
"""The most requests of one run: the schedule and every prompt are in memory before the first is sent."""


class Strict(BaseModel):
    """A part of a file that a user writes: it cannot change, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


def read_model(path: Path, model: type[Model], what: str, prepare: Callable[[dict[str, Any]], Any]) -> Model:
    """Return the model that a YAML file, after `prepare`, describes; messages call the file `what`.

    Raises:
        UserError: with the file, the line or key, and the reason.
    """
    try:
        data = read_yaml(path).data
    except OSError as error:
        raise UserError(f"{what} {str(path)!r} cannot be read: {reason_of(error)}; give a YAML file") from None
    except YamlError as error:
        raise UserError(f"{error.place}: not valid YAML: {error.reason}; correct that line") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: a {what} is a mapping with the keys {', '.join(model.model_fields)}")
    try:
        return model.model_validate(prepare(data))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or what
        raise UserError(f"{path}: {place}: {_reason(first['type'], first['msg'])}") from None


def read_text(path: Path, what: str, form: str) -> str:
    """Return the text of a file, without the mark that spreadsheets write at its beginning.

    Messages call the file `what`, and tell the `form` that it should have.

    Raises:
        UserError: if it cannot be read, is not a regular file, is larger than `TEXT_LIMIT`, or is not UTF-8.
    """
    return decoded(path, read_content(path, what, form), what, form)


def read_content(path: Path, what: str, form: str) -> bytes:
    """Return the content of a file; see `read_text`."""
    try:
        return read_regular_file(path, TEXT_LIMIT)
    except OSError as error:
        raise _unreadable(path, error.strerror or "the file system refuses it", what, form) from None


def decoded(path: Path, content: bytes, what: str, form: str) -> str:
    """Return the text of a file's content; see `read_text`."""
    reason = next((reason for start, reason in NO_TEXT if content.startswith(start)), None)
    try:
        text = "" if reason else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"byte {content[error.start]:#04x} at position {error.start} is not UTF-8"
    if reason:
        raise _unreadable(path, reason, what, form)
    return text


def _unreadable(path: Path, reason: str, what: str, form: str) -> UserError:
    return UserError(f"{what} {str(path)!r} cannot be read: {reason}; give {form}")


NO_TEXT = (
    (b"version https://git-lfs.github.com/", "this is a pointer of Git LFS, not the file; run `git lfs pull`"),
    ((b"\xff\xfe", b"\xfe\xff"), "this is UTF-16; save it as UTF-8"),
    (b"\x1f\x8b", "this is compressed with gzip; unpack it"),
    ((b"BZh", b"\xfd7zXZ\0"), "this is compressed; unpack it"),
    (b"PK\x03\x04", "this is a ZIP archive; unpack it"),
    (b"\x28\xb5\x2f\xfd", "this is compressed with Zstandard; unpack it"),
    (b"PAR1", "this is a Parquet file; convert it"),
)
"""Beginnings of files that people have in the place of a text, and what to do."""


def split_lines(text: str) -> list[str]:
    """Return the lines of a text. `str.splitlines` would also split at characters that JSON may have in a string."""
    return _LINE_END.split(text)


_LINE_END = re.compile(r"\r\n|\n|\r")
_LISTS = re.compile(r"\]\s*[\r\n]\s*\[")


def read_lines(path: Path, what: str, form: str, parse: Callable[[str, list[Value]], Value]) -> list[Value]:
    """Return the value of each line that is not empty, see `read_text`.

    `parse` gets a line and the values before it, and raises a ValueError with the reason.

    Raises:
        UserError: with file and line, if the file cannot be read, is empty, or `parse` refuses a line.
    """
    values: list[Value] = []
    for number, line in enumerate(split_lines(read_text(path, what, form)), 1):
        if not line.strip():
            continue
        try:
            values.append(parse(line.strip(), values))
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}") from None
    if not values:
        raise UserError(f"{what} {str(path)!r} is empty; give {form}")
    return values


def json_entries(file: Path, text: str, remedy: str, *, unique_keys: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each entry of a JSON list, or else of each line that is not empty.

    With `unique_keys`, an object that has a key twice is an error.
    """
    is_list = text.lstrip().startswith("[") and not _LISTS.search(text)
    pairs = _without_repeats if unique_keys else None
    for number, line in enumerate([text] if is_list else split_lines(text), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line if is_list else line.strip().removesuffix(","), object_pairs_hook=pairs)
        except (ValueError, RecursionError) as error:
            at = getattr(error, "lineno", 1) if is_list else number
            raise UserError(f"{file}:{at}: {_json_fault(error)}; {remedy}") from None
        if is_list:
            yield from ((f"{file}: entry {place}", each) for place, each in enumerate(value, 1))
        else:
            yield f"{file}:{number}", value


class _RepeatedKey(ValueError):
    """An object of JSON has a key twice."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _RepeatedKey(next(key for key in found if keys.count(key) > 1))
    return found


def _json_fault(error: ValueError | RecursionError) -> str:
    if isinstance(error, _RepeatedKey):
        return f"the key {str(error)[:40]!r} is there twice"
    if isinstance(error, RecursionError):
        return "not JSON: nested too deep"
    return f"not JSON: {error.msg if isinstance(error, json.JSONDecodeError) else 'a number has too many digits'}"


def _reason(kind: str, message: str) -> str:
    """Return what is wrong with a value, in words of this file's format."""
    if kind == "missing":
        return "this key is missing; add it, as docs/workloads.md shows"
    return message.removeprefix("Value error, ")


_FORM = 'lines such as {"prompt": "…", "output_tokens": 128}'
TURNS = ("conversations", "conversation", "messages")
_PROMPTS = ("prompt", "text_input", *TURNS, "turns", "text")
_LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens")
_LENGTHS = ("output_tokens", *_LIMITS, "output_length", "output_tokens_count")
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
    entries = list(json_entries(file, text, f"give {_FORM}"))
    if not entries:
        raise UserError(f"{file}: is an empty list; give a list of {_FORM}")
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


def _text(entry: Any) -> UserText | None:
    """Return the prompt of an entry; None if it has no text of a human."""
    if entry is None or entry == {}:
        return None
    if isinstance(entry, dict) and isinstance(entry.get("body"), dict):
        entry = entry["body"]
    if isinstance(entry, list):
        entry = {"messages": entry}
    names = [name for name in _PROMPTS if isinstance(entry, dict) and name in entry]
    if not names:
        raise ValueError(f"no text under 'prompt', and no 'conversations'; give {_FORM}")
    name, tokens = next((name for name in names if entry[name]), names[0]), _tokens(entry)
    prompt, answer = _unpacked(entry[name], name), None
    if name == "turns" and isinstance(prompt, list):
        prompt = [{"role": "user", **(turn if isinstance(turn, dict) else {"text": turn})} for turn in prompt]
    if isinstance(prompt, list) and (name in TURNS or any(isinstance(turn, dict) for turn in prompt)):
        prompt, answer = _conversation(prompt)
    if prompt is not None and not isinstance(prompt, str):
        kind = "list of turns" if name in TURNS else "text"
        raise ValueError(f"{name} {str(prompt)[:40]!r} is not a {kind}; give {_FORM}")
    return UserText(_encodable(prompt), tokens, answer) if prompt and prompt.strip() else None


def _unpacked(prompt: Any, name: str) -> Any:
    """Return the turns of a list that is written as text, and the text of a list of one; anything else as it is."""
    if name in TURNS and isinstance(prompt, str) and prompt.lstrip().startswith("["):
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
        raise ValueError(f"output_tokens {repr(tokens)[:40]} is not a length; give a whole number of tokens from 1")
    return int(tokens)


def _conversation(turns: list[Any]) -> tuple[str | None, str | None]:
    """Return the first text of a human and the assistant's answer to it; None for what there is not."""
    prompt = None
    for human, said in _speakers(turns):
        if human and prompt is not None:
            break
        if human:
            prompt = said
        elif human is False and prompt is not None and said is not None:
            return prompt, _encodable(said)
    return prompt, None


def _speakers(turns: list[Any]) -> Iterator[tuple[bool | None, str | None]]:
    """Yield whether a human speaks (True), the assistant (False) or another, and the text (None: none)."""
    for turn in turns:
        if isinstance(turn, dict):
            speaker = str(turn.get("from") or turn.get("role") or "").lower()
            said = next((text for name in _SAID if (text := _said(turn.get(name))) is not None), None)
            yield True if speaker in _HUMAN else False if speaker in _ASSISTANT else None, said


def turns_of(entry: Any) -> list[tuple[bool | None, str]]:
    """Return the turns with text of an entry's conversation: whether a human speaks (None: another), and the text."""
    if isinstance(entry, dict) and isinstance(entry.get("body"), dict):
        entry = entry["body"]
    name = next((name for name in TURNS if isinstance(entry, dict) and entry.get(name)), None)
    turns = None if name is None else _unpacked(entry[name], name)
    spoken = _speakers(turns) if isinstance(turns, list) else ()
    return [(human, _encodable(said)) for human, said in spoken if said is not None]


def _said(content: Any) -> str | None:
    """Return the text of a turn, also of one in parts; None if it has none."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        content = "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) and content.strip() else None


def _encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON may have and no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()
