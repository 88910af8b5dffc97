"""From the bytes of a streamed answer, each piece with its time, to tokens, gaps, usage and what went wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Piece = tuple[float, bytes]
"""Seconds at which some bytes had arrived, and the bytes."""

_DATA = b"data:"


class MalformedError(ValueError):
    """The stream held something that is no event of the API."""


@dataclass(frozen=True)
class Answer:
    """What a stream said. `times_s` has a time for each event that carried text; `finished` is True after `[DONE]`.

    Token counts are the server's own, None if it did not tell them; `error` is what an error event said.
    """

    times_s: tuple[float, ...]
    input_tokens: int | None
    output_tokens: int | None
    finished: bool
    error: str | None = None


def read_answer(pieces: Sequence[Piece]) -> Answer:
    """Read server-sent events of OpenAI's completions or chat API.

    Raises:
        MalformedError: for an event that is no JSON object of that API.
    """
    times: list[float] = []
    usage: dict[str, Any] = {}
    finished, error = False, None
    for at, data in _events(pieces):
        if data == b"[DONE]":
            finished = True
            continue
        event = _object(data)
        if "error" in event:
            error = str(event["error"])
            continue
        usage = event.get("usage") or usage
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise MalformedError(f"an event without choices: {data[:80]!r}")
        if any(_has_text(choice) for choice in choices):
            times.append(at)
    return Answer(tuple(times), usage.get("prompt_tokens"), usage.get("completion_tokens"), finished, error)


def _has_text(choice: Any) -> bool:
    if not isinstance(choice, dict):
        raise MalformedError(f"a choice that is no object: {str(choice)[:80]!r}")
    if "text" in choice:
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and bool(delta.get("content") or delta.get("reasoning_content"))


def _object(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        raise MalformedError(f"an event that is no JSON: {data[:80]!r}") from None
    if not isinstance(event, dict):
        raise MalformedError(f"an event that is no object: {data[:80]!r}")
    return event


def _events(pieces: Sequence[Piece]) -> Iterator[tuple[float, bytes]]:
    """Yield each event's data with the time at which its last byte had arrived."""
    rest = b""
    for at, piece in pieces:
        *whole, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            yield from ((at, data) for data in _data_lines(event))


def _data_lines(event: bytes) -> Iterator[bytes]:
    for line in event.split(b"\n"):
        if line.startswith(_DATA):
            yield line[len(_DATA) :].strip()
        elif line.strip() and not line.startswith(b":") and b":" not in line:
            raise MalformedError(f"a line that is no field of an event: {line[:80]!r}")
