"""The use cases of `tuner traffic`: import recorded traffic, and cut it to a short benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from search_spaces.yaml_file import read_yaml, yaml_text
from tuner.engines.server.token_prompts import find_tokenizer
from tuner.errors import SettingError, UserError, reason_of
from tuner.files import write_output
from tuner.workloads.traces.cut import Comparison, Distances, cut
from tuner.workloads.traces.formats import read_as, read_recording
from tuner.workloads.traces.recording import RecordedRequest, Recording, Unit, clock_unit
from tuner.workloads.traces.requests_file import requests_text
from tuner.workloads.traces.source import Column, ReadOptions
from tuner.workloads.traces.summary import Timeline, TraceSummary, summary_of
from tuner.workloads.traffic import Poisson, TraceArrivals, Traffic, load_traffic

CLASS = "recorded"
"""The class of imported requests."""

CUT_SEED = 1000
_SMALLEST_STRETCH = 0.005
"""A cut whose gaps change by less has no remark."""


@dataclass(frozen=True)
class ImportSettings:
    """What the user says about a recording.

    Attributes:
        format: its name; None: the one that recognizes the file.
        unit: of its times; None: what the format tells.
        block_tokens: tokens of a block; None: what the format tells.
        columns: names of a table's columns that are not known ones, by what they hold.
        tokenizer: folder or hub name of the tokenizer that counts texts; None: lengths of texts are estimated.
        rate: requests/s, for a file without times.
    """

    format: str | None = None
    unit: str | None = None
    block_tokens: int | None = None
    columns: Mapping[str, str] | None = None
    tokenizer: str | None = None
    rate: float | None = None


@dataclass(frozen=True)
class WrittenTraffic:
    """Traffic that was written.

    Attributes:
        traffic: the traffic file.
        requests: the file of its requests.
        format: title of the format that was read.
        unit: how the unit of the times was found.
        summary: what the traffic is like.
        left_out: as in `Recording`.
        remarks: as in `Recording`, and what was changed for a cut.
        distances: from the whole; None: it is not cut.
        whole: the requests of the whole; None: it is not cut.
    """

    traffic: Path
    requests: Path
    format: str
    unit: str
    summary: TraceSummary
    left_out: Mapping[str, int]
    remarks: Sequence[str]
    distances: Distances | None = None
    whole: int | None = None


def import_traffic(file: Path, output: Path, settings: ImportSettings) -> WrittenTraffic:
    """Read recorded traffic, and write a traffic file and the file of its requests.

    Raises:
        UserError: for a setting that cannot work, a file that is not a recording, or an output that exists.
    """
    unit, options = _read_options(settings)
    requests = _free_outputs(output)
    recording = read_as(file, settings.format, options)
    if recording.lacks_block_size:
        rule = f"{file}: the size of its blocks is not known"
        raise SettingError("block_tokens", None, rule, "give {block_tokens}, the tokens of a block")
    times = _times_s(recording, unit, settings.rate)
    timeline = Timeline(_with_pauses_in_s(recording, unit), times, recording.block_tokens)
    arrivals = {"process": "trace", "file": requests.name} if times else {"process": "poisson", "rate": settings.rate}
    document = {
        "arrivals": arrivals,
        **({} if times else {"requests": len(recording.requests)}),
        "classes": {CLASS: {"trace": {"file": requests.name}}},
    }
    _write(output, requests, document, f"Imported from {file.name} ({recording.title})", timeline)
    return WrittenTraffic(
        output,
        requests,
        recording.title,
        _unit_found(recording, unit),
        summary_of(timeline),
        recording.left_out,
        recording.remarks,
    )


def _with_pauses_in_s(recording: Recording, unit: Unit | None) -> tuple[RecordedRequest, ...]:
    """Return the requests of a recording with their pauses in seconds; see `RecordedRequest`."""
    pauses = recording.pauses_s(unit)
    return tuple(replace(each, pause=pause) for each, pause in zip(recording.requests, pauses, strict=True))


def _read_options(settings: ImportSettings) -> tuple[Unit | None, ReadOptions]:
    """Return the unit and the options of reading.

    Raises:
        SettingError: for a unit or a column that does not exist, a size or a rate below 1, or no tokenizer.
    """
    unit: Unit | None = next((each for each in get_args(Unit) if each == settings.unit), None)
    if unit is None and settings.unit is not None:
        raise SettingError("unit", settings.unit, f"the units are {', '.join(get_args(Unit))}", "choose one")
    columns: dict[Column, str] = {}
    for name, column in (settings.columns or {}).items():
        known = next((each for each in get_args(Column) if each == name), None)
        if known is None:
            raise SettingError("column", f"{name}={column}", f"the columns are {', '.join(get_args(Column))}")
        columns[known] = column
    if settings.rate is not None and not 0 < settings.rate < float("inf"):
        raise SettingError("rate", settings.rate, "a rate is a number above 0")
    tokenizer = None if settings.tokenizer is None else find_tokenizer(settings.tokenizer)
    encode = None if tokenizer is None else lambda text: tokenizer.tokens(text, special=False)
    return unit, ReadOptions(unit, settings.block_tokens, columns, encode)


def _free_outputs(output: Path) -> Path:
    """Return the file of requests beside a traffic file; neither may exist, because a user edits both."""
    requests = output.with_name(f"{output.stem}.requests.jsonl")
    for path in (output, requests):
        if path.exists():
            raise SettingError("output", str(path), "this file exists and stays", "choose another, or remove it")
    return requests


def _times_s(recording: Recording, unit: Unit | None, rate: float | None) -> list[float] | None:
    """Return the times in seconds from the first; None for a recording without times, whose rate the user gives.

    Raises:
        SettingError: if the rate is missing, or the recording has times, too.
        UserError: as `Recording.times_s`.
    """
    if not recording.timed:
        if rate is None:
            rule = f"{recording.file}: a file of {recording.title} has no times"
            raise SettingError("rate", None, rule, "give {rate}, the requests per second")
        return None
    if rate is not None:
        raise SettingError(
            "rate", rate, "the recording has times", "leave it out, and edit `speed` in the traffic file"
        )
    times = recording.times_s(unit)
    return [at - times[0] for at in times]


def _unit_found(recording: Recording, stated: Unit | None) -> str:
    """Return which unit the times have, and who says so."""
    if not recording.timed:
        return "no times"
    if recording.dates:
        return "dates"
    if stated is not None:
        return f"{stated}, as stated"
    clock = clock_unit(recording.requests[0].at)
    return f"{clock}, by the size of clock times" if clock else f"{recording.unit}, as the format says"


def _write(output: Path, requests: Path, document: Mapping[str, Any], origin: str, timeline: Timeline) -> None:
    count = len(timeline.requests)
    head = f"# {origin}: {count:,} requests, whose times, lengths and blocks are in\n# {requests.name}."
    hint = f"# Bounds, for example:\n# slo:\n#   {CLASS}: {{p95_ttft_ms: 2000, tpot_ms: 50}}"
    end = "" if "slo" in document else f"{hint}\n"
    times = list(timeline.times_s or range(count))
    try:
        write_output(requests, requests_text(timeline.requests, times, timeline.block_tokens))
        write_output(output, f"{head}\n{yaml_text(document)}{end}")
    except OSError as error:
        raise SettingError("output", str(output), f"cannot be written: {reason_of(error)}", "choose another") from None


def cut_traffic(file: Path, count: int, output: Path, cache_tokens: int | None) -> WrittenTraffic:
    """Cut imported traffic to `count` requests that are like the whole for a cache of a size; None: an endless one.

    Raises:
        UserError: if the file is no imported traffic or has no more requests, or an output exists.
    """
    traffic = load_traffic(file)
    source = _requests_file(file, traffic)
    requests = _free_outputs(output)
    recording = read_recording(source)
    if not 2 <= count < len(recording.requests):
        rule = f"{source.name} has {len(recording.requests):,} requests"
        raise SettingError("requests", count, rule, "give fewer, at least 2")
    unit, times = None, None
    if isinstance(traffic.arrivals, TraceArrivals):
        unit = traffic.arrivals.unit
        times = recording.times_s(unit)
    whole = Timeline(_with_pauses_in_s(recording, unit), times, recording.block_tokens)
    found = cut(whole, count, CUT_SEED, cache_tokens)
    part = found.timeline
    document = dict(read_yaml(file).data)
    if times is None:
        document["requests"] = count
    else:
        document.pop("requests", None)
        document.pop("duration_s", None)
        document["arrivals"] = {**document["arrivals"], "file": requests.name}
        document["arrivals"].pop("unit", None)
    document["classes"] = {
        name: each if each.get("trace") is None else {**each, "trace": {**each["trace"], "file": requests.name}}
        for name, each in document["classes"].items()
    }
    _write(output, requests, document, f"Cut from {file.name}", part)
    changed = f"the recorded gaps are multiplied by {found.stretch:.2f}, so that the cut has the rate of the whole"
    return WrittenTraffic(
        output,
        requests,
        recording.title,
        _unit_found(recording, None),
        summary_of(part),
        {},
        () if abs(found.stretch - 1) < _SMALLEST_STRETCH else (changed,),
        Comparison(whole, cache_tokens).distances(part),
        len(whole.requests),
    )


def _requests_file(file: Path, traffic: Traffic) -> Path:
    """Return the recording that the only class of traffic has, and its times if it has recorded ones.

    Raises:
        UserError: if there are several classes, other lengths, or times of another file.
    """
    traces = [each.trace.file for each in traffic.sent_classes.values() if each.trace is not None]
    times = traffic.arrivals.file if isinstance(traffic.arrivals, TraceArrivals) else None
    rated = isinstance(traffic.arrivals, Poisson)
    if len(traces) != 1 or len(traffic.sent_classes) != 1 or not (rated or times == traces[0]):
        rule = "a cut is of one recording: one class with `trace`, and times of the same file"
        raise UserError(f"{file}: {rule}; give a file that `tuner traffic import` wrote")
    return traces[0]
