"""Tables of recorded measurements: JSON lines as in benchmarks/reference, a study as CSV as in docs/reports/data."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.search.problems.problem import Config, key_of
from search_spaces import ParameterValue

PHASES = ("check_s", "launch_s", "ready_s", "warmup_s", "benchmark_s", "collect_s", "stop_s")
Metrics = Mapping[str, float | None]


Entry = tuple[Config, tuple[str, ...], Metrics | None, float]
"""One recording: what was chosen, its flags, its metrics (None: it failed), its seconds."""


@dataclass(frozen=True)
class TableRow:
    """One configuration: {} is the defaults. `runs` are the metrics of each recording, none if it did not run.

    `config` has numbers that were left to the engine filled in, as far as they are known; `recorded` has None there.
    """

    config: Config
    recorded: Config
    args: tuple[str, ...]
    runs: tuple[Metrics, ...]
    seconds: float


def read_rows(file: Path, hints: Config) -> list[TableRow]:
    """Return the rows of a table, equal configurations as one: JSON lines, or a study's CSV as in docs/reports/data.

    Raises:
        SystemExit: if there is no row of the defaults, or they did not run.
    """
    found: dict[str, list[Entry]] = {}
    entries = _from_csv(file) if file.suffix == ".csv" else _from_lines(file)
    for entry in entries:
        found.setdefault(key_of(entry[0]), []).append(entry)
    if not any(metrics for _, _, metrics, _ in found.get(key_of({}), ())):
        raise SystemExit(f"--table {file}: no row of the defaults (its config is null) that ran; scores relate to them")
    return [
        TableRow(
            config=_filled(same[0][0], hints),
            recorded=same[0][0],
            args=same[0][1],
            runs=tuple(metrics for _, _, metrics, _ in same if metrics is not None),
            seconds=statistics.fmean(seconds for *_, seconds in same),
        )
        for same in found.values()
    ]


def _filled(config: Config, hints: Config) -> Config:
    """Return a configuration with the numbers that the engine chose where it has None."""
    return {name: hints.get(name) if value is None else value for name, value in config.items()}


def _from_lines(file: Path) -> list[Entry]:
    rows: list[Entry] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        seconds = entry.get("startup_s", 0.0) + entry.get("bench_wall_s", 0.0)
        metrics: Metrics | None = None
        if entry.get("ok", True):
            numbers = {name: value for name, value in entry.items() if isinstance(value, int | float)}
            done, failed = entry.get("completed", 1), entry.get("failed", 0)
            metrics = {**numbers, "success_rate": done / (done + failed)}
        rows.append((entry["config"] or {}, tuple(map(str, entry["args"])), metrics, seconds))
    return rows


def _from_csv(file: Path) -> list[Entry]:
    rows: list[Entry] = []
    with file.open(encoding="utf-8", newline="") as text:
        for entry in csv.DictReader(text):
            config = {name[7:]: _read(value) for name, value in entry.items() if name.startswith("config.")}
            config = {} if set(config.values()) == {None} else config
            seconds = sum(float(entry.get(name) or 0.0) for name in PHASES)
            metrics: Metrics | None = None
            if not entry["failure_kind"]:
                metrics = {name: float(value) for name, value in entry.items() if _is_number(value)}
            rows.append((config, (), metrics, seconds))
    return rows


def _read(text: str) -> ParameterValue:
    if text in ("", "True", "False"):
        return None if not text else text == "True"
    if not _is_number(text):
        return text
    number = float(text)
    return int(number) if number.is_integer() else number


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
