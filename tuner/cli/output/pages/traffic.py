"""What `tuner traffic` prints: what the traffic is like, what was left out, and the distances of a cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table

from tuner.cli.output.parts import new_table, show
from tuner.results.text import count, number
from tuner.use_cases.traffic import ImportSettings as ImportSettings
from tuner.use_cases.traffic import WrittenTraffic, cut_traffic, import_traffic
from tuner.use_cases.traffic_source import CounterRange as CounterRange
from tuner.use_cases.traffic_source import traffic_file
from tuner.workloads.traces.cut import Distances
from tuner.workloads.traces.summary import TraceSummary


def print_import(source: str, output: Path, settings: ImportSettings, asked: CounterRange, *, as_json: bool) -> None:
    with traffic_file(source, settings.format, asked) as file:
        _print(import_traffic(file, output, settings), as_json=as_json)


def print_cut(file: Path, requests: int, output: Path, cache_tokens: int | None, *, as_json: bool) -> None:
    _print(cut_traffic(file, requests, output, cache_tokens), as_json=as_json)


def _print(written: WrittenTraffic, *, as_json: bool) -> None:
    if as_json:
        files = {"traffic": str(written.traffic), "requests": str(written.requests)}
        print(json.dumps({**asdict(written), **files}, indent=1))
        return
    parts: list[RenderableType] = [*_lines(written), _lengths(written.summary)]
    if written.distances is not None:
        parts += ["", *_distances(written.distances, written.whole)]
    parts += ["", f"written: {written.traffic}, {written.requests}"]
    show(*parts)


def _lines(written: WrittenTraffic) -> Iterator[str]:
    found = written.summary
    if found.span_s is None:
        yield count(found.requests, "request")
        yield f"format: {written.format}; {written.unit}"
    else:
        rate = "all at once" if found.rate is None else f"{number(found.rate)} requests/s"
        yield f"{count(found.requests, 'request')} in {number(found.span_s)} s, {rate}"
        yield f"format: {written.format}; times: {written.unit}"
    if found.rates:
        shown = " ".join(f"{rate:.3g}" for rate in found.rates)
        yield f"rate in tenths of the time: {shown} requests/s"
    if found.gap_cv is not None:
        yield f"gaps: standard deviation / mean {found.gap_cv:.2f} (Poisson: 1)"
    if found.hit_rate is not None:
        blocks = f"in blocks of {found.block_tokens} tokens"
        yield f"shared prefixes: {found.hit_rate:.1%} of the prompt tokens with an ideal cache, {blocks}"
    else:
        yield "shared prefixes: not recorded"
    sessions = found.sessions
    if sessions is None:
        yield "sessions: not recorded"
    else:
        each = f"{number(sessions.mean_requests)} requests on average, {sessions.most_requests:,} at most"
        alone = found.requests - sessions.requests
        yield f"sessions: {sessions.count:,} with {each}" + (f"; {count(alone, 'request')} in none" if alone else "")
    for lacking, left in written.left_out.items():
        yield f"left out: {count(left, 'request')} without {lacking}"
    for remark in written.remarks:
        yield f"note: {remark}"


def _lengths(found: TraceSummary) -> Table:
    table = new_table()
    table.add_column("tokens")
    for heading in ("mean", "p50", "p95", "longest"):
        table.add_column(heading, justify="right")
    for name, each in (("prompt", found.input), ("answer", found.output)):
        table.add_row(name, number(each.mean), f"{each.p50:,}", f"{each.p95:,}", f"{each.longest:,}")
    return table


def _distances(found: Distances, whole: int | None) -> Iterator[str]:
    yield f"distances to the whole ({whole:,} requests):"
    if found.rate is not None:
        yield f"  rate {found.rate:+.1%}"
    if found.hit_rate is not None:
        yield f"  hit rate of the cache {100 * found.hit_rate:+.1f} points"
    yield f"  mean tokens: prompts {found.input_mean:+.1%}, answers {found.output_mean:+.1%}"
    gaps = "" if found.gaps is None else f"gaps {found.gaps:.3f}, bursts {found.bursts:.3f}, "
    yield f"  Kolmogorov-Smirnov: {gaps}prompts {found.input:.3f}, answers {found.output:.3f}"
