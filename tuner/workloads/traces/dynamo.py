"""Dynamo's request traces, which `DYN_REQUEST_TRACE=1` writes: JSONL, by default packed with gzip.

A record has `schema: dynamo.request.trace.v1`. Those of the type `request_end` have the time in ms, the tokens of the
answer, and under `replay` the length of the prompt, hashes of its blocks, and the blocks' size. `agent_context` has the
session (https://docs.nvidia.com/dynamo/dev/reference/observability/request-traces). File sinks wrap a record as
`{"timestamp": …, "event": …}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.errors import UserError
from tuner.workloads.traces.recording import Recorder, Recording, length, number
from tuner.workloads.traces.source import FORMS, TraceFormat, TraceSource

SCHEMA = "dynamo.request.trace.v1"
NO_REPLAY = "replay data"


def read_dynamo(source: TraceSource) -> Recording:
    """Return the recording of a request trace.

    Raises:
        UserError: with file and line, for a record of another schema, without a time or lengths, or with blocks of
            another size than the others'.
    """
    recorder, size = Recorder(source.file, DYNAMO.title), None
    for place, entry in source.entries:
        event = _event(entry)
        if event.get("schema") != SCHEMA:
            raise UserError(
                f"{place}: its schema is {str(event.get('schema'))[:40]!r}, not {SCHEMA!r}; give such a trace"
            )
        if event.get("event_type") != "request_end":
            continue
        request, session = _part(event, "request"), _part(event, "agent_context").get("session_id")
        replay = _part(request, "replay")
        if not replay:
            recorder.left_out[NO_REPLAY] += 1
            continue
        try:
            at, lengths = (
                _received_ms(event, request),
                (length(replay["input_length"]), length(request.get("output_tokens"))),
            )
            blocks, own = list(replay["input_sequence_hashes"]), length(replay["trace_block_size"])
        except (KeyError, ValueError, TypeError):
            rule = "a `request_end` has no time, lengths and hashes of blocks"
            raise UserError(f"{place}: {rule}; correct or remove that line") from None
        if own < 1 or (size is not None and own != size) or len(blocks) > -(-lengths[0] // max(1, own)):
            rule = f"its blocks of {own} tokens are not those of the records before, or too many for the prompt"
            raise UserError(f"{place}: {rule}; give records of one deployment")
        size = own
        if recorder.is_new(request.get("request_id")):
            recorder.add(at, *lengths, blocks, session, number(event.get("event_time_unix_ms")))
    remarks = (f"its blocks have {size} tokens, as the file says",)
    return recorder.recording(FORMS, unit="ms", block_tokens=size, remarks=remarks)


def _event(entry: Any) -> Mapping[str, Any]:
    wrapped = entry.get("event") if isinstance(entry, Mapping) else None
    found = wrapped if isinstance(wrapped, Mapping) else entry
    return found if isinstance(found, Mapping) else {}


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = whole.get(name)
    return found if isinstance(found, Mapping) else {}


def _received_ms(event: Mapping[str, Any], request: Mapping[str, Any]) -> float:
    """Return when a request was received; its end less its duration, where the record has no such time."""
    received, ended = number(request.get("request_received_ms")), number(event.get("event_time_unix_ms"))
    took = number(request.get("total_time_ms"))
    if received is None and ended is not None and took is not None:
        received = ended - took
    if received is None or received < 0:
        raise ValueError(received)
    return received


def _recognizes(source: TraceSource) -> bool:
    return str(_event(source.first).get("schema", "")).startswith("dynamo.request.trace")


DYNAMO = TraceFormat(
    "Dynamo's request trace",
    "https://docs.nvidia.com/dynamo/dev/reference/observability/request-traces",
    _recognizes,
    read_dynamo,
)
