"""How well does the simulator predict a table of measured runs? Nothing is fitted.

    python -m benchmarks.simulator.accuracy --table FILE.jsonl --gpu NAME_OR_FILE.yaml --model FOLDER_OR_NAME
        --bench '<arguments of vllm bench serve>' [--vllm-version 0.25.1] [--warm] [--rows] [--json]
    python -m benchmarks.simulator.accuracy --published

A line of the table is a run: `args`, the flags of `vllm serve`, and the metrics of its client's result file. Rows with
the same flags are one, their mean. Printed by metric: Spearman's correlation, the median and the 90th percentile of the
relative error, and the share of rows that were predicted to fail. `--warm` says that the servers had served other loads
before. `--published` takes the published runs instead, and prints each, predicted beside published.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from benchmarks.simulator.rows import METRICS, Row, bench_load, predict, published, table, version_of
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.engines.simulator.memory.budget import StartFailed

Predicted = Mapping[str, float | None]


def predict_all(rows: Sequence[Row], warm: bool = False) -> list[Predicted]:
    """Return the prediction of each row; nothing for one that would not start."""
    found: list[Predicted] = []
    for row in rows:
        try:
            found.append(predict(row, warm=warm))
        except (ConfigRefused, StartFailed) as error:
            print(f"{row.id}: would not start: {error}")
            found.append({})
    return found


def accuracy(rows: Sequence[Row], predicted: Sequence[Predicted]) -> dict[str, dict[str, float | int]]:
    """Return, by metric, how near predictions are."""
    found: dict[str, dict[str, float | int]] = {}
    for metric in METRICS:
        pairs = [
            (row.metrics[metric], value)
            for row, values in zip(rows, predicted, strict=True)
            if metric in row.metrics and (value := values.get(metric)) is not None
        ]
        if len(pairs) < 2:
            continue
        off = [abs(value / measured - 1) for measured, value in pairs]
        found[metric] = {
            "rows": len(pairs),
            "spearman": float(spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic),
            "median_error": statistics.median(off),
            "p90_error": float(np.percentile(off, 90)),
        }
    return found


def show(rows: Sequence[Row], predicted: Sequence[Predicted]) -> None:
    """Print each row, predicted / measured."""
    for row, values in zip(rows, predicted, strict=True):
        shown = [
            f"{metric} {values.get(metric) or float('nan'):.4g}/{row.metrics[metric]:.4g}"
            for metric in METRICS
            if metric in row.metrics
        ]
        print(f"{row.id:<24}" + "  ".join(shown))


def main() -> None:
    """Predict and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", type=Path, help="JSON lines, one measured run each")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B", help="a known model, or a folder with its config.json")
    parser.add_argument("--bench", default="", help="the arguments of vllm bench serve")
    parser.add_argument("--vllm-version", default="0.25.1")
    parser.add_argument("--warm", action="store_true", help="the servers had served other loads before")
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if (arguments.table is None) == (not arguments.published):
        parser.error("give one of --table and --published")
    if arguments.published:
        rows = published()
    else:
        version = version_of(arguments.vllm_version)
        rows = table(arguments.table, arguments.gpu, arguments.model, bench_load(arguments.bench))
        rows = [replace(row, version=version) for row in rows]
    predicted = predict_all(rows, arguments.warm)
    found = accuracy(rows, predicted)
    if arguments.json:
        print(json.dumps({"rows": len(rows), "metrics": found}, indent=1))
        return
    if arguments.rows or arguments.published:
        show(rows, predicted)
    for metric, values in found.items():
        print(
            f"{metric:<20} n {values['rows']:>3}  Spearman {values['spearman']:6.3f}  "
            f"median error {values['median_error']:6.1%}  p90 {values['p90_error']:6.1%}"
        )


if __name__ == "__main__":
    main()
