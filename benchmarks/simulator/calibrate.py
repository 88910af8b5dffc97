"""Fit the simulator's free parameters to recorded runs, and say how well it predicts those that it has not seen.

    python -m benchmarks.simulator.calibrate [--write] [--rounds 8] [--workers 2]

Least squares on the logarithms of predicted / measured, over the H200 tables (39 rows) and the published runs that are
marked for it, with each parameter's logarithm held near its start by a weak prior: what no row tells of stays. Printed:
the parameters, each row, and the errors of the fit and of leaving one out. Leaving a row out takes one Gauss-Newton
step from the full fit without that row, and predicts it by the simulation itself. `--write` puts the values into
`parameters.yaml`. Some minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.simulator.rows import METRICS, Row, h200, predict, published
from tuner.engines.simulator.parameters import PARAMETERS_FILE

WEIGHTS = {"output_throughput": 2.0, "mean_tpot_ms": 1.0, "p99_tpot_ms": 1.0, "mean_ttft_ms": 0.7, "p99_ttft_ms": 1.0}
EXTRA = ("median_tpot_ms", "median_ttft_ms")
PRIOR = 0.7
"""Standard deviation of a parameter's logarithm around its start."""
BOUNDED_PRIOR = 0.15
"""The same of shares of bandwidth, which are known to be 0.6 to 0.9."""
SCALE = 0.1
"""Standard deviation of a residual's logarithm."""
CLIP = 1.0
STEP = 0.12
START = {
    "arithmetic_share": 0.65,
    "native_arithmetic_factor": 0.65,
    "attention_arithmetic_share": 0.3,
    "bandwidth_share": 0.77,
    "flash_attn_3_bandwidth_share": 0.78,
    "flash_attn_2_bandwidth_share": 0.38,
    "triton_attn_bandwidth_share": 0.29,
    "flashinfer_bandwidth_share": 0.7,
    "gemm_arithmetic_share": 0.065,
    "kernel_us": 4,
    "quantize_kernels_per_layer": 5.5,
    "sampling_passes": 22,
    "greedy_passes": 3,
    "step_us": 1200,
    "step_sequence_us": 8,
    "admit_us": 400,
    "piece_us": 93,
    "request_us": 680,
    "connect_us": 900,
    "fused_passes": 11,
    "first_use_s": 0.02,
    "triton_first_use_s": 0.365,
    "fused_launches_per_layer": 64,
    "eager_launches_per_layer": 62,
    "quantize_launches_per_layer": 14,
    "t4:arithmetic_share": 0.37,
    "l4:arithmetic_share": 0.42,
    "t4:bandwidth_share": 0.75,
    "t4:kernel_us": 6,
    "t4:flashinfer_bandwidth_share": 0.4,
    "loop_onset_tokens": 24,
}
"""Where the fit begins, and what its prior holds to; `card:name` is one card's own. Admission, connections and first
use begin where the requests' own times on the slow host put them (docs/simulator.md)."""
FITTED = tuple(START)
BOUNDED = ("bandwidth_share", "flash_attn_3_bandwidth_share", "t4:bandwidth_share")
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Rows and parameters; `start` are the logarithms of the stored values."""

    rows: Sequence[Row]
    names: Sequence[str]
    start: Vector

    @property
    def priors(self) -> Vector:
        """How far each logarithm may be from its start."""
        return np.array([BOUNDED_PRIOR if name in BOUNDED else PRIOR for name in self.names])


def changes_of(row: Row, names: Sequence[str], values: Vector) -> dict[str, float]:
    """Return the parameters of a row's card: `card:name` is that card's own, `name` everybody else's."""
    found: dict[str, float] = {}
    own = {name.partition(":")[2] for name in names if name.startswith(f"{row.card.key}:")}
    for name, value in zip(names, values, strict=True):
        card, colon, base = name.rpartition(":")
        if (colon and card == row.card.key) or (not colon and base not in own):
            found[base] = math.exp(float(value))
    return found


def residuals_of(row: Row, names: Sequence[str], values: Vector) -> list[float]:
    """Return a row's weighted residuals; a missing figure counts as far off."""
    predicted = predict(row, changes_of(row, names, values))
    found = []
    for metric in (*METRICS, *EXTRA):
        measured = row.metrics.get(metric)
        if measured is None or (row.fit_only and metric not in row.fit_only):
            continue
        value = predicted.get(metric)
        off = CLIP if not value else max(-CLIP, min(CLIP, math.log(value / measured)))
        found.append(off * WEIGHTS.get(metric, 1.0) / SCALE / len(row.fit_only or row.metrics) * row.weight)
    return found


def evaluate(problem: Problem, values: Vector, pool: ProcessPoolExecutor) -> list[list[float]]:
    """Return each row's residuals."""
    tasks = [pool.submit(residuals_of, row, problem.names, values) for row in problem.rows]
    return [task.result() for task in tasks]


def jacobian(problem: Problem, values: Vector, base: list[list[float]], pool: ProcessPoolExecutor) -> list[Vector]:
    """Return, for each row, the derivatives of its residuals by each parameter."""
    columns = []
    for index in range(len(values)):
        moved = values.copy()
        moved[index] += STEP
        columns.append(evaluate(problem, moved, pool))
    return [
        np.array([[(b - a) / STEP for a, b in zip(base[k], column[k], strict=True)] for column in columns]).T
        for k in range(len(problem.rows))
    ]


def solve(problem: Problem, values: Vector, base: list[list[float]], slopes: list[Vector], leave: int | None) -> Vector:
    """Return the parameters after one Gauss-Newton step, damped by the prior, without row `leave`."""
    kept = [k for k in range(len(problem.rows)) if k != leave]
    matrix = np.vstack([slopes[k] for k in kept] + [np.diag(1.0 / problem.priors)])
    right = np.concatenate([np.array(base[k]) for k in kept] + [(values - problem.start) / problem.priors])
    step = np.linalg.lstsq(matrix, -right, rcond=None)[0]
    return np.asarray(values + np.clip(step, -0.7, 0.7))


def cost(problem: Problem, values: Vector, base: list[list[float]]) -> float:
    """Return the sum of squares, the prior's included."""
    return sum(r * r for row in base for r in row) + float(np.sum(((values - problem.start) / problem.priors) ** 2))


def fit(problem: Problem, rounds: int, pool: ProcessPoolExecutor) -> tuple[Vector, list[list[float]], list[Vector]]:
    """Return the fitted parameters, their residuals and slopes."""
    values = problem.start.copy()
    base = evaluate(problem, values, pool)
    slopes = jacobian(problem, values, base, pool)
    for number in range(rounds):
        target = solve(problem, values, base, slopes, None)
        for share in (1.0, 0.5, 0.25, 0.1, 0.03):
            tried = values + share * (target - values)
            found = evaluate(problem, tried, pool)
            if cost(problem, tried, found) < cost(problem, values, base):
                values, base = tried, found
                break
        else:
            break
        print(f"round {number + 1}: cost {cost(problem, values, base):.1f}", flush=True)
        slopes = jacobian(problem, values, base, pool)
    return values, base, slopes


def summarise(title: str, rows: Sequence[Row], predicted: Sequence[Mapping[str, float | None]]) -> None:
    """Print Spearman's correlation, the median and the 90th percentile of the error, by metric and table."""
    print(f"\n{title}")
    for group in dict.fromkeys(row.group for row in rows):
        for metric in METRICS:
            pairs = [
                (row.metrics[metric], values[metric])
                for row, values in zip(rows, predicted, strict=True)
                if row.group == group and metric in row.metrics and values.get(metric)
            ]
            if len(pairs) > 1:
                off = sorted(abs(value / measured - 1) for measured, value in pairs if value)
                rho = spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic
                high = float(np.percentile(off, 90))
                middle = statistics.median(off)
                print(f"  {group:<10}{metric:<18} n {len(pairs):>2}  Spearman {rho:6.3f}  median {middle:6.1%}", end="")
                print(f"  p90 {high:6.1%}")


def bands(rows: Sequence[Row], predicted: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return, by metric, what nine of ten H200 rows are within when they are left out of the fit."""
    found = {}
    for metric in METRICS:
        off = [
            abs(value / row.metrics[metric] - 1)
            for row, values in zip(rows, predicted, strict=True)
            if row.group.startswith("h200") and (value := values.get(metric)) is not None
        ]
        found[metric] = round(float(np.percentile(off, 90)), 2)
    return found


def write(names: Sequence[str], values: Vector, error_bands: Mapping[str, float]) -> None:
    """Put the values into the parameters' file, with the errors; leave everything else as it is."""
    text = PARAMETERS_FILE.read_text(encoding="utf-8")
    for name, value in zip(names, values, strict=True):
        card, _, base = name.rpartition(":")
        number = f"{math.exp(float(value)):.4g}"
        pattern = rf"(?m)^(  {card}: \{{.*?{base}: )[\d.e+-]+" if card else rf"(?m)^(  {base}: \{{value: )[\d.e+-]+"
        text, count = re.subn(pattern, rf"\g<1>{number}", text)
        if count != 1:
            raise SystemExit(f"{PARAMETERS_FILE.name} has no place for {name}")
        if not card:
            text = re.sub(rf"(?m)^(  {base}: .*source: )\w+", r"\g<1>fitted", text)
    text = re.sub(r"(?m)^error_bands: .*", "error_bands: " + json.dumps(error_bands).replace('"', ""), text)
    PARAMETERS_FILE.write_text(text, encoding="utf-8")


def main() -> None:
    """Fit, print and, if asked, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    rows = [row for row in (*h200(), *published()) if row.fit]
    start = np.log(np.array([*START.values()]))
    problem = Problem(rows, FITTED, start)
    with ProcessPoolExecutor(arguments.workers) as pool:
        values, base, slopes = fit(problem, arguments.rounds, pool)
        fitted = list(pool.map(predict, rows, [changes_of(row, FITTED, values) for row in rows]))
        left = [solve(problem, values, base, slopes, index) for index in range(len(rows))]
        alone = [changes_of(row, FITTED, own) for row, own in zip(rows, left, strict=True)]
        unseen = list(pool.map(predict, rows, alone))
    print()
    for name, before, after in zip(FITTED, start, values, strict=True):
        print(f"{name:<32}{math.exp(before):>10.4g} -> {math.exp(after):.4g}")
    for row, found in zip(rows, fitted, strict=True):
        shown = "  ".join(f"{found[m] or 0:.4g}/{row.metrics[m]:.4g}" for m in METRICS if m in row.metrics)
        print(f"{row.id:<24}{shown}")
    summarise("fitted", rows, fitted)
    summarise("leaving one out", rows, unseen)
    if arguments.write:
        write(FITTED, values, bands(rows, unseen))


if __name__ == "__main__":
    main()
