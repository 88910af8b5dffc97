"""WekaIO's sessions of coding agents: a JSON object is a conversation, and a file has one, or one in each line.

`requests` has calls with `t` in seconds from the conversation's beginning, `in`, `out`, `hash_ids` of `block_size`
tokens, and mostly `api_time`, the seconds to the answer's end (https://github.com/callanjfox/kv-cache-tester,
docs/trace_replay_tester.md; https://huggingface.co/datasets/semianalysisai/cc-traces-weka-061326). An entry of the type
`subagent` has `requests` of its own: a session beside its parent's. Their `t` count from that of the entry, or in the
files of SemiAnalysis from the conversation's beginning. Equal numbers are equal blocks within a conversation, and
everywhere if `hash_id_scope` is `global`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.errors import UserError
from tuner.workloads.traces.recording import Recorder, Recording, length, number
from tuner.workloads.traces.source import FORMS, TraceFormat, TraceSource

_TOGETHER = "its {:,} conversations all begin at 0, because nobody says when each began"
_BLOCKS = "its blocks have {} tokens, as the file says"


def read_weka(source: TraceSource) -> Recording:
    """Return the recording of conversations.

    Raises:
        UserError: with file and line, for an entry that is no conversation, a call without a time or lengths, or blocks
            of another size than the others'.
    """
    recorder, size = Recorder(source.file, WEKA.title), 0
    for place, trace in source.entries:
        try:
            own, name = length(trace["block_size"]), str(trace["id"])
            if own < 1 or size not in (0, own):
                raise UserError(f"{place}: its blocks of {own} tokens are not those before it; give one size a file")
            size, scope = own, "" if trace.get("hash_id_scope") == "global" else name
            for session, at, call in _calls(trace["requests"], name, 0.0):
                took, lengths = number(call.get("api_time")), (length(call["in"]), length(call["out"]))
                blocks = [(scope, block) for block in call.get("hash_ids") or ()][: -(-lengths[0] // size)]
                recorder.add(at, *lengths, blocks, session, None if took is None else at + took)
        except (KeyError, ValueError, TypeError, AttributeError):
            rule = "this is no conversation with id, block_size and requests, each with t, in and out"
            raise UserError(f"{place}: {rule}; correct or remove it") from None
    count = len(source.entries)
    remarks = [_BLOCKS.format(size), *[_TOGETHER.format(count)] * (count > 1)]
    return recorder.recording(FORMS, unit="s", block_tokens=size, remarks=tuple(remarks))


def _calls(entries: Any, session: str, begin: float) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
    """Yield the session, the time and the entry of each call, those of subagents included."""
    for place, entry in enumerate(entries):
        at = begin + float(entry["t"])
        inner = entry.get("requests")
        if inner is None:
            yield session, at, entry
        elif inner:
            absolute = float(inner[0]["t"]) >= at
            yield from _calls(inner, f"{session}/{place}", 0.0 if absolute else at)


def _recognizes(source: TraceSource) -> bool:
    return isinstance(source.first.get("requests"), list) and "block_size" in source.first


WEKA = TraceFormat("WekaIO", "https://github.com/callanjfox/kv-cache-tester", _recognizes, read_weka)
