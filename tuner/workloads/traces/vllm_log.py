"""vLLM's log of requests, as `vllm serve --enable-log-requests --enable-log-outputs` writes it.

In vLLM 0.32, prompts are in lines of the level DEBUG (`VLLM_LOGGING_LEVEL=DEBUG`); in older versions, they are in the
lines with `Received request`. Both are written by `vllm/entrypoints/serve/utils/request_logger.py`, earlier
`vllm/entrypoints/logger.py` (https://github.com/vllm-project/vllm). Token ids are counted where they are logged,
otherwise texts are measured. A log has whole seconds and no year.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from tuner.errors import UserError
from tuner.workloads.reading import split_lines
from tuner.workloads.traces.recording import Recorder, Recording
from tuner.workloads.traces.source import FORMS, TraceFormat, TraceSource
from tuner.workloads.traces.texts import BLOCK_TOKENS, TextMeter

_STAMP = re.compile(r"(?:^|\s)(?:DEBUG|INFO|WARNING) (?:\d{4}-)?(\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) \[[^\]]*\] (.*)")
_RECEIVED = re.compile(r"Received request (\S+): ")
_DETAILS = re.compile(r"Request (\S+) details: ")
_GENERATED = re.compile(
    r"Generated response (\S+?)(?: \(streaming complete\))?(?: details)?: (?:output|output_token_ids): "
)
_TEXT = r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
_PROMPT = re.compile(rf"\bprompt: {_TEXT}")
_OUTPUT = re.compile(rf"\boutput: {_TEXT}")
_PROMPT_IDS = re.compile(r"\bprompt_token_ids: \[([\d, ]*)\]")
_OUTPUT_IDS = re.compile(r"\boutput_token_ids: \[([\d, ]*)\]")
_CUT = re.compile(r"'max_log_len': (\d+)|--max-log-len[= ](\d+)")
_YEAR = 2024
"""The year of the log's beginning, which it does not have; it has a 29 February."""

NO_PROMPT = "a prompt in the log, which needs the level DEBUG"
NO_ANSWER = "an answer in the log"
CUT = "the whole of its text: the log is cut at its maximal length"
WHOLE_SECONDS = "times are whole seconds, so requests of one second arrive together"


@dataclass
class _Logged:
    """What a log has of one request: a text, or its token ids."""

    at: float
    prompt: str | None = None
    prompt_ids: list[int] | None = None
    output: str | None = None
    output_ids: list[int] | None = None


def read_log(source: TraceSource) -> Recording:
    """Return the recording of a log.

    Raises:
        UserError: if no request of the log has a prompt and an answer.
    """
    logged, cut = _requests(source)
    recorder, meter = Recorder(source.file, VLLM_LOG.title), TextMeter(source.options.encode)
    measured = False
    for each in logged.values():
        lacks = _lacks(each, cut)
        if lacks is not None:
            recorder.left_out[lacks] += 1
            continue
        ids, text = each.prompt_ids, each.prompt or ""
        tokens, blocks = meter.measure_ids(ids) if ids is not None else meter.measure(text)
        answer = len(each.output_ids) if each.output_ids is not None else meter.tokens(each.output or "")
        measured = measured or ids is None or each.output_ids is None
        recorder.add(each.at, tokens, answer, blocks)
    remarks = (
        *(meter.remarks if measured else ()),
        *((WHOLE_SECONDS,) * all(not each.at % 1 for each in logged.values())),
    )
    return recorder.recording(FORMS, dates=True, block_tokens=BLOCK_TOKENS, remarks=remarks)


def _lacks(logged: _Logged, cut: int | None) -> str | None:
    """Return what a request lacks that is left out; None: it has both lengths."""
    parts = (logged.prompt, logged.prompt_ids, logged.output, logged.output_ids)
    if cut is not None and any(each is not None and len(each) >= cut for each in parts):
        return CUT
    if not logged.prompt and not logged.prompt_ids:
        return NO_PROMPT
    return NO_ANSWER if not logged.output and not logged.output_ids else None


def _requests(source: TraceSource) -> tuple[dict[str, _Logged], int | None]:
    """Return what the log has of each request, and the length at which it cuts texts; None: it does not say."""
    found: dict[str, _Logged] = {}
    cut = None
    for at, message in _messages(source):
        limit = _CUT.search(message)
        cut = int(limit[1] or limit[2]) if limit else cut
        received = _RECEIVED.match(message) or _DETAILS.match(message)
        if received is not None:
            one = found.setdefault(received[1], _Logged(at))
            one.prompt = _literal(_PROMPT.search(message)) or one.prompt
            one.prompt_ids = _ids(_PROMPT_IDS.search(message)) or one.prompt_ids
        generated = None if received else _GENERATED.match(message)
        if generated is not None and generated[1] in found:
            one = found[generated[1]]
            one.output = _literal(_OUTPUT.search(message)) or one.output
            one.output_ids = _ids(_OUTPUT_IDS.search(message)) or one.output_ids
    return found, cut


def _messages(source: TraceSource) -> Iterator[tuple[float, str]]:
    """Yield the time and the message of each line; a month before the last one's is of the next year."""
    year, month = _YEAR, 0
    for number, line in enumerate(split_lines(source.text), 1):
        stamp = _STAMP.search(line)
        if stamp is None:
            continue
        year, month = year + (int(stamp[1][:2]) < month - 1), int(stamp[1][:2])
        try:
            at = datetime.fromisoformat(f"{year}-{stamp[1]}").replace(tzinfo=UTC)
        except ValueError:
            raise UserError(f"{source.file}:{number}: {stamp[1]!r} is no time; correct or remove that line") from None
        yield at.timestamp(), stamp[2]


def _literal(match: re.Match[str] | None) -> str | None:
    """Return the text of a Python literal; None if it is none."""
    try:
        return None if match is None else str(ast.literal_eval(match[1]))
    except (ValueError, SyntaxError):
        return None


def _ids(match: re.Match[str] | None) -> list[int] | None:
    return None if match is None else [int(each) for each in match[1].split(",") if each.strip()]


def _recognizes(source: TraceSource) -> bool:
    if source.is_json:
        return False
    return any(_STAMP.search(line) for line in split_lines(source.text[: 2**16]))


VLLM_LOG = TraceFormat(
    "vLLM's log", "https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/logger.py", _recognizes, read_log
)
