"""Fits the simulator's free parameters to recorded runs, and reports the errors on runs that were left out.

    python -m benchmarks.simulator.calibrate [--write] [--rounds 8] [--workers 2] [--only NAME ...]

The rows are both H200 tables (39 rows), the trials of the recorded studies on H200s, and the published runs that
`published.yaml` marks for the fit. The fit minimises

    sum over rows and metrics of (weight × ln(predicted / measured) / RESIDUAL_SCALE / number of metrics)²
    + sum over parameters of (ln(value / start) / prior)²

by damped Gauss-Newton steps with numerical derivatives, which begin at the stored values. The weak prior keeps a
parameter that no row determines at its start. For the errors on rows that were left out, each row of a table is
predicted with the parameters after one Gauss-Newton step from the full fit without that row, and each trial of a study
without all trials of that study. Each regime (card, format of the weights, no drafts) with enough of these rows has
an error band. `--write` writes the values into `parameters.yaml`; `host_speed` and `launch_us` of the hosts beside
the H200s of the studies go into `search_spaces/catalogue/hardware.yaml` by hand. `--only` holds all other parameters,
and the error bands, at their stored values. A fit of all parameters takes half an hour on two idle cores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from benchmarks.command_line import documented_parser
from benchmarks.simulator.accuracy import PredictedMetrics, accuracy, print_accuracy
from benchmarks.simulator.bands import error_bands_of, write_bands
from benchmarks.simulator.rows import COMPARED_METRICS, HOST_VALUES, Row, h200, predict, published
from benchmarks.simulator.studies import recorded_studies, weighted_trials
from search_spaces import hardware_named
from tuner.engines.simulator.parameters import PARAMETERS_FILE, parameters_of

METRIC_WEIGHTS = {
    "output_throughput": 2.0,
    "mean_tpot_ms": 1.0,
    "p99_tpot_ms": 1.0,
    "mean_ttft_ms": 0.7,
    "p99_ttft_ms": 1.0,
}
EXTRA_METRICS = ("median_tpot_ms", "median_ttft_ms")
PRIOR_DEVIATION = 0.7
"""Standard deviation of a parameter's logarithm around its start."""
BANDWIDTH_PRIOR_DEVIATION = 0.15
"""The same for shares of bandwidth, which are 0.6 to 0.9 on real cards."""
RESIDUAL_SCALE = 0.1
"""Standard deviation of ln(predicted / measured)."""
RESIDUAL_LIMIT = 1.0
"""Largest |ln(predicted / measured)| that counts."""
DERIVATIVE_STEP = 0.12
"""Step of the numerical derivatives, in a parameter's logarithm."""
START = {
    "arithmetic_share": 0.65,
    "native_arithmetic_factor": 0.65,
    "block_arithmetic_factor": 0.12,
    "block_bandwidth_factor": 0.4,
    "attention_arithmetic_share": 0.3,
    "triton_arithmetic_factor": 0.5,
    "head_scale_factor": 2.2,
    "bandwidth_share": 0.77,
    "flash_attn_3_bandwidth_share": 0.78,
    "l4:flash_attn_2_bandwidth_share": 0.38,
    "triton_attn_bandwidth_share": 0.29,
    "flashinfer_bandwidth_share": 0.7,
    "awq_arithmetic_share": 0.18,
    "kernel_us": 4,
    "quantize_kernels_per_layer": 5.5,
    "cache_kernels_per_layer": 3,
    "sampling_passes": 22,
    "greedy_passes": 3,
    "step_us": 1200,
    "step_sequence_us": 8,
    "admit_us": 400,
    "piece_us": 93,
    "triton_launches_per_layer": 22,
    "flex_mask_us": 15000,
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
    "h200:host_speed": 0.8,
    "h200:launch_us": 8,
}
"""Centre of the prior; `card:name` is the card's own value. The starts of admit_us, connect_us and
first_use_s come from the requests' times on the slow host (docs/reports/2026-11-24-simulator-accuracy.md)."""
FITTED = tuple(START)
STUDIES = tuple(study.name for study in recorded_studies())
BANDWIDTH_SHARES = ("bandwidth_share", "flash_attn_3_bandwidth_share", "t4:bandwidth_share")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class FitProblem:
    """Rows and parameters of a fit; `start` has the logarithms of the parameters' starts."""

    rows: Sequence[Row]
    names: Sequence[str]
    start: Array

    @property
    def priors(self) -> Array:
        """Standard deviation of each logarithm around its start."""
        return np.array(
            [BANDWIDTH_PRIOR_DEVIATION if name in BANDWIDTH_SHARES else PRIOR_DEVIATION for name in self.names]
        )


def changes_of(row: Row, names: Sequence[str], values: Array) -> dict[str, float]:
    """Return the parameter values for a row's card: `card:name` for that card, `name` for cards without their own."""
    changes: dict[str, float] = {}
    own = {name.partition(":")[2] for name in names if name.startswith(f"{row.card.key}:")}
    for name, value in zip(names, values, strict=True):
        card, colon, base = name.rpartition(":")
        if base in HOST_VALUES and row.group not in STUDIES:
            continue
        if (colon and card == row.card.key) or (not colon and base not in own):
            changes[base] = math.exp(float(value))
    return changes


def stored_values(names: Sequence[str]) -> Array:
    """Return the logarithms of the stored values."""
    values = []
    for name in names:
        card, _, base = name.rpartition(":")
        source = hardware_named(card) if base in HOST_VALUES else parameters_of(card)
        values.append(math.log(getattr(source, base)))
    return np.array(values)


def residuals_of(row: Row, names: Sequence[str], values: Array) -> list[float]:
    """Return a row's weighted residuals; a missing prediction counts as the limit."""
    predicted = predict(row, changes_of(row, names, values))
    residuals = []
    for metric in (*COMPARED_METRICS, *EXTRA_METRICS):
        measured = row.metrics.get(metric)
        if measured is None or (row.fit_only and metric not in row.fit_only):
            continue
        value = predicted.get(metric)
        error = RESIDUAL_LIMIT
        if value:
            error = max(-RESIDUAL_LIMIT, min(RESIDUAL_LIMIT, math.log(value / measured)))
        count = len(row.fit_only or row.metrics)
        residuals.append(error * METRIC_WEIGHTS.get(metric, 1.0) / RESIDUAL_SCALE / count * row.weight)
    return residuals


def evaluate(problem: FitProblem, values: Array, pool: ProcessPoolExecutor) -> list[list[float]]:
    """Return each row's residuals."""
    return list(pool.map(residuals_of, problem.rows, repeat(problem.names), repeat(values), chunksize=4))


def jacobian(problem: FitProblem, values: Array, base: list[list[float]], pool: ProcessPoolExecutor) -> list[Array]:
    """Return each row's derivatives: residuals × parameters; a parameter of another card is not tried."""
    columns = []
    for index in range(len(values)):
        moved = values.copy()
        moved[index] += DERIVATIVE_STEP
        column = list(base)
        names = problem.names
        touched = [
            k for k, row in enumerate(problem.rows) if changes_of(row, names, moved) != changes_of(row, names, values)
        ]
        part = FitProblem([problem.rows[k] for k in touched], names, problem.start)
        for k, residuals in zip(touched, evaluate(part, moved, pool), strict=True):
            column[k] = residuals
        columns.append(column)
    return [
        np.array([[(b - a) / DERIVATIVE_STEP for a, b in zip(base[k], column[k], strict=True)] for column in columns]).T
        for k in range(len(problem.rows))
    ]


def solve(
    problem: FitProblem, values: Array, base: list[list[float]], slopes: list[Array], left_out: Collection[int] = ()
) -> Array:
    """Return the parameters after one Gauss-Newton step with the prior, without the rows `left_out`."""
    used = [k for k in range(len(problem.rows)) if k not in left_out]
    matrix = np.vstack([slopes[k] for k in used] + [np.diag(1.0 / problem.priors)])
    right = np.concatenate([np.array(base[k]) for k in used] + [(values - problem.start) / problem.priors])
    step = np.linalg.lstsq(matrix, -right, rcond=None)[0]
    return np.asarray(values + np.clip(step, -0.7, 0.7))


def left_out_with(rows: Sequence[Row], index: int) -> tuple[int, ...]:
    """Return the rows that are left out to predict one: those of the same study, or the row alone."""
    group = rows[index].group
    return tuple(k for k, row in enumerate(rows) if row.group == group) if group in STUDIES else (index,)


def cost(problem: FitProblem, values: Array, base: list[list[float]]) -> float:
    """Return the sum of squares, including the prior."""
    return sum(r * r for row in base for r in row) + float(np.sum(((values - problem.start) / problem.priors) ** 2))


def fit(problem: FitProblem, rounds: int, pool: ProcessPoolExecutor) -> tuple[Array, list[list[float]], list[Array]]:
    """Return the fitted parameters with their residuals and derivatives."""
    values = stored_values(problem.names)
    base = evaluate(problem, values, pool)
    slopes = jacobian(problem, values, base, pool)
    for number in range(rounds):
        target = solve(problem, values, base, slopes)
        for share in (1.0, 0.5, 0.25, 0.1, 0.03):
            tried = values + share * (target - values)
            residuals = evaluate(problem, tried, pool)
            if cost(problem, tried, residuals) < cost(problem, values, base):
                values, base = tried, residuals
                break
        else:
            break
        print(f"round {number + 1}: cost {cost(problem, values, base):.1f}", flush=True)
        slopes = jacobian(problem, values, base, pool)
    return values, base, slopes


def print_errors(title: str, rows: Sequence[Row], predicted: Sequence[PredictedMetrics]) -> None:
    """Print the accuracy of each table."""
    print(f"\n{title}")
    for group in dict.fromkeys(row.group for row in rows):
        print(group)
        own = [(row, values) for row, values in zip(rows, predicted, strict=True) if row.group == group]
        print_accuracy(accuracy([row for row, _ in own], [values for _, values in own]))


def write_parameters(names: Sequence[str], values: Array) -> None:
    """Write the values into `parameters.yaml`; leave the rest as it is."""
    text = PARAMETERS_FILE.read_text(encoding="utf-8")
    for name, value in zip(names, values, strict=True):
        card, _, base = name.rpartition(":")
        if base in HOST_VALUES:
            continue
        number = f"{math.exp(float(value)):.4g}"
        pattern = rf"(?m)^(  {card}: \{{.*?{base}: )[\d.e+-]+" if card else rf"(?m)^(  {base}: \{{value: )[\d.e+-]+"
        text, count = re.subn(pattern, rf"\g<1>{number}", text)
        if count != 1:
            raise SystemExit(f"{PARAMETERS_FILE.name} has no place for {name}")
        if not card:
            text = re.sub(rf"(?m)^(  {base}: .*source: )\w+", r"\g<1>fitted", text)
    PARAMETERS_FILE.write_text(text, encoding="utf-8")


def main() -> None:
    """Fit and print; with `--write`, write the parameters."""
    parser = documented_parser(__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=FITTED, metavar="NAME", help="the parameters to fit")
    arguments = parser.parse_args()
    rows = [row for row in (*h200(), *published(), *weighted_trials()) if row.fit]
    names = arguments.only or FITTED
    start = np.log(np.array([START[name] for name in names]))
    problem = FitProblem(rows, names, start)
    with ProcessPoolExecutor(arguments.workers) as pool:
        values, base, slopes = fit(problem, arguments.rounds, pool)
        fitted = list(pool.map(predict, rows, [changes_of(row, names, values) for row in rows]))
        without = [left_out_with(rows, index) for index in range(len(rows))]
        own = {group: solve(problem, values, base, slopes, group) for group in set(without)}
        left_out_changes = [changes_of(row, names, own[group]) for row, group in zip(rows, without, strict=True)]
        left_out = list(pool.map(predict, rows, left_out_changes))
    print()
    for name, before, after in zip(names, start, values, strict=True):
        print(f"{name:<32}{math.exp(before):>10.4g} -> {math.exp(after):.4g}")
    for row, predicted in zip(rows, fitted, strict=True):
        cells = "  ".join(f"{predicted[m] or 0:.4g}/{row.metrics[m]:.4g}" for m in COMPARED_METRICS if m in row.metrics)
        print(f"{row.id:<24}{cells}")
    print_errors("fitted", rows, fitted)
    print_errors("left out of the fit: a table's row, a whole study", rows, left_out)
    bands = error_bands_of(rows, left_out)
    print("\n".join(map(str, bands.items())))
    if arguments.write:
        write_parameters(names, values)
        if not arguments.only:
            write_bands(bands)


if __name__ == "__main__":
    main()
