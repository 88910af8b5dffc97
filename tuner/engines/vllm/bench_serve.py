"""Call `vllm bench serve` for a closed loop, and read its result file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from records.metrics import METRICS, OF_WHOLE_GPU, TRAFFIC_ONLY
from records.trials import Repeat
from search_spaces.yaml_file import read_regular_file
from tuner.engines.server.traffic import ResultError
from tuner.errors import reason_of
from tuner.specs import ModelRef
from tuner.workloads.results import LATENCY_NAMES
from tuner.workloads.spec import ClosedLoop

CLIENT_METRICS = tuple(name for name in METRICS if name not in TRAFFIC_ONLY | OF_WHOLE_GPU)
"""Metrics of a repeat of the client; those that its result file lacks are None."""

_MEDIAN = re.compile(r"^p50_(\w+)$")
_AFTER_FIRST_TOKEN = re.compile(r"_(?:tpot|itl)_ms$")
_SHOWN_CHARS = 30


RESULT_LIMIT = 2**26
"""The largest result file in bytes; one has a few KiB."""

SMALLEST, LARGEST = 1e-9, 1e15
"""Bounds of what is measured, in the metric's unit: far beyond what a benchmark can measure, and their ratios are
finite."""


def bench_arguments(
    model: ModelRef, workload: ClosedLoop, base_url: str, seed: int, result_dir: str | Path, result_filename: str
) -> list[str]:
    """Return the arguments of `vllm` for the workload: `bench serve …`.

    The served name is an argument only where it differs from the model's. No temperature is sent: the server's setting
    applies.
    """
    served = [] if model.served_name == model.name else ["--served-model-name", model.served_name]
    return [
        *("bench", "serve", "--backend", "openai", "--base-url", base_url, "--endpoint", "/completions"),
        *("--model", model.name, *served, "--tokenizer", model.tokenizer),
        *("--max-concurrency", str(workload.max_concurrency), "--num-prompts", str(workload.num_prompts)),
        *("--ignore-eos", "--random-input-len", str(workload.input_len)),
        *("--random-output-len", str(workload.output_len), "--save-result", "--result-dir", str(result_dir)),
        *("--result-filename", result_filename, "--seed", str(seed), "--percentile-metrics", ",".join(LATENCY_NAMES)),
        *("--metric-percentiles", ",".join(map(str, workload.percentiles))),
    ]


def read_result(path: Path, workload: ClosedLoop, index: int, seed: int) -> Repeat:
    """Read the result file of repeat `index`.

    The number of completed requests counts, not the client's exit code. If it is 0, all metrics but the success rate
    are None. A metric is also None if the file lacks it or has NaN for it.

    Raises:
        ResultError: if the file is missing or is not a result, or with the field and the impossible value.
    """
    data = _read_object(path)
    offered = workload.num_prompts
    try:
        completed = _completed(data, offered)
        metrics: dict[str, float | None] = dict.fromkeys(CLIENT_METRICS)
        if completed > 0:
            metrics.update({name: _metric(data, name, workload) for name in metrics if name != "success_rate"})
        metrics["success_rate"] = completed / offered
        duration = _number(data, "duration") if completed > 0 else None
    except ResultError as error:
        raise ResultError(f"{path.name}: {error}") from None
    return Repeat(index, seed, offered, completed, offered - completed, duration, metrics)


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(read_regular_file(path, RESULT_LIMIT).decode())
    except FileNotFoundError:
        raise ResultError(f"the benchmark wrote no result ({path.name})", written=False) from None
    except OSError as error:
        raise ResultError(f"the benchmark's result {path.name} cannot be read: {reason_of(error)}") from None
    except UnicodeDecodeError as error:
        raise ResultError(f"the benchmark's result {path.name} is not UTF-8: {error.reason}") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ResultError(f"the benchmark's result {path.name} is not JSON: {reason}") from None
    if not isinstance(data, dict) or data.get("completed") is None:
        raise ResultError(f"the benchmark's result {path.name} has no number of completed requests")
    return data


def _completed(data: Mapping[str, Any], offered: int) -> int:
    """Return the number of completed requests."""
    completed = data["completed"]
    if not isinstance(completed, int) or isinstance(completed, bool):
        raise ResultError(f"completed={_shown(completed)}: not a whole number")
    if completed < 0:
        raise ResultError(f"completed={_shown(completed)}: a count is not negative")
    if completed > offered:
        raise ResultError(f"completed={_shown(completed)}: more than the {offered} requests that were sent")
    return completed


def _metric(data: Mapping[str, Any], name: str, workload: ClosedLoop) -> float | None:
    """Return a metric's value; None if it was not measured.

    vLLM writes 0 for a latency that no request has: TPOT and ITL, where each answer is one token.
    """
    median = _MEDIAN.match(name)
    field = f"median_{median[1]}" if median is not None and data.get(name) is None else name
    if workload.output_len == 1 and data.get(field) == 0 and _AFTER_FIRST_TOKEN.search(field):
        return None
    return _number(data, field, zero=METRICS[name].unit != "ms" or name.startswith("std_"))


def _number(data: Mapping[str, Any], field: str, zero: bool = False) -> float | None:
    """Return a field's number; None if the field is missing, null or NaN.

    Raises:
        ResultError: for a number outside the bounds, and for anything else; 0 is valid if `zero` is True.
    """
    value = data.get(field)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and (SMALLEST <= value <= LARGEST or (zero and value == 0)):
        return float(value)
    also = "not 0, and " if zero else ""
    raise ResultError(f"{field}={_shown(value)}: {also}not a number from {SMALLEST:g} to {LARGEST:g}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
