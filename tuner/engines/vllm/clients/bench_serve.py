"""Call `vllm bench serve` for a closed loop, and read its result file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.metrics import METRICS, TRAFFIC_ONLY
from storage.records import Repeat
from tuner.specs import ModelRef
from tuner.workloads.results.summary import LATENCY_NAMES
from tuner.workloads.spec import ClosedLoop

_MEDIAN = re.compile(r"^p50_(\w+)$")


class ResultError(ValueError):
    """The result file is missing or is not a result."""


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
    are None. A metric is also None if the file lacks it or has no finite number for it.

    Raises:
        ResultError: if the file is missing or is not a result.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultError(f"the benchmark wrote no result ({path.name})") from None
    except json.JSONDecodeError as error:
        raise ResultError(f"the benchmark's result {path.name} is not JSON: {error}") from None
    completed = data.get("completed") if isinstance(data, dict) else None
    if not isinstance(completed, int) or isinstance(completed, bool):
        raise ResultError(f"the benchmark's result {path.name} has no number of completed requests")
    offered = workload.num_prompts
    metrics: dict[str, float | None] = dict.fromkeys(name for name in METRICS if name not in TRAFFIC_ONLY)
    if completed > 0:
        metrics.update({name: _metric(data, name) for name in metrics})
    metrics["success_rate"] = completed / offered
    duration = _finite(data.get("duration")) if completed > 0 else None
    return Repeat(index, seed, offered, completed, offered - completed, duration, metrics)


def _metric(data: Mapping[str, Any], name: str) -> float | None:
    median = _MEDIAN.match(name)
    value = _finite(data.get(name))
    return _finite(data.get(f"median_{median[1]}")) if value is None and median else value


def _finite(value: object) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None  # type: ignore[arg-type]
