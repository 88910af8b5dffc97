"""How well predictions order the configurations that a search visited, for each recorded study on an H200.

    python -m benchmarks.simulator.left_out [--rows]

A search visits configurations that are alike and, if predictions are wrong, those that are predicted far too well. The
order of such configurations is harder to predict than that of random ones. For each study, the program prints
Spearman's rank correlation and the median relative error over the trials of its search (the defaults included), with
the stored parameters. `benchmarks.simulator.calibrate` prints the same table with parameters that are fitted without
the study.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.stats import spearmanr

from benchmarks.command_line import documented_parser
from benchmarks.simulator.accuracy import PredictedMetrics, predict_all, print_rows
from benchmarks.simulator.rows import Row
from benchmarks.simulator.studies import recorded_studies, study_rows

RANKED_METRICS = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
MIN_ROWS = 5
"""Studies with fewer trials have no rank correlation to speak of."""


@dataclass(frozen=True)
class Agreement:
    """The agreement of predictions and measurements over the trials of one study.

    Attributes:
        spearman: rank correlation.
        median_error: median of |predicted / measured - 1|.
    """

    spearman: float
    median_error: float


def agreement(rows: Sequence[Row], predicted: Sequence[PredictedMetrics], metric: str) -> Agreement:
    """Return the agreement for one metric; a row that is predicted to fail counts as the worst, with an error of 1."""
    worst = 0.0 if metric == "output_throughput" else float("inf")
    values = [values.get(metric) or worst for values in predicted]
    measured = [row.metrics[metric] for row in rows]
    errors = [min(1.0, abs(value / real - 1)) for value, real in zip(values, measured, strict=True)]
    return Agreement(float(spearmanr(values, measured).statistic), statistics.median(errors))


def table_of(predict_rows: Callable[[Sequence[Row]], Sequence[PredictedMetrics]], show_rows: bool = False) -> str:
    """Return the table of all studies.

    Args:
        predict_rows: returns the predictions of a study's rows.
        show_rows: whether to print each row as predicted/measured.
    """
    lines = [f"{'study':<16}{'n':>4}" + "".join(f"{metric + ': Spearman, error':>36}" for metric in RANKED_METRICS)]
    for study in recorded_studies():
        rows = study_rows(study)
        if len(rows) < MIN_ROWS:
            continue
        predicted = predict_rows(rows)
        if show_rows:
            print_rows(rows, predicted)
        cells = [agreement(rows, predicted, metric) for metric in RANKED_METRICS]
        text = "".join(f"{cell.spearman:>26.2f}{cell.median_error:>10.1%}" for cell in cells)
        lines.append(f"{study.name:<16}{len(rows):>4}{text}")
    return "\n".join(lines)


def main() -> None:
    """Predict the studies and print the table."""
    parser = documented_parser(__doc__)
    parser.add_argument("--rows", action="store_true", help="print every row")
    print(table_of(predict_all, parser.parse_args().rows))


if __name__ == "__main__":
    main()
