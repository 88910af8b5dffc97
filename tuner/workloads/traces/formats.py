"""The formats of recorded traffic by name: those of the tuner, and those that packages register as `tuner.traces`."""

from __future__ import annotations

import codecs
from functools import cache
from pathlib import Path

from records.plugins import plugins, unusable
from tuner.errors import SettingError
from tuner.workloads.prefixes import shared_segments
from tuner.workloads.reading import read_lines
from tuner.workloads.traces.conversations import CONVERSATIONS
from tuner.workloads.traces.dynamo import DYNAMO
from tuner.workloads.traces.otlp import OTLP
from tuner.workloads.traces.prometheus import PROMETHEUS
from tuner.workloads.traces.recording import Recording, Unit, in_seconds, number
from tuner.workloads.traces.requests_file import REQUESTS
from tuner.workloads.traces.source import FORMS, ReadOptions, TraceFormat, open_source
from tuner.workloads.traces.tables import table_formats
from tuner.workloads.traces.vllm_log import VLLM_LOG
from tuner.workloads.traces.weka import WEKA

GROUP = "tuner.traces"
"""The entry point group: each entry is a `TraceFormat`, and its name is that of the format."""


@cache
def trace_formats() -> dict[str, TraceFormat]:
    """Return every format by its name; the first one that recognizes a file reads it.

    Raises:
        PluginError: for a registered format that cannot be loaded, or has the name of another one.
    """
    own = {"requests": REQUESTS, "dynamo": DYNAMO, "otlp": OTLP, "sharegpt": CONVERSATIONS, "vllm-log": VLLM_LOG}
    own |= {"weka": WEKA, "prometheus": PROMETHEUS, **table_formats()}
    found: dict[str, TraceFormat] = {}
    for entry, each in plugins(GROUP, TraceFormat):
        if entry.name in own or entry.name in found:
            raise unusable(entry, "has the name of another format")
        found[entry.name] = each
    return found | own


def read_as(file: Path, name: str | None, options: ReadOptions) -> Recording:
    """Return the recording of a file in the format of a name; None: in the first one that recognizes it.

    Raises:
        SettingError: for an unknown name.
        UserError: with the place and the reason, if the file does not have the format.
    """
    known = trace_formats()
    if name is not None and name not in known:
        raise SettingError("format", name, f"the formats are {', '.join(known)}", "choose one")
    source = open_source(file, options)
    chosen = known[name] if name is not None else next(each for each in known.values() if each.recognizes(source))
    return chosen.read(source)


@cache
def read_recording(file: Path) -> Recording:
    """Return the recording of a file, in the format that recognizes it.

    Raises:
        UserError: with file and line, if the file cannot be read, has another form, or has no request.
    """
    return read_as(file, None, ReadOptions())


@cache
def longest_shared(file: Path) -> int:
    """Return the tokens of the longest beginning that two prompts of a recording share."""
    recording = read_recording(file)
    if recording.block_tokens is None:
        return 0
    lengths = [each.input_tokens for each in recording.requests]
    paths = shared_segments([each.blocks for each in recording.requests], lengths, recording.block_tokens)
    return max(sum(each.tokens for each in path) for path in paths)


def read_times(file: Path, unit: Unit | None) -> list[float]:
    """Return the times of a file in seconds: of a recording, or one number per line, in order.

    Raises:
        UserError: with file and line, if the file cannot be read, is empty or has another form, and as `in_seconds`.
    """
    begin = open_source(file, ReadOptions()).content[:_LINE].removeprefix(codecs.BOM_UTF8).lstrip()
    if begin and number(begin.splitlines()[0].strip().rstrip(b",")) is None:
        return read_recording(file).times_s(unit)

    def next_time(text: str, before: list[float]) -> float:
        at = number(text.rstrip(","))
        if at is None:
            raise ValueError(f"{text[:40]!r} is not a time in {unit or 'seconds'}; give one number per line")
        if before and at < before[-1]:
            raise ValueError(f"{at:g} {unit or 's'} follows {before[-1]:g} {unit or 's'}; sort the trace by time")
        return at

    return in_seconds(file, read_lines(file, "trace", _TIMES, next_time), unit, "s")


_LINE = 2**12
"""Bytes at the beginning of a file that tell whether its first line is a number."""

_TIMES = f"a file with one time in seconds per line, or {FORMS}"
