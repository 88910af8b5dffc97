"""How well predictions for a mixture of experts hold for configurations that the fit did not see.

    python -m benchmarks.simulator.experts [--model Qwen/Qwen3-30B-A3B] [--rows] [--write]

The rows are `reference/h200_experts.jsonl`: loads of servers on one and two H200s with random weights. The
configurations are dealt to two halves in the order of their names. The parameters of experts and those of the host are
fitted to one half by the mean of |log(predicted / measured)|, and the other half is predicted, and the other way round.
The program prints the parameters of each fit and, over all rows that were left out, Spearman's rank correlation and the
median and 90th percentile of the relative error. With `--write`, it writes their error bands (`bands.py`). Loads are
compared within one table: a load is part of what is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import minimize

from benchmarks.command_line import documented_parser
from benchmarks.simulator.accuracy import PredictedMetrics, accuracy, print_accuracy, print_rows
from benchmarks.simulator.bands import error_bands_of, write_bands
from benchmarks.simulator.rows import EXPERTS_HOST, Row, h200_experts, predict
from search_spaces import known_models
from tuner.engines.simulator.parameters import parameters_of

FITTED = (
    "expert_bandwidth_share",
    "expert_arithmetic_share",
    "expert_kernels_per_layer",
    "expert_launches_per_layer",
)
WEIGHTS = {"output_throughput": 1.0, "mean_tpot_ms": 1.0, "p99_tpot_ms": 0.5, "mean_ttft_ms": 0.25}
"""How much each metric's error counts; first prompts wait for kernels that are compiled at their first use."""
MOST_EVALUATIONS = 120
_STEP = 0.35


def halves(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows of every second configuration, and the others."""
    names = sorted({row.group for row in rows})
    first = {*names[::2]}
    return [row for row in rows if row.group in first], [row for row in rows if row.group not in first]


def fitted(rows: Sequence[Row]) -> dict[str, float]:
    """Return the parameters, and `HOST_VALUES`, that fit the rows best; no share is above 1."""
    stored = parameters_of("h200")
    begin = {name: getattr(stored, name) for name in FITTED} | EXPERTS_HOST
    names = list(begin)
    origin = np.log(list(begin.values()))
    largest = np.array([1.0 if name.endswith("_share") else math.inf for name in names])

    def loss(point: np.ndarray) -> float:
        changes = dict(zip(names, np.minimum(np.exp(point), largest).tolist(), strict=True))
        return float(np.mean([error_of(row, predict(row, changes)) for row in rows]))

    simplex = np.vstack([origin, origin + _STEP * np.eye(len(names))])
    options = {"maxfev": MOST_EVALUATIONS, "initial_simplex": simplex}
    found = minimize(loss, origin, method="Nelder-Mead", options=options)
    return dict(zip(names, np.minimum(np.exp(found.x), largest).tolist(), strict=True))


def error_of(row: Row, predicted: Mapping[str, float | None]) -> float:
    """Return the weighted mean of |log(predicted / measured)| of a row, of each metric at most 1."""
    total = 0.0
    for metric, weight in WEIGHTS.items():
        value = predicted.get(metric)
        total += weight * (1.0 if not value else min(1.0, abs(math.log(value / row.metrics[metric]))))
    return total / sum(WEIGHTS.values())


def left_out(rows: Sequence[Row]) -> tuple[list[Row], list[PredictedMetrics]]:
    """Return the rows with their predictions by the fit to the other half; print each fit."""
    tested: list[Row] = []
    predicted: list[PredictedMetrics] = []
    first, second = halves(rows)
    for known, unknown in ((first, second), (second, first)):
        changes = fitted(known)
        print(f"fit to {len({row.group for row in known})} configurations: " + format_parameters(changes))
        tested += unknown
        predicted += [predict(row, changes) for row in unknown]
    return tested, predicted


def format_parameters(values: Mapping[str, float]) -> str:
    """Return parameters in one line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def main() -> None:
    """Fit each half, predict the other one, and print the comparison."""
    parser = documented_parser(__doc__)
    parser.add_argument("--model", default="Qwen/Qwen3-30B-A3B", help="of the rows")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--write", action="store_true", help="write the error bands into parameters.yaml")
    arguments = parser.parse_args()
    shape = known_models()[arguments.model]
    tested, predicted = left_out([row for row in h200_experts() if row.model == shape])
    if arguments.rows:
        print_rows(tested, predicted)
    print_accuracy(accuracy(tested, predicted))
    bands = error_bands_of(tested, predicted)
    for regime, band in bands.items():
        print(" ".join(regime), "too few rows for an error band" if band is None else band)
    if arguments.write:
        write_bands(bands)


if __name__ == "__main__":
    main()
