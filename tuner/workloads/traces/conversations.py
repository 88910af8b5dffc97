"""Data sets of conversations, such as ShareGPT: each answer is a request, and each conversation a session.

The prompt of an answer is all that was said before it. There are no times
(https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered, and for OpenAI's form
https://platform.openai.com/docs/api-reference/chat). The forms are those of `tuner.workloads.reading`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.workloads.reading import TURNS, turns_of
from tuner.workloads.traces.recording import Recorder, Recording
from tuner.workloads.traces.source import FORMS, TraceFormat, TraceSource
from tuner.workloads.traces.texts import BLOCK_TOKENS, TextMeter

NO_TURN = "an answer to a human's text"
NO_TEMPLATE = "a chat template's own tokens are not counted"


def read_conversations(source: TraceSource) -> Recording:
    """Return the recording of a data set of conversations."""
    recorder, meter = Recorder(source.file, CONVERSATIONS.title), TextMeter(source.options.encode)
    at = 0
    for place, entry in source.entries:
        found = list(_answers(entry))
        recorder.left_out[NO_TURN] += not found
        for before, answer in found:
            tokens, blocks = meter.measure(before)
            recorder.add(at, tokens, meter.tokens(answer), blocks, place)
            at += 1
    remarks = (*meter.remarks, NO_TEMPLATE)
    recorder.left_out = +recorder.left_out
    return recorder.recording(FORMS, timed=False, block_tokens=BLOCK_TOKENS, remarks=remarks)


def _answers(entry: Any) -> Iterator[tuple[str, str]]:
    """Yield the text before each answer of the assistant that a human's text came before, and the answer."""
    before, asked = "", False
    for human, text in turns_of(entry):
        if human is False and asked:
            yield before, text
            asked = False
        asked = asked or human is True
        before += f"{text}\n"


def _recognizes(source: TraceSource) -> bool:
    body = source.first.get("body")
    entry = body if isinstance(body, dict) else source.first
    return any(isinstance(entry.get(name), list | str) for name in TURNS)


CONVERSATIONS = TraceFormat(
    "ShareGPT",
    "https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered",
    _recognizes,
    read_conversations,
)
