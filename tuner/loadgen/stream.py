"""Parse the bytes of a streamed answer, each piece with its time, into token times, usage and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Piece = tuple[float, bytes]
"""The time at which some bytes had arrived, in seconds, and the bytes."""

_DATA = b"data:"
_FIELD = re.compile(rb"[\w-]*:.*", re.DOTALL)
_BEGINNING = re.compile(rb"[\w-]*(:.*)?", re.DOTALL)
_COUNT_LIMIT = 2**63
_SHOWN = 200


class MalformedError(ValueError):
    """The stream contains text that is no event of the API."""


@dataclass(frozen=True)
class StreamedAnswer:
    """A parsed stream. `times_s` has a time for each event with text; `finished` is True after `[DONE]`.

    Token counts are those of the server, None if it sent none. `error` is the beginning of an error event. `cut` is
    True if the server states that the answer ended at its limit of tokens.
    """

    times_s: tuple[float, ...]
    input_tokens: int | None
    output_tokens: int | None
    finished: bool
    error: str | None = None
    cut: bool = False


def read_answer(pieces: Sequence[Piece]) -> StreamedAnswer:
    """Parse server-sent events of OpenAI's completions or chat API.

    Raises:
        MalformedError: for a line that is no event, and for an event that is no JSON object of that API.
    """
    times: list[float] = []
    usage: dict[str, Any] = {}
    finished, error, cut = False, None, False
    for at, data in _events(pieces):
        if data == b"[DONE]":
            finished = True
            continue
        event = _object(data)
        if event.get("error") is not None:
            error = data[:_SHOWN].decode("utf-8", "replace")
            continue
        usage = _usage(event, data) or usage
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise MalformedError(f"an event without choices: {data[:80]!r}")
        counted = isinstance(event.get("usage"), dict)
        cut = cut or any(isinstance(each, dict) and each.get("finish_reason") == "length" for each in choices)
        if any(_has_text(choice, counted) for choice in choices):
            times.append(at)
        elif choices and counted and not times and usage.get("completion_tokens"):
            times.append(at)  # an answer of bytes that are no text is complete with its last event
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return StreamedAnswer(tuple(times), *counts, finished, error, cut)


def _usage(event: dict[str, Any], data: bytes) -> dict[str, Any]:
    usage = event.get("usage") or {}
    if not isinstance(usage, dict) or not all(
        count is None or (type(count) is int and 0 <= count < _COUNT_LIMIT)
        for count in (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    ):
        raise MalformedError(f"a usage without token counts: {data[:80]!r}")
    return usage


def _has_text(choice: Any, counted: bool) -> bool:
    """Return whether a choice has a token. Its text may be empty; beside the usage (`counted`) that is the end alone.

    llama.cpp ends a stream with an event that has the usage and a choice with an empty text.
    """
    if not isinstance(choice, dict):
        raise MalformedError(f"a choice that is no object but a {type(choice).__name__}")
    if "text" in choice:
        return bool(choice["text"]) or not counted
    delta = choice.get("delta")
    return isinstance(delta, dict) and bool(delta.get("content") or delta.get("reasoning_content"))


def _object(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedError(f"an event that is no JSON: {data[:80]!r}") from None
    if not isinstance(event, dict):
        raise MalformedError(f"an event that is no object: {data[:80]!r}")
    return event


def _events(pieces: Sequence[Piece]) -> Iterator[tuple[float, bytes]]:
    """Yield each event's data with the time at which its last byte had arrived."""
    event: list[bytes] = []
    begun: list[bytes] = []
    for at, piece in pieces:
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line = b"".join((*begun, end)).removesuffix(b"\r")
            begun.clear()
            if line:
                event.extend(_data(line))
            else:
                yield from ((at, data) for data in event)
                event.clear()
        begun.append(rest)
    beginning = b"".join(begun).strip()
    if not _BEGINNING.fullmatch(beginning):
        raise MalformedError(f"a line that is no field of an event: {beginning[:80]!r}")


def _data(line: bytes) -> Iterator[bytes]:
    """Yield the data that a line adds to its event."""
    if line.startswith(_DATA):
        yield line[len(_DATA) :].strip()
    elif line.strip() and not _FIELD.fullmatch(line):
        raise MalformedError(f"a line that is no field of an event: {line[:80]!r}")
