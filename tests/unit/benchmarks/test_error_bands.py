"""The errors of left-out rows, by regime."""

from __future__ import annotations

import json
from dataclasses import replace

from benchmarks.simulator.calibrate import error_bands_of
from benchmarks.simulator.rows import h200

NGRAM = ("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 4}))


def test_each_regime_has_its_own_band_and_few_rows_have_none() -> None:
    rows = h200()  # 21 configurations with 16-bit weights and 12 with FP8
    predicted = [{name: 1.1 * value for name, value in row.metrics.items()} for row in rows]
    found = error_bands_of(rows, predicted)
    assert [(each["weights"], each["rows"], each["output_throughput"]) for each in found] == [
        ("16-bit", 21, 0.1),
        ("fp8", 12, 0.1),
    ]
    few = [row for row in rows if "fp8" in row.args][:9]
    assert error_bands_of(few, predicted[:9]) == []
    drafting = [replace(row, args=NGRAM) for row in rows[:12]]
    assert error_bands_of(drafting, predicted[:12]) == []


def test_a_row_that_is_predicted_to_fail_is_wholly_wrong() -> None:
    rows = [row for row in h200() if "fp8" not in row.args][:10]
    (band,) = error_bands_of(rows, [{}] * 10)
    assert band["p99_ttft_ms"] == 1.0
