"""Frames and arrays of single requests, from the request records of one or more benchmarks (`requests-N.parquet`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dashboards.analysis.trial_files import lower_edge, readable, upper_edge

Latencies = dict[str, "np.ndarray[Any, Any]"]


def latency_arrays(files: Iterable[Path]) -> Latencies:
    """Return the latencies of all completed requests, in ms.

    TTFT counts from the scheduled time of a request, in a closed loop from sending it, as in the metrics. TPOT is
    (end - first token) / (output tokens - 1).

    Args:
        files: request records of the benchmarks.

    Returns:
        `ttft_ms` and `tpot_ms`, one value for each request that has it, and `itl_ms`, one for each gap.

    Raises:
        StorageError: if a file cannot be read.
    """
    columns = ["status", "due_s", "sent_s", "first_token_s", "end_s", "output_tokens", "gaps_s"]
    frames = []
    for file in files:
        with readable(file):
            frame = pd.read_parquet(file, columns=columns)
        frames.append(frame[frame["status"] == "completed"])
    if not frames:
        return {}
    every = pd.concat(frames, ignore_index=True)
    begin = every["due_s"].fillna(every["sent_s"])
    tokens = every["output_tokens"].where(every["output_tokens"] > 1)
    tpot = (every["end_s"] - every["first_token_s"]) / (tokens - 1)
    gaps = [np.asarray(each, dtype="float64") for each in every["gaps_s"] if each is not None and len(each)]
    return {
        "ttft_ms": 1000.0 * (every["first_token_s"] - begin).dropna().to_numpy(dtype="float64"),
        "tpot_ms": 1000.0 * tpot.dropna().to_numpy(dtype="float64"),
        "itl_ms": 1000.0 * (np.concatenate(gaps) if gaps else np.empty(0)),
    }


def length_frame(files: Iterable[Path]) -> pd.DataFrame:
    """Count every offered request by planned prompt length and planned answer length.

    Args:
        files: request records of the benchmarks.

    Returns:
        one row for each pair of bins that has a request, by length. Columns: `prompt` and `answer`, the bins as
        `65–128` tokens, or `unknown` where no length was planned; `answer_to`, the last length of the answer's bin;
        `completed` and `failed`, counts of requests.

    Raises:
        StorageError: if a file cannot be read.
    """
    counts: dict[tuple[int, int], list[int]] = {}
    for file in files:
        with readable(file):
            requests = pd.read_parquet(file, columns=["status", "planned_input", "planned_output"])
        for status, prompt, answer in requests.itertuples(index=False, name=None):
            cell = counts.setdefault((upper_edge(prompt), upper_edge(answer)), [0, 0])
            cell[status != "completed"] += 1
    ordered = sorted(counts.items(), key=lambda item: tuple(edge or math.inf for edge in item[0]))
    rows = [[_bin(prompt), _bin(answer), answer or math.inf, *cell] for (prompt, answer), cell in ordered]
    return pd.DataFrame(rows, columns=["prompt", "answer", "answer_to", "completed", "failed"])


def _bin(upper: int) -> str:
    return f"{lower_edge(upper)}–{upper}" if upper else "unknown"
