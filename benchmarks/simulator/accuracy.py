"""Compares the simulator's predictions with a table of measured runs, without fitting anything.

    python -m benchmarks.simulator.accuracy --table FILE.jsonl --gpu NAME_OR_FILE.yaml --model FOLDER_OR_NAME
        --bench '<arguments of vllm bench serve>' [--vllm-version 0.25.1] [--warm] [--rows] [--json]
    python -m benchmarks.simulator.accuracy --published

Each line of the table is a run: `args`, the arguments of `vllm serve`, and the metrics of the client's result file.
Runs with the same arguments are averaged. The program prints, for each metric, Spearman's rank correlation and the
median and 90th percentile of the relative error, and each row that the simulator predicts to fail. `--warm` is for
servers that have run another workload before. `--published` compares the published runs and prints each as
predicted/published.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from benchmarks.command_line import documented_parser
from benchmarks.simulator.rows import COMPARED_METRICS, Row, parse_bench_serve, predict, published, read_table
from search_spaces import version_tuple
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.precision import ConfigRefused

PredictedMetrics = Mapping[str, float | None]


def predict_all(rows: Sequence[Row], warm: bool = False) -> list[PredictedMetrics]:
    """Return the prediction of each row; an empty one for a server that would not start."""
    predicted: list[PredictedMetrics] = []
    for row in rows:
        try:
            predicted.append(predict(row, warm=warm))
        except (ConfigRefused, StartFailed) as error:
            print(f"{row.id}: would not start: {error}")
            predicted.append({})
    return predicted


def accuracy(rows: Sequence[Row], predicted: Sequence[PredictedMetrics]) -> dict[str, dict[str, float | int]]:
    """Return, for each metric, the rank correlation and the relative errors of the predictions."""
    by_metric: dict[str, dict[str, float | int]] = {}
    for metric in COMPARED_METRICS:
        pairs = [
            (row.metrics[metric], value)
            for row, values in zip(rows, predicted, strict=True)
            if metric in row.metrics and (value := values.get(metric)) is not None
        ]
        if len(pairs) < 2:
            continue
        errors = [abs(value / measured - 1) for measured, value in pairs]
        by_metric[metric] = {
            "rows": len(pairs),
            "spearman": float(spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic),
            "median_error": statistics.median(errors),
            "p90_error": float(np.percentile(errors, 90)),
        }
    return by_metric


def print_accuracy(by_metric: Mapping[str, Mapping[str, float | int]]) -> None:
    """Print what `accuracy` returns, a line for each metric."""
    for metric, values in by_metric.items():
        print(
            f"{metric:<20} n {values['rows']:>3}  Spearman {values['spearman']:6.3f}  "
            f"median error {values['median_error']:6.1%}  p90 {values['p90_error']:6.1%}"
        )


def print_rows(rows: Sequence[Row], predicted: Sequence[PredictedMetrics]) -> None:
    """Print each row as predicted/measured."""
    for row, values in zip(rows, predicted, strict=True):
        cells = [
            f"{metric} {values.get(metric) or float('nan'):.4g}/{row.metrics[metric]:.4g}"
            for metric in COMPARED_METRICS
            if metric in row.metrics
        ]
        print(f"{row.id:<24}" + "  ".join(cells))


def main() -> None:
    """Predict the rows and print the comparison."""
    parser = documented_parser(__doc__)
    parser.add_argument("--table", type=Path, help="JSON lines, one measured run each")
    parser.add_argument("--gpu", default="h200", help="a known card, or a YAML file")
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B", help="a known model, or a folder with its config.json")
    parser.add_argument("--bench", default="", help="the arguments of vllm bench serve")
    parser.add_argument("--vllm-version", default="0.25.1")
    parser.add_argument("--warm", action="store_true", help="the servers have run another workload before")
    parser.add_argument("--published", action="store_true", help="compare the published runs")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if (arguments.table is None) == (not arguments.published):
        parser.error("give one of --table and --published")
    if arguments.published:
        rows = published()
    else:
        version = version_tuple(arguments.vllm_version)
        rows = read_table(arguments.table, arguments.gpu, arguments.model, parse_bench_serve(arguments.bench))
        rows = [replace(row, version=version) for row in rows]
    predicted = predict_all(rows, arguments.warm)
    by_metric = accuracy(rows, predicted)
    if arguments.json:
        print(json.dumps({"rows": len(rows), "metrics": by_metric}, indent=1))
        return
    if arguments.rows or arguments.published:
        print_rows(rows, predicted)
    print_accuracy(by_metric)


if __name__ == "__main__":
    main()
