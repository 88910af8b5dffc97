"""Reads recorded tables: JSON lines as in benchmarks/reference, or the CSV file of a study."""

import csv
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.search.problems.problem import MetricsByName, config_key
from records.trials import Config
from search_spaces import ParameterValue

CONFIG_PREFIX = "config."
"""Marks the columns of a CSV file that hold the configuration."""
PHASE_COLUMNS = ("check_s", "launch_s", "ready_s", "warmup_s", "benchmark_s", "collect_s", "stop_s")


@dataclass(frozen=True)
class Recording:
    """One recorded run.

    Attributes:
        config: the configuration; {} is the defaults.
        args: the flags of `vllm serve`; empty for a CSV file.
        metrics: what was measured; None if the run failed.
        seconds: wall-clock seconds of the run.
    """

    config: Config
    args: tuple[str, ...]
    metrics: MetricsByName | None
    seconds: float


@dataclass(frozen=True)
class TableRow:
    """All recordings of one configuration.

    Attributes:
        config: the configuration, with the engine's effective numbers in place of None where they are known.
        recorded: the configuration as recorded; {} is the defaults.
        args: the flags of `vllm serve`.
        runs: the metrics of each recording that succeeded.
        seconds: mean wall-clock seconds of the recordings.
    """

    config: Config
    recorded: Config
    args: tuple[str, ...]
    runs: tuple[MetricsByName, ...]
    seconds: float


def read_rows(file: Path, hints: Config) -> list[TableRow]:
    """Return the rows of a table, one for each configuration.

    Args:
        file: JSON lines, or a study's CSV file.
        hints: the engine's effective values of parameters that a configuration leaves out.

    Raises:
        SystemExit: if no row has the defaults, or the defaults failed.
    """
    by_config: dict[str, list[Recording]] = {}
    for recording in _from_csv(file) if file.suffix == ".csv" else _from_lines(file):
        by_config.setdefault(config_key(recording.config), []).append(recording)
    if not any(recording.metrics for recording in by_config.get(config_key({}), ())):
        raise SystemExit(f"--table {file}: scores need a successful row of the defaults, whose config is null")
    return [
        TableRow(
            config=_filled(same[0].config, hints),
            recorded=same[0].config,
            args=same[0].args,
            runs=tuple(recording.metrics for recording in same if recording.metrics is not None),
            seconds=statistics.fmean(recording.seconds for recording in same),
        )
        for same in by_config.values()
    ]


def _filled(config: Config, hints: Config) -> Config:
    """Return a configuration with the engine's effective values in place of None."""
    return {name: hints.get(name) if value is None else value for name, value in config.items()}


def _from_lines(file: Path) -> Iterator[Recording]:
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        metrics: MetricsByName | None = None
        if entry.get("ok", True):
            numbers = {name: value for name, value in entry.items() if isinstance(value, int | float)}
            completed, failed = entry.get("completed", 1), entry.get("failed", 0)
            metrics = {**numbers, "success_rate": completed / (completed + failed)}
        seconds = entry.get("startup_s", 0.0) + entry.get("bench_wall_s", 0.0)
        yield Recording(entry["config"] or {}, tuple(map(str, entry["args"])), metrics, seconds)


def _from_csv(file: Path) -> Iterator[Recording]:
    with file.open(encoding="utf-8", newline="") as text:
        for entry in csv.DictReader(text):
            config = {
                name.removeprefix(CONFIG_PREFIX): _parsed(value)
                for name, value in entry.items()
                if name.startswith(CONFIG_PREFIX)
            }
            if set(config.values()) == {None}:
                config = {}
            metrics: MetricsByName | None = None
            if not entry["failure_kind"]:
                metrics = {name: float(value) for name, value in entry.items() if _is_number(value)}
            seconds = sum(float(entry.get(name) or 0.0) for name in PHASE_COLUMNS)
            yield Recording(config, (), metrics, seconds)


def _parsed(text: str) -> ParameterValue:
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
