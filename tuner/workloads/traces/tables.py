"""Tables of recorded traffic: a row is a request, and columns have its time, its lengths, its blocks and its session.

The names of columns differ between the published tables, and so do the units of time:

- Azure's LLM inference traces of 2023 and 2024, CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`, times as dates
  (https://github.com/Azure/AzurePublicDataset);
- BurstGPT, CSV with at least `Timestamp,Request tokens,Response tokens`, times in seconds, and a `Session ID` in its
  newer files (https://github.com/HPMLL/BurstGPT);
- Mooncake, JSONL with `timestamp` in ms, `input_length`, `output_length` and `hash_ids` of 512 tokens
  (https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release);
- Qwen's traces of Bailian, JSONL with the same names, `chat_id`, `parent_chat_id` and `turn`, times in seconds, and
  `hash_ids` of 16 tokens (https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon);
- LiteLLM's spend logs, the rows of its table `LiteLLM_SpendLogs` as CSV or JSON
  (https://github.com/BerriAI/litellm/blob/main/litellm/proxy/schema.prisma);
- Splitwise, CSV with `arrival_timestamp,prompt_size,token_size`, times in seconds
  (https://github.com/mutinifni/splitwise-sim);
- Vidur, CSV with `arrived_at,num_prefill_tokens,num_decode_tokens`, times in seconds
  (https://github.com/microsoft/vidur); Frontier adds `session_id`, `block_hash_ids` such as `11|22`, and `block_size`.

AIPerf writes Mooncake's names with a `session_id`. A later turn has a `delay` in ms after the answer before it, in the
place of a time (https://docs.nvidia.com/aiperf/benchmark-modes/trace-replay-with-mooncake-traces).

A row without tokens of an answer is a request that failed. It is left out.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from tuner.errors import UserError
from tuner.workloads.reading import LARGEST_LENGTH
from tuner.workloads.traces.recording import (
    Recorder,
    Recording,
    Unit,
    find_block_tokens,
    has_short_blocks,
    length,
    number,
)
from tuner.workloads.traces.source import FORMS, Column, Row, TraceFormat, TraceSource

_NAMES: Mapping[Column, tuple[str, ...]] = {
    "time": (
        *("timestamp", "arrival timestamp", "arrived at", "arrival time", "arrival", "start time", "time"),
        *("ts", "created at", "created", "request created at", "request time", "relative time", "timestamp start unix"),
        *("timestamp start", "start timestamp", "request start", "request timestamp", "arrival offset"),
        *("request start time", "time generated"),
    ),
    "input": (
        "usage details input",  # Langfuse's, which `tuner.workloads.traces.source` makes
        "native tokens prompt",  # OpenRouter counts with the model's tokenizer, and beside it with another
        *("context tokens", "request tokens", "input length", "prompt size", "num prefill tokens", "prompt tokens"),
        *("input tokens", "prompt len", "prompt length", "input len", "num input tokens", "num prompt tokens"),
        *("tokens prompt", "prompt token count", "input token count", "tokens in", "req units"),
        *("gen ai usage input tokens", "gen ai usage prompt tokens"),
    ),
    "output": (
        *("usage details output", "native tokens completion"),
        *("generated tokens", "response tokens", "output length", "token size", "num decode tokens"),
        *("completion tokens", "output tokens", "output len", "num output tokens", "num generated tokens"),
        *("tokens completion", "output token count", "candidates token count", "tokens out", "res units"),
        *("gen ai usage output tokens", "gen ai usage completion tokens"),
    ),
    "session": ("session id", "conversation id", "session"),
    "blocks": ("hash ids", "block hash ids", "block hashes", "block ids"),
    "end": ("end time", "ended at", "completed at", "finished at", "timestamp end", "request end"),
}
"""The known names of each column, as `_plain` writes them."""

_NEEDED: Mapping[Column, str] = {"time": "time", "input": "tokens of the prompt", "output": "tokens of the answer"}

_BLOCK_SIZE = ("block size", "block tokens", "trace block size")
_DELAY = "delay"
_NO_VALUES: tuple[Any, ...] = (None, "", [], {})

_BESIDE: Mapping[str, tuple[str, ...]] = {
    "input tokens": ("cache read input tokens", "cache creation input tokens", "cache write input tokens"),
    "input token count": ("cache read input token count", "cache write input token count"),
    "candidates token count": ("thoughts token count",),
}
"""Columns with tokens that a column of lengths does not count: cached ones of a prompt in Anthropic's API and
Bedrock's, and those of thoughts in Gemini's."""

_UNIT_WORDS: dict[str, Unit] = {
    **{"s": "s", "sec": "s", "secs": "s", "seconds": "s", "ms": "ms", "msec": "ms", "milliseconds": "ms"},
    **{"us": "us", "usec": "us", "microseconds": "us", "ns": "ns", "nsec": "ns", "nanoseconds": "ns"},
}


_DENSE = (0.1, 1.0)
"""Requests per ms that no published trace has: such whole numbers may be seconds. More are refused in any unit."""

_OFFSET = re.compile(r"(?<=\d) ?([+-]\d\d(?::?\d\d)?)(?: [A-Z]{3,4})?$")
"""An offset from UTC at the end of a date, as databases and Go write it: `+00`, ` +0000 UTC`."""


def _keep(row: Row) -> str | None:
    """Return why a row is no request that the engine answered, as what it lacks; None: it is one."""
    return None


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        title: what users call it.
        origin: where it is described.
        marks: names of its columns, as `_plain` writes them, that tell it from others.
        unit: of its times; None: they are dates, or nobody says.
        block_tokens: tokens of a block; None: it has none, or nobody says.
        key: the column with a request's own number; None: there is none.
        parent: the column with the number of the request that a request follows; None: there is none.
        lacks: what a row lacks that is left out; None: it is kept.
        reads: names of the columns that `lacks` reads.
    """

    title: str
    origin: str
    marks: frozenset[str] = frozenset()
    unit: Unit | None = None
    block_tokens: int | None = None
    key: str | None = None
    parent: str | None = None
    lacks: Callable[[Row], str | None] = _keep
    reads: tuple[str, ...] = ()


_CALLS = ("completion", "responses", "messages", "generate_content")


def _litellm_lacks(row: Row) -> str | None:
    """Return what a row of LiteLLM's spend logs lacks; a call that the proxy's cache answered met no engine."""
    if str(row.get("status") or "success").lower() != "success":
        return "success"
    if str(row.get("cache_hit") or "").lower() == "true":
        return "an engine: the proxy's cache answered"
    if row.get("call_type") and not any(each in str(row["call_type"]) for each in _CALLS):
        return "an answer of text: another kind of call"
    return None


_LENGTHS = ("timestamp", "input length", "output length")

TABLES: Mapping[str, Table] = {
    "azure": Table(
        "Azure",
        "https://github.com/Azure/AzurePublicDataset",
        frozenset({"timestamp", "context tokens", "generated tokens"}),
    ),
    "burstgpt": Table(
        "BurstGPT",
        "https://github.com/HPMLL/BurstGPT",
        frozenset({"timestamp", "request tokens", "response tokens"}),
        "s",
    ),
    "bailian": Table(
        "Bailian",
        "https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon",
        frozenset({*_LENGTHS, "chat id", "turn"}),
        "s",
        16,
        key="chat_id",
        parent="parent_chat_id",
    ),
    "mooncake": Table(
        "Mooncake",
        "https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release",
        frozenset({*_LENGTHS, "hash ids"}),
        "ms",
        512,
    ),
    "litellm": Table(
        "LiteLLM",
        "https://github.com/BerriAI/litellm/blob/main/litellm/proxy/schema.prisma",
        frozenset({"request id", "start time", "prompt tokens", "completion tokens"}),
        key="request_id",
        lacks=_litellm_lacks,
        reads=("status", "cache_hit", "call_type"),
    ),
    "splitwise": Table(
        "Splitwise",
        "https://github.com/mutinifni/splitwise-sim",
        frozenset({"arrival timestamp", "prompt size", "token size"}),
        "s",
    ),
    "vidur": Table(
        "Vidur",
        "https://github.com/microsoft/vidur",
        frozenset({"arrived at", "num prefill tokens", "num decode tokens"}),
        "s",
    ),
}
"""The first one whose marks a file has applies. Mooncake's times are whole ms.

Traces in seconds have Mooncake's names, too: those that `vllm bench serve --dataset-name timed_trace` reads by default.
"""

ANY_TABLE = Table("CSV or JSONL", "docs/workloads.md")


def table_formats() -> dict[str, TraceFormat]:
    """Return the format of each published table by its name, and last that of any other."""
    found = {
        name: TraceFormat(each.title, each.origin, _recognizer(each), _reader(each)) for name, each in TABLES.items()
    }
    return {**found, "table": TraceFormat(ANY_TABLE.title, ANY_TABLE.origin, lambda source: True, _reader(ANY_TABLE))}


def _recognizer(table: Table) -> Callable[[TraceSource], bool]:
    return lambda source: table.marks <= {_plain(name) for name in source.names}


def _reader(table: Table) -> Callable[[TraceSource], Recording]:
    return lambda source: read_table(source, table)


def read_table(source: TraceSource, table: Table) -> Recording:
    """Return the recording of a table.

    Raises:
        UserError: with file and line, if a column is missing, a row has no time and two lengths, or nothing is left.
    """
    if not _recognizer(table)(source):
        rule = f"its columns are not those of {table.title} ({_listed(source.names)})"
        raise UserError(f"{source.file}:1: {rule}; choose another format")
    recorder, columns, dates = Recorder(source.file, table.title), find_columns(source), set[bool]()
    prompts, answers = (_beside(source.names, columns[column]) for column in ("input", "output"))
    session_of, turns = _sessions(table, columns.get("session")), _Turns(columns["time"])
    for place, row in source.rows:
        lacks = table.lacks(row)
        if lacks is not None:
            recorder.left_out[lacks] += 1
            continue
        session = session_of(row)
        try:
            at, is_date, pause = turns.arrival(row, session)
            prompt = length(row[columns["input"]]) + sum(length(row.get(name)) for name in prompts)
            answer = length(row[columns["output"]]) + sum(length(row.get(name)) for name in answers)
            dates.add(is_date)
            if len(dates) > 1 or (not is_date and at < 0):
                raise ValueError(at)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise UserError(f"{place}: {_fault(row, columns)}; correct or remove that line") from None
        blocks = _blocks(place, row, columns)
        if recorder.is_new(None if table.key is None else row.get(table.key)):
            recorder.add(at, prompt, answer, blocks, session, _end(row, columns), turns.place(session), pause)
    counted = {"prompts": prompts, "answers": answers}
    remarks = [f"{what} count {' and '.join(names)}, too" for what, names in counted.items() if names]
    remarks += [*turns.remarks, *_unread(source, table, columns)]
    found = recorder.recording(FORMS, has_turns=turns.delayed > 0, dates=dates == {True}, remarks=tuple(remarks))
    return with_block_size(replace(found, unit=_unit(source, table, columns["time"], found)), source, table)


def _beside(names: Sequence[str], column: str) -> list[str]:
    """Return the columns with tokens that a column of lengths does not count."""
    return [name for name in names if _plain(name) in _BESIDE.get(_plain(column), ())]


@dataclass
class _Turns:
    """The turns of sessions whose later ones have a delay after the answer before in the place of a time.

    Attributes:
        time: name of the column of times.
        delayed: turns with a delay so far.
    """

    time: str
    delayed: int = 0
    _last: dict[Any, tuple[int, float, bool]] = field(default_factory=dict)

    def arrival(self, row: Row, session: Any) -> tuple[float, bool, float | None]:
        """Return the time of a row, whether it is a date, and the pause before it; None: not known.

        A row with a delay only arrives so long after the row before in its session, whose answer takes an unknown time.
        Dates are in seconds, and delays beside them in ms.

        Raises:
            ValueError: if the row has no time, and no delay after another turn.
        """
        delay = number(row.get(_DELAY))
        turn, before, is_date = self._last.get(session, (-1, 0.0, False)) if session is not None else (-1, 0.0, False)
        if delay is not None and (delay < 0 or (turn < 0 and row.get(self.time) is None)):
            raise ValueError(delay)
        if delay is None or row.get(self.time) is not None:
            at, is_date = time_of(row[self.time])
        pause = None if delay is None else delay / 1000 if is_date else delay
        if pause is not None and row.get(self.time) is None:
            at = before + pause
        if session is not None:
            self._last[session] = turn + 1, at, is_date
        self.delayed += delay is not None and turn >= 0
        return at, is_date, pause if turn >= 0 else None

    def place(self, session: Any) -> int:
        """Return the number of the last turn of a session in the order of the file, from 0."""
        return self._last[session][0] if session is not None else 0

    @property
    def remarks(self) -> list[str]:
        """What the recording says of delays."""
        rule = "turns with a delay after the answer before: {:,}; their times count no answers, their pauses are exact"
        return [rule.format(self.delayed)] * bool(self.delayed)


def _blocks(place: str, row: Row, columns: Mapping[Column, str]) -> Sequence[Any]:
    """Return the numbers of a row's blocks.

    Raises:
        UserError: if they are none.
    """
    blocks = _unpacked(row.get(columns["blocks"]) if "blocks" in columns else None) or ()
    if not isinstance(blocks, Sequence) or isinstance(blocks, str) or not all(map(_is_block, blocks)):
        raise UserError(f"{place}: {str(blocks)[:40]!r} are no block numbers; correct or remove that line")
    return blocks


def _unread(source: TraceSource, table: Table, columns: Mapping[Column, str]) -> list[str]:
    """Return a remark on the columns that have values and are not read; none without them."""
    read = {*columns.values(), table.key, table.parent, _DELAY, *table.reads}
    # pandas writes its index without a name
    known = {*itertools.chain(*_BESIDE.values()), *_BLOCK_SIZE, "usage details", ""}
    others = [name for name in source.names if name not in read and _plain(name) not in known]
    filled = [name for name in others if any(row.get(name) not in _NO_VALUES for _, row in source.rows)]
    return [f"columns that are not read: {_listed(filled)}{', …' if len(filled) > 12 else ''}"] * bool(filled)


def _fault(row: Row, columns: Mapping[Column, str]) -> str:
    """Return what is wrong with the time or the lengths of a row."""
    if _DELAY in row and row.get(columns["time"]) is None:
        return f"it has a delay and no {columns['time']}, and no turn of its session is before it, or a wrong length"
    names = ", ".join(columns[column] for column in _NEEDED)
    rule = f"{names} are not a time and two lengths from 0 to {LARGEST_LENGTH}, or the time is negative"
    values = ", ".join(_shown(row.get(columns[column])) for column in _NEEDED)
    return f"{rule} ({values}; a date is such as 2026-11-30T10:56:27)"


def _shown(value: Any) -> str:
    """Return the beginning of a value of a file."""
    return "nothing" if value is None else repr(value)[:40]


def _end(row: Row, columns: Mapping[Column, str]) -> float | None:
    """Return when the answer of a row ended; None without a time."""
    try:
        return time_of(row[columns["end"]])[0]
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


_PART = re.compile(r"-?(?:0x)?[0-9a-f]+", re.IGNORECASE)
_LIST = re.compile(rf"{_PART.pattern}(?:(?:\s*[|;,]\s*|\s+){_PART.pattern})*", re.IGNORECASE)
"""A list of numbers or hashes in a cell: `11|22`, `11,22`, `0x1f 0x2e`."""


def _unpacked(blocks: Any) -> Any:
    """Return the list that a cell of CSV has as text, as JSON or with separators; anything else as it is."""
    if isinstance(blocks, str) and _LIST.fullmatch(blocks.strip()):
        return _PART.findall(blocks)
    try:
        return json.loads(blocks) if isinstance(blocks, str) and blocks.startswith("[") else blocks
    except (ValueError, RecursionError):
        return blocks


def _is_block(value: Any) -> bool:
    return isinstance(value, int | str)


def _sessions(table: Table, column: str | None) -> Callable[[Row], Any]:
    """Return a function of rows in their order that returns the key of each one's session; None: it has none."""
    if table.parent is None or table.key is None:
        return lambda row: (row.get(column) or None) if column else None
    key, parent, first = table.key, table.parent, dict[Any, Any]()

    def session_of(row: Row) -> Any:
        before, own = row.get(parent), row.get(key)
        first[own] = own if before in (None, -1) else first.get(before, before)
        return first[own]

    return session_of


def with_block_size(recording: Recording, source: TraceSource, table: Table) -> Recording:
    """Return a recording with the size of its blocks, or without blocks if nobody says how large they are.

    Raises:
        UserError: if the size that the user states is too large for the number of blocks.
    """
    requests, stated = recording.requests, source.options.block_tokens
    if not any(each.blocks for each in requests):
        return recording
    if stated is not None and has_short_blocks(requests, stated):
        rule = f"a prompt has more blocks than its length has parts of {stated} tokens"
        raise UserError(f"{source.file}: {rule}; give a smaller size of blocks")
    own = _own_block_size(source)
    told = own or table.block_tokens
    said = told if told and not has_short_blocks(requests, told) else None
    size = stated or said or find_block_tokens(requests)
    if size is None:
        bare = tuple(replace(each, blocks=()) for each in requests)
        remark = "its blocks are left out, because their size is not known; import it with the size of its blocks"
        return replace(recording, requests=bare, lacks_block_size=True, remarks=(*recording.remarks, remark))
    of_file = "as the file says" if own else f"as {table.title}'s description says"
    how = "as stated" if stated else of_file if said else "the only size that fits"
    partly = sum(len(each.blocks) < -(-each.input_tokens // size) for each in requests)
    remarks = [f"its blocks have {size} tokens, {how}"]
    remarks += [f"prompts with blocks for their beginning only: {partly:,}; the rest is taken as their own"] * bool(
        partly
    )
    return replace(recording, block_tokens=size, remarks=(*recording.remarks, *remarks))


def _own_block_size(source: TraceSource) -> int | None:
    """Return the size of blocks that every row states; None: they state none, or several."""
    name = next((name for name in source.names if _plain(name) in _BLOCK_SIZE), None)
    sizes = {number(row.get(name)) for _, row in source.rows} if name is not None else set()
    size = sizes.pop() if len(sizes) == 1 else None
    return int(size) if size and size == int(size) and size >= 1 else None


def find_columns(source: TraceSource) -> dict[Column, str]:
    """Return the name of each column that a table has.

    Raises:
        UserError: if the time or a length has no column, or a name that the user states is none.
    """
    found: dict[Column, str] = {}
    for column, known in _NAMES.items():
        stated = source.options.columns.get(column)
        if stated is not None and stated not in source.names:
            raise UserError(f"{source.file}:1: no column is called {stated!r}; there are {_listed(source.names)}")
        name = stated or next((name for each in known for name in source.names if _without_unit(name) == each), None)
        if name is not None:
            found[column] = name
        elif column in _NEEDED:
            rule = "this is not the first line of a trace with lengths: no column has the"
            there, remedy = _listed(source.names), f"import it with the name of that column, or give {FORMS}"
            raise UserError(f"{source.file}:1: {rule} {_NEEDED[column]} ({there}); {remedy}")
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name[:40] for name in names[:12]) or "there are none"


def _unit(source: TraceSource, table: Table, time: str, recording: Recording) -> Unit | None:
    """Return the unit that the name of the column or the format tells; None: neither does."""
    if recording.dates:
        return "s"
    last = _plain(time).split()[-1]
    if last in _UNIT_WORDS:
        return _UNIT_WORDS[last]
    if table.unit != "ms":
        return table.unit
    requests = recording.requests
    other = any(each.at % 1 for each in requests) or has_short_blocks(requests, table.block_tokens or 1)
    per_ms = (len(requests) - 1) / (requests[-1].at - requests[0].at or math.inf)
    return None if other or _DENSE[0] < per_ms <= _DENSE[1] else "ms"


def _without_unit(name: str) -> str:
    words = _plain(name).split()
    return " ".join(words[:-1] if len(words) > 1 and words[-1] in _UNIT_WORDS else words)


def _plain(name: str) -> str:
    """Return a name in lower case with spaces between its words: `context tokens` for `ContextTokens`."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name))
    return " ".join(re.findall(r"[a-z0-9]+", spaced.lower()))


def time_of(value: Any) -> tuple[float, bool]:
    """Return a time, and whether it was a date, which is then in seconds since 1970.

    Raises:
        ValueError: if it is neither.
    """
    found = number(value)
    if found is not None:
        return found, False
    text = _OFFSET.sub(r"\1", str(value).strip()).replace(" UTC", "+00:00")
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp(), True
