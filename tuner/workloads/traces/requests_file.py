"""The tuner's own file of requests, which an import writes beside the traffic file.

It is JSONL. The first line is {"tuner_requests": 1, "block_tokens": 512}, and each other line a request in the order of
their arrival, with the time in seconds from the first: {"at_s": 0.5, "input": 6755, "output": 500, "blocks": [0, 1],
"session": 3, "turn": 1, "pause_s": 2.5}. `pause_s` is from the last answer of the turn before. `blocks`, `session`,
`turn` and `pause_s` may be missing. There are no texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.errors import UserError
from tuner.workloads.traces.recording import RecordedRequest, Recorder, Recording, length, number
from tuner.workloads.traces.source import TraceFormat, TraceSource

_MARK = "tuner_requests"
_VERSION = 1
_FORM = "a file that `tuner traffic import` wrote"


def requests_text(requests: Sequence[RecordedRequest], times_s: Sequence[float], block_tokens: int | None) -> str:
    """Return the content of a file of requests, whose pauses are in seconds."""
    head = {_MARK: _VERSION, "block_tokens": block_tokens}
    return "\n".join(json.dumps(each) for each in (head, *_rows(requests, times_s))) + "\n"


def _rows(requests: Sequence[RecordedRequest], times_s: Sequence[float]) -> Iterator[dict[str, Any]]:
    for each, at in zip(requests, times_s, strict=True):
        row: dict[str, Any] = {"at_s": round(at, 6), "input": each.input_tokens, "output": each.output_tokens}
        row |= {"blocks": each.blocks} if each.blocks else {}
        row |= {"session": each.session, "turn": each.turn} if each.session is not None else {}
        yield row | ({"pause_s": round(each.pause, 6)} if each.pause is not None else {})


def read_requests_file(source: TraceSource) -> Recording:
    """Return the recording of a file of requests.

    Raises:
        UserError: with file and line, for another version or a line that is no request.
    """
    (place, head), *rows = source.entries
    size = head.get("block_tokens")
    if head.get(_MARK) != _VERSION or not (size is None or _is_count(size)):
        raise UserError(f"{place}: not version {_VERSION} of a file of requests; give {_FORM}")
    recorder = Recorder(source.file, REQUESTS.title)
    for place, row in rows:
        try:
            at, lengths = number(row["at_s"]), (length(row["input"]), length(row["output"]))
            blocks, session, turn = row.get("blocks", ()), row.get("session"), row.get("turn", 0)
            pause = row.get("pause_s")
            if at is None or at < 0 or len(blocks) > -(-lengths[0] // (size or 1)) or not all(map(_is_id, blocks)):
                raise ValueError(at)
            if not _is_id(turn) or turn < 0 or (pause is not None and (number(pause) is None or pause < 0)):
                raise ValueError(at)
        except (KeyError, ValueError, TypeError, AttributeError):
            raise UserError(f"{place}: this is no request with at_s, input and output; give {_FORM}") from None
        recorder.add(at, *lengths, blocks if size else (), session, turn=turn, pause=pause)
    has_turns = all("turn" in row for _, row in rows if row.get("session") is not None)
    return recorder.recording(_FORM, has_turns=has_turns, unit="s", block_tokens=size)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_id(value: Any) -> bool:
    return isinstance(value, int)


REQUESTS = TraceFormat(
    "the tuner's requests", "docs/workloads.md", lambda source: _MARK in source.first, read_requests_file
)
