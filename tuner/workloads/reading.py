"""Readers of the files that users write for a workload: YAML, prompts and recorded traces.

A file of prompts has objects such as these, one a line, or as a list in JSON:

    {"prompt": "Summarise …", "output_tokens": 200}
    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}], "max_tokens": 200}

Conversations are those of ShareGPT, or OpenAI's, also within the `body` of a line of its batch files. The first turn of
a human with text is the prompt. The next turn of the assistant, if no other human turn comes before it, is the recorded
answer, and its length under the model's tokenizer is the length of the answer. `prompt` may be such turns, too, and
AIPerf's files have `text_input` and `output_length`. An entry without text of a human is left out, as vLLM and FastChat
do, and counted.

A trace is a table: CSV with a line of names, JSONL, or a list in JSON. Names differ between the published traces, and
so do the units of time (`_UNITS`):

- Azure's LLM inference traces, CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`, times as dates
  (https://github.com/Azure/AzurePublicDataset);
- BurstGPT, CSV with at least `Timestamp,Request tokens,Response tokens`, times in seconds
  (https://github.com/HPMLL/BurstGPT);
- Mooncake, JSONL with `timestamp` in ms, `input_length`, `output_length` and `hash_ids`
  (https://github.com/kvcache-ai/Mooncake);
- Qwen's traces of Bailian, JSONL with the same names, `chat_id` and `turn`, times in seconds
  (https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon);
- Splitwise, CSV with `arrival_timestamp,prompt_size,token_size`, times in seconds
  (https://github.com/mutinifni/splitwise-sim);
- Vidur, CSV with `arrived_at,num_prefill_tokens,num_decode_tokens`, times in seconds
  (https://github.com/microsoft/vidur).

`hash_ids`, the blocks that prompts share, are not reproduced. A row without tokens of an answer is a request that
failed. It is left out.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from search_spaces.yaml_file import YamlError, read_regular_file, read_yaml
from tuner.errors import UserError

_TEXT_LIMIT = 2**30
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
        raise UserError(f"{what} {str(path)!r} cannot be read: {error.strerror}; give a YAML file") from None
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
        UserError: if it cannot be read, is not a regular file, is larger than `_TEXT_LIMIT`, or is not UTF-8.
    """
    try:
        content = read_regular_file(path, _TEXT_LIMIT)
        reason = next((reason for start, reason in _NO_TEXT if content.startswith(start)), None)
        text = "" if reason else content.decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or "the file system refuses it"
    except UnicodeDecodeError as error:
        reason = f"byte {content[error.start]:#04x} at position {error.start} is not UTF-8"
    if reason:
        raise UserError(f"{what} {str(path)!r} cannot be read: {reason}; give {form}")
    return text


_NO_TEXT = (
    (b"version https://git-lfs.github.com/", "this is a pointer of Git LFS, not the file; run `git lfs pull`"),
    ((b"\xff\xfe", b"\xfe\xff"), "this is UTF-16; save it as UTF-8"),
    (b"\x1f\x8b", "this is compressed with gzip; unpack it"),
    (b"PK\x03\x04", "this is a ZIP archive; unpack it"),
    (b"\x28\xb5\x2f\xfd", "this is compressed with Zstandard; unpack it"),
    (b"PAR1", "this is a Parquet file; convert it"),
)
"""Beginnings of files that people have in the place of a text, and what to do."""


def split_lines(text: str) -> list[str]:
    """Return the lines of a text. `str.splitlines` would also split at characters that JSON may have in a string."""
    return _LINE_END.split(text)


_LINE_END = re.compile(r"\r\n|\n|\r")


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


def _json_entries(file: Path, text: str, remedy: str) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each entry of a JSON list, or else of each line that is not empty."""
    is_list = text.lstrip().startswith("[")
    for number, line in enumerate([text] if is_list else split_lines(text), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line if is_list else line.strip().removesuffix(","))
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"
            reason = error.msg if isinstance(error, json.JSONDecodeError) else reason
            at = getattr(error, "lineno", 1) if is_list else number
            raise UserError(f"{file}:{at}: not JSON: {reason}; {remedy}") from None
        if is_list:
            yield from ((f"{file}: entry {place}", each) for place, each in enumerate(value, 1))
        else:
            yield f"{file}:{number}", value


def _reason(kind: str, message: str) -> str:
    """Return what is wrong with a value, in words of this file's format."""
    if kind == "missing":
        return "this key is missing; add it, as docs/workloads.md shows"
    return message.removeprefix("Value error, ")


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
    entries = list(_json_entries(file, text, f"give {_FORM}"))
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


FORMS = "a trace of Azure, BurstGPT, Splitwise or Vidur (CSV), or of Mooncake or Bailian (JSONL)"

Unit = Literal["s", "ms", "us", "ns"]
_PER_SECOND: dict[Unit, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}

_FASTEST = 1000.0
_SLOWEST = 1 / 86_400
"""Rates in requests/s beyond which a unit that was not stated is suspect: published traces have 0.1 to 100."""

_EPOCHS = (1.2e9, 2.2e9)
"""Seconds since 1970 of the years 2008 to 2039: times of such a size are those of a clock, whatever their unit."""

_TIME, _PROMPT, _ANSWER = range(3)
_NAMES = (
    (
        *("timestamp", "arrival timestamp", "arrived at", "arrival time", "arrival", "start time", "time"),
        *("created at", "request time", "relative time", "timestamp start unix"),
    ),
    (
        *("context tokens", "request tokens", "input length", "prompt size", "num prefill tokens", "prompt tokens"),
        *("input tokens", "prompt len", "prompt length", "input len", "num input tokens", "num prompt tokens"),
    ),
    (
        *("generated tokens", "response tokens", "output length", "token size", "num decode tokens"),
        *("completion tokens", "output tokens", "output len", "num output tokens", "num generated tokens"),
    ),
)
"""The names of the three columns, as `_plain` writes them."""

_UNITS: tuple[tuple[frozenset[str], Unit], ...] = (
    (frozenset({"timestamp", "request tokens", "response tokens"}), "s"),
    (frozenset({"timestamp", "input length", "output length", "chat id", "turn"}), "s"),
    (frozenset({"timestamp", "input length", "output length", "hash ids"}), "ms"),
    (frozenset({"arrival timestamp", "prompt size", "token size"}), "s"),
    (frozenset({"arrived at", "num prefill tokens", "num decode tokens"}), "s"),
)
"""The unit of each published format, by names that it has; the first one applies. Mooncake's times are whole ms.

Traces in seconds have Mooncake's names, too: those that `vllm bench serve --dataset-name timed_trace` reads by default.
"""

_MOONCAKE_BLOCK = 512
"""Tokens of a block of Mooncake's `hash_ids`; Bailian's have 16."""

_UNIT_WORDS: dict[str, Unit] = {
    **{"s": "s", "sec": "s", "secs": "s", "seconds": "s", "ms": "ms", "msec": "ms", "milliseconds": "ms"},
    **{"us": "us", "usec": "us", "microseconds": "us", "ns": "ns", "nsec": "ns", "nanoseconds": "ns"},
}


@dataclass(frozen=True)
class RecordedRequest:
    """One request of a trace: its arrival on the trace's own clock and in its unit, and its lengths in tokens."""

    at: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Recording:
    """A trace.

    Attributes:
        file: of the trace.
        requests: in the order of their arrival.
        unit: of the times, by the format; None: the format does not tell.
        dates: whether the times are dates, in seconds since 1970.
        left_out: rows without tokens of a prompt or an answer.
    """

    file: Path
    requests: tuple[RecordedRequest, ...]
    unit: Unit | None
    dates: bool
    left_out: int

    def times_s(self, unit: Unit | None) -> list[float]:
        """Return the times in seconds; see `in_seconds`."""
        if self.dates and unit is not None:
            raise UserError(f"{self.file}: its times are dates, which have no unit {unit}; leave `unit` out")
        return in_seconds(self.file, [each.at for each in self.requests], unit, self.unit, dates=self.dates)


def in_seconds(
    file: Path, times: Sequence[float], stated: Unit | None, known: Unit | None, *, dates: bool = False
) -> list[float]:
    """Return sorted times in seconds.

    Args:
        file: for messages.
        times: of which there is at least one.
        stated: the unit that the user states.
        known: the unit by the file's format; None: the format does not tell.
        dates: whether the times were dates, whose unit is no guess.

    Raises:
        UserError: if nobody tells the unit, two ways to tell it contradict each other, or the rate is not plausible in
            a unit that the user did not state.
    """
    clock = next((unit for unit, each in _PER_SECOND.items() if _EPOCHS[0] <= times[0] / each <= _EPOCHS[1]), None)
    if stated is None and clock is not None and known not in (None, clock):
        rule = f"its times are those of a clock in {clock}, and its format or its column has {known}"
        raise UserError(f"{file}: {rule}; {_STATE}")
    unit = stated or clock or known
    span, gaps = times[-1] - times[0], len(times) - 1
    rates = {each: gaps * per / span for each, per in _PER_SECOND.items()} if span > 0 else {}
    if unit is None:
        as_units = ", ".join(f"{rate:.3g} requests/s in {each}" for each, rate in rates.items())
        raise UserError(f"{file}: the unit of its times is not known ({as_units or 'all are equal'}); {_STATE}")
    if stated is None and not dates and rates and not _SLOWEST <= rates[unit] <= _FASTEST:
        rule = f"read in {unit}, its {len(times)} requests arrive at {rates[unit]:.3g} requests/s"
        raise UserError(f"{file}: {rule}; the unit is suspect: {_STATE}")
    return [at / _PER_SECOND[unit] for at in times]


_STATE = f"give `unit`, one of {', '.join(_PER_SECOND)}, beside `file` in `arrivals`"


def read_times(file: Path, unit: Unit | None) -> list[float]:
    """Return the times of a file in seconds: of a recorded trace, or one number per line, in order.

    Raises:
        UserError: with file and line, if the file cannot be read, is empty or has another form, and as `in_seconds`.
    """
    first = next((line for line in split_lines(read_text(file, "trace", _TIMES)) if line.strip()), "").strip()
    if first and _number(first.rstrip(",")) is None:
        return read_recording(file).times_s(unit)

    def next_time(text: str, before: list[float]) -> float:
        at = _number(text.rstrip(","))
        if at is None:
            raise ValueError(f"{text[:40]!r} is not a time in {unit or 'seconds'}; give one number per line")
        if before and at < before[-1]:
            raise ValueError(f"{at:g} {unit or 's'} follows {before[-1]:g} {unit or 's'}; sort the trace by time")
        return at

    return in_seconds(file, read_lines(file, "trace", _TIMES, next_time), unit, "s")


_TIMES = f"a file with one time in seconds per line, or {FORMS}"


@cache
def read_recording(file: Path) -> Recording:
    """Return a recorded trace.

    Raises:
        UserError: with file and line, if the file cannot be read, has another form, or has no request.
    """
    rows = _rows(file, read_text(file, "trace", FORMS))
    names = [] if rows is None else list(rows[0][1])
    columns = _columns(file, names)
    found, dates = [], set()
    for place, row in rows or ():
        try:
            at, is_date = _time(row[columns[_TIME]])
            lengths = [_length(row[columns[column]]) for column in (_PROMPT, _ANSWER)]
            dates.add(is_date)
            if len(dates) > 1:
                raise ValueError(at)
        except (ValueError, TypeError, KeyError, OverflowError):
            rule = f"{', '.join(columns)} are not a time and two lengths from 0 to {LARGEST_LENGTH}"
            raise UserError(f"{place}: {rule}; correct or remove that line") from None
        found.append(RecordedRequest(at, *lengths))
    kept = tuple(sorted((each for each in found if each.input_tokens and each.output_tokens), key=lambda each: each.at))
    if not kept:
        raise UserError(f"trace {str(file)!r} has no request with tokens; give {FORMS}")
    unit = "s" if dates == {True} else _unit(names, columns[_TIME], kept)
    unit = None if unit == "ms" and any(_has_short_blocks(row, columns[_PROMPT]) for _, row in rows or ()) else unit
    return Recording(file, kept, unit, dates == {True}, len(found) - len(kept))


def _columns(file: Path, names: Sequence[str]) -> tuple[str, str, str]:
    """Return the names of the time, the prompt's tokens and the answer's tokens."""
    found: list[str] = []
    if len(names) > _MOST_COLUMNS:
        raise UserError(f"{file}:1: {len(names):,} columns, and a trace has at most {_MOST_COLUMNS:,}; give {FORMS}")
    for place, known in zip(("time", "tokens of the prompt", "tokens of the answer"), _NAMES, strict=True):
        name = next((name for each in known for name in names if _without_unit(name) == each), None)
        if name is None:
            shown = ", ".join(str(name)[:40] for name in names[:12]) or "there are none"
            rule = f"this is not the first line of a trace with lengths: no column has the {place} ({shown})"
            raise UserError(f"{file}:1: {rule}; give {FORMS}")
        found.append(name)
    return found[0], found[1], found[2]


def _unit(names: Sequence[str], time: str, requests: Sequence[RecordedRequest]) -> Unit | None:
    last = _plain(time).split()[-1]
    if last in _UNIT_WORDS:
        return _UNIT_WORDS[last]
    plain = {_plain(name) for name in names}
    unit = next((unit for marks, unit in _UNITS if marks <= plain), None)
    return None if unit == "ms" and any(each.at % 1 for each in requests) else unit


def _has_short_blocks(row: Mapping[str, Any], prompt: str) -> bool:
    """Return whether blocks of a prompt are shorter than Mooncake's 512 tokens, so that this is another's trace."""
    blocks = row.get("hash_ids")
    return isinstance(blocks, list) and len(blocks) > _length(row[prompt]) / _MOONCAKE_BLOCK + 1


def _without_unit(name: str) -> str:
    words = _plain(name).split()
    return " ".join(words[:-1] if len(words) > 1 and words[-1] in _UNIT_WORDS else words)


def _plain(name: str) -> str:
    """Return a name in lower case with spaces between its words: `context tokens` for `ContextTokens`."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name))
    return " ".join(re.findall(r"[a-z0-9]+", spaced.lower()))


def _rows(file: Path, text: str) -> list[tuple[str, Mapping[str, Any]]] | None:
    """Return the rows with their places; None if there are none."""
    is_json = text.lstrip().startswith(("[", "{"))
    rows = list(_json_entries(file, text, "correct or remove that line") if is_json else _csv(file, text))
    for place, row in rows:
        if not isinstance(row, Mapping):
            raise UserError(f"{place}: this is no row with names; correct or remove that line")
    return rows or None


_MOST_COLUMNS = 1000
_NO_CELL = "no cell"
"""Stands for the cells that the first line lacks; it is no number, unlike an empty cell."""


def _csv(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    lines = split_lines(text)
    head = next((index for index, line in enumerate(lines) if line.strip()), 0)
    first = lines[head] if lines else ""
    reader = csv.reader(lines[head:], delimiter=max(",;\t", key=first.count))
    try:
        names = next(reader, [])
        lacking = dict.fromkeys(names, _NO_CELL)  # the first row has every name
        for row in reader:
            if any(row):
                yield f"{file}:{head + reader.line_num}", {**lacking, **dict(zip(names, row, strict=False))}
                lacking = {}
    except csv.Error as error:
        raise UserError(f"{file}:{head + reader.line_num}: not CSV: {error}; correct or remove that line") from None


def _time(value: Any) -> tuple[float, bool]:
    """Return a time, and whether it was a date."""
    number = _number(value)
    if number is not None:
        return number, False
    at = datetime.fromisoformat(str(value).strip().replace(" UTC", "+00:00"))
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp(), True


def _number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    try:
        number = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _length(value: Any) -> int:
    """Return a number of tokens; 0 for an empty cell, which a request without an answer has."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return 0
    number = _number(value)  # some of BurstGPT's files have 12.0
    if number is None or not 0 <= number <= LARGEST_LENGTH or number != int(number):
        raise ValueError(value)
    return int(number)
