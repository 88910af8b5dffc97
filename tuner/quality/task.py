"""The user's questions: a JSONL file, and the grading of an answer."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import regex as regular

from tuner.errors import SettingError

FILE_LIMIT = 2**26
FREE_TOKENS = 512
"""The length limit of an answer that a regular expression reads; `max_tokens` of the question replaces it."""

LONGEST_REGEX = 1000
"""Most characters of a regular expression."""

REGEX_S = 1.0
"""Seconds of the processor that a regular expression may need for one answer.

`(a+)+b` needs exponential time for some answers. RE2 is linear for one match, but not for the last of all matches, and
its `\\w` knows ASCII only.
"""

_SPARE_TOKENS = 8
_REMEDY = 'write lines such as {"prompt": "2+2=", "answer": "4"}'


@dataclass(frozen=True)
class Question:
    """A prompt that is sent as it is, and the right answer.

    Without `regex`, the server's answer is its text up to the first line break, unless the right answer has one.
    With `regex`, it is the last match in the text: its first group, or all of it.
    """

    prompt: str
    answer: str
    regex: str | None = None
    max_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """The length limit in tokens; a tokenizer makes at most one token of a byte."""
        if self.max_tokens is not None:
            return self.max_tokens
        return FREE_TOKENS if self.regex is not None else len(self.answer.encode()) + _SPARE_TOKENS

    def right(self, text: str) -> bool:
        """Return whether a server's text has the right answer, without surrounding white space.

        Raises:
            SettingError: if the regular expression needs too long.
        """
        try:
            return self._given(text).strip() == self.answer.strip()
        except TimeoutError:
            rule = f"the regular expression needs more than {REGEX_S:g} s for one answer"
            raise SettingError("quality_task", self.regex, rule, "write it without repeats within repeats") from None

    def _given(self, text: str) -> str:
        if self.regex is not None:
            found = deque(regular.finditer(self.regex, text, timeout=REGEX_S), maxlen=1)  # there may be many
            last = found[0] if found else None
            return "" if last is None else last.group(1 if last.re.groups else 0) or ""
        return text if "\n" in self.answer.strip() else text.strip().partition("\n")[0]


@dataclass(frozen=True)
class Task:
    """The questions of a file."""

    questions: tuple[Question, ...]

    @property
    def digest(self) -> str:
        """A digest of the questions."""
        rows = [[each.prompt, each.answer, each.regex, each.tokens] for each in self.questions]
        return sha256(json.dumps(rows).encode()).hexdigest()


def read_task(path: str) -> Task:
    """Read a JSONL file of questions: `prompt`, `answer`, and optionally `regex` and `max_tokens`.

    Raises:
        SettingError: about `quality_task`, for a file that cannot be read or a line that is no question.
    """
    file = Path(os.path.expanduser(path))
    try:
        if not file.is_file() or file.stat().st_size > FILE_LIMIT:
            raise SettingError("quality_task", path, "not a file of at most 64 MiB", "give a JSONL file")
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        rule = f"the file cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8'})"
        raise SettingError("quality_task", path, rule, "give a JSONL file") from None
    questions = [_question(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not questions:
        raise SettingError("quality_task", path, "the file has no question", _REMEDY)
    return Task(tuple(questions))


def _question(path: str, number: int, line: str) -> Question:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise _wrong(path, number, "is not JSON") from None
    if not isinstance(row, dict):
        raise _wrong(path, number, "is not a JSON object")
    prompt, answer = _text(path, number, row, "prompt"), _text(path, number, row, "answer")
    regex, tokens = row.get("regex"), row.get("max_tokens")
    if regex is not None:
        _check_regex(path, number, regex)
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
        raise _wrong(path, number, f"has max_tokens {tokens!r}, which is no length")
    return Question(prompt, answer, regex, tokens)


def _text(path: str, number: int, row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise _wrong(path, number, f"has no {name}")
    return value


def _check_regex(path: str, number: int, regex: object) -> None:
    if not isinstance(regex, str):
        raise _wrong(path, number, "has a regex that is no text")
    if len(regex) > LONGEST_REGEX:
        raise _wrong(path, number, f"has a regex of more than {LONGEST_REGEX:,} characters")
    try:
        re.compile(regex)  # the library's further syntax, such as recursion, takes memory without a limit
        regular.compile(regex)
    except (re.error, regular.error, RecursionError) as error:
        raise _wrong(path, number, f"has an invalid regex ({error})") from None


def _wrong(path: str, number: int, what: str) -> SettingError:
    return SettingError("quality_task", path, f"line {number} {what}", _REMEDY)


def right_answers(questions: Sequence[Question], texts: Sequence[str]) -> list[bool]:
    """Return which answers are right."""
    return [question.right(text) for question, text in zip(questions, texts, strict=True)]
